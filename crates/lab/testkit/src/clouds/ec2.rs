//! A double of the EC2 query API.

use std::{
    collections::BTreeMap,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

use super::{
    Fault,
    bucket::Bucket,
    fault::FaultKind,
    server::{ApiCall, Cloud, Double, Reply, Running, pairs},
};

mod form;
mod options;
mod refusal;
mod tables;
mod xml;

use form::Form;
pub use options::{Ec2Instance, Ec2Options, Ec2Route, Ec2Table, Ec2Target, Throttle};
use refusal::Refusal;
use tables::Tables;

/// A double of EC2's query API: route tables, their routes, and instances.
///
/// Endpoints are counted by the name of the action, such as `CreateRoute`.
#[derive(Debug)]
pub struct Ec2Double {
    double: Arc<Double<Ec2>>,
    running: Running,
}

impl Ec2Double {
    /// Starts serving on loopback.
    pub async fn start(options: Ec2Options) -> io::Result<Self> {
        let port = options.port;
        let double = Arc::new(Double::new(Ec2::new(options)));
        let running = Running::start(port, double.clone()).await?;
        Ok(Self { double, running })
    }

    /// The value for `AWS_ENDPOINT_URL_EC2`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.running.address)
    }

    /// Number of calls of an action with a result: `ok`, an error code, `cut` or `garbage`.
    pub fn count(&self, action: &str, result: &str) -> u64 {
        self.double.counters().of(action, result)
    }

    /// Number of calls of an action.
    pub fn calls_of(&self, action: &str) -> u64 {
        self.double.counters().endpoint(action)
    }

    /// Number of all calls.
    pub fn calls(&self) -> u64 {
        self.double.counters().total()
    }

    /// Injects a fault.
    pub fn add_fault(&self, fault: Fault) {
        self.double.faults().add(fault);
    }

    /// Current routes of all tables.
    pub fn routes(&self) -> Vec<Ec2Route> {
        self.double.cloud.state().tables.routes()
    }

    /// Adds or replaces a route without a call, as another program would.
    pub fn put_route(&self, route: Ec2Route) {
        self.double.cloud.state().tables.put(route);
    }

    /// Replaces the instances.
    pub fn set_instances(&self, instances: Vec<Ec2Instance>) {
        self.double.cloud.state().instances = instances;
    }

    /// The current state of an instance.
    pub fn instance(&self, id: &str) -> Option<Ec2Instance> {
        self.double.cloud.state().instance(id).cloned()
    }

    /// Restores the initial tables, removes faults and sets counters to zero.
    pub fn reset(&self) {
        self.double.reset();
    }
}

#[derive(Debug)]
struct Ec2 {
    options: Ec2Options,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tables: Tables,
    instances: Vec<Ec2Instance>,
    buckets: BTreeMap<&'static str, Bucket>,
}

/// Implemented actions, and whether they write.
const ACTIONS: [(&str, bool); 7] = [
    ("DescribeRouteTables", false),
    ("DescribeInstances", false),
    ("CreateRoute", true),
    ("ReplaceRoute", true),
    ("DeleteRoute", true),
    ("ModifyInstanceAttribute", true),
    ("ModifyNetworkInterfaceAttribute", true),
];

impl Ec2 {
    fn new(options: Ec2Options) -> Self {
        let state = State {
            tables: Tables::new(options.tables.clone(), options.lag),
            instances: options.instances.clone(),
            buckets: BTreeMap::new(),
        };
        Self {
            options,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn is_allowed(&self, endpoint: &str) -> bool {
        let Some((reads, writes)) = self.options.throttle else {
            return true;
        };
        let Some((action, write)) = ACTIONS.into_iter().find(|(name, _)| *name == endpoint) else {
            return true;
        };
        let throttle = if write { writes } else { reads };
        let now = Instant::now();
        let mut state = self.state();
        let bucket = state.buckets.entry(action);
        let full = || Bucket::full(throttle.burst, throttle.per_second, now);
        bucket.or_insert_with(full).take(now)
    }

    fn act(&self, endpoint: &str, call: &ApiCall) -> Result<String, Refusal> {
        if !is_signed(call) {
            return Err(Refusal::new("AuthFailure", "the request is not signed"));
        }
        if !self.is_allowed(endpoint) {
            return Err(Refusal::new(
                "RequestLimitExceeded",
                "request limit exceeded",
            ));
        }
        let form = Form::read(&call.body);
        let (quota, page) = (self.options.quota, self.options.page);
        let mut state = self.state();
        let State {
            tables, instances, ..
        } = &mut *state;
        match endpoint {
            "DescribeRouteTables" => xml::route_tables(tables.visible(), instances, &form, page),
            "DescribeInstances" => xml::instances(instances, &form, page),
            "CreateRoute" => tables.create(&form, instances, quota),
            "ReplaceRoute" => tables.replace(&form, instances),
            "DeleteRoute" => tables.delete(&form),
            "ModifyInstanceAttribute" => state.modify_instance(&form),
            "ModifyNetworkInterfaceAttribute" => state.modify_interface(&form),
            _ => Err(Refusal::new(
                "InvalidAction",
                "the double does not implement this action",
            )),
        }
    }
}

/// Checks that the headers of a signature are present, not the signature itself.
fn is_signed(call: &ApiCall) -> bool {
    let authorization = call.header("authorization").unwrap_or_default();
    let parts = [
        "AWS4-HMAC-SHA256 Credential=",
        "SignedHeaders=",
        "Signature=",
    ];
    parts.iter().all(|part| authorization.contains(part)) && call.header("x-amz-date").is_some()
}

impl State {
    fn instance(&self, id: &str) -> Option<&Ec2Instance> {
        self.instances.iter().find(|instance| instance.id == id)
    }

    fn modify_instance(&mut self, form: &Form) -> Result<String, Refusal> {
        let id = form.required("InstanceId")?;
        let check = form.source_dest_check()?;
        let mut instances = self.instances.iter_mut();
        let found = instances.find(|instance| instance.id == id && !instance.terminated);
        let instance = found.ok_or_else(|| Refusal::no_instance(id))?;
        if instance.interfaces.len() > 1 {
            return Err(Refusal::several_interfaces(id));
        }
        instance.source_dest_check = check;
        Ok(xml::done("ModifyInstanceAttribute"))
    }

    /// The double keeps one check for each instance: that of its first interface.
    fn modify_interface(&mut self, form: &Form) -> Result<String, Refusal> {
        let id = form.required("NetworkInterfaceId")?;
        let check = form.source_dest_check()?;
        let mut instances = self.instances.iter_mut();
        let found = instances.find(|instance| instance.interfaces.iter().any(|own| own == id));
        let missing = || Refusal::new("InvalidNetworkInterfaceID.NotFound", id);
        let instance = found.ok_or_else(missing)?;
        if instance.interfaces.first().is_some_and(|first| first == id) {
            instance.source_dest_check = check;
        }
        Ok(xml::done("ModifyNetworkInterfaceAttribute"))
    }
}

impl Cloud for Ec2 {
    fn endpoint(&self, call: &ApiCall) -> &'static str {
        let form = pairs(&call.body);
        let action = form.iter().find(|(name, _)| name == "Action");
        let known = ACTIONS.into_iter().map(|(name, _)| name);
        let mut named = known.filter(|name| action.is_some_and(|(_, value)| value == name));
        named.next().unwrap_or("other")
    }

    fn latency(&self, _endpoint: &str) -> Duration {
        self.options.latency
    }

    fn answer(&self, endpoint: &str, call: &ApiCall, fault: Option<&FaultKind>) -> Reply {
        if let Some(FaultKind::ActionFails { code }) = fault {
            return self.refuse(code);
        }
        let answer = self.act(endpoint, call);
        answer.map_or_else(|refusal| refusal.reply(), xml::reply)
    }

    fn refuse(&self, code: &str) -> Reply {
        Refusal::new(code, "injected fault").reply()
    }

    fn table(&self) -> Value {
        let routes = self.state().tables.routes();
        let routes = routes.into_iter().map(|route| {
            json!({"table": route.table, "destination": route.destination, "target": route.target})
        });
        routes.collect()
    }

    fn put_machines(&self, machines: &[u8]) -> Result<(), serde_json::Error> {
        self.state().instances = serde_json::from_slice(machines)?;
        Ok(())
    }

    fn reset(&self) {
        self.state().tables = Tables::new(self.options.tables.clone(), self.options.lag);
    }
}
