//! Plays a trace: writes Nodes as kubelets and controllers do, and changes the provider.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use weft_testkit::clouds::{Fault, HcloudDouble, HcloudRoute, HcloudServer};

use super::{
    trace::{Event, Machine, Step, Trace},
    tracker::{RouteTracker, Table},
};

/// Servers of the project that are not nodes.
const OTHERS: u16 = 10;

/// A cluster with its provider, and the tracker of its desired routes.
pub(super) struct Player {
    nodes: Api<Node>,
    double: Arc<HcloudDouble>,
    servers: BTreeMap<u16, Machine>,
    tracker: Arc<Mutex<RouteTracker>>,
    /// Steps that require a change of routes, with the times at which they were made.
    pub(super) made: Vec<Event>,
    /// Largest delay of a step.
    pub(super) late: Duration,
}

impl Player {
    pub(super) fn new(
        client: Client,
        double: Arc<HcloudDouble>,
        tracker: Arc<Mutex<RouteTracker>>,
    ) -> Self {
        Self {
            nodes: Api::all(client),
            double,
            servers: BTreeMap::new(),
            tracker,
            made: Vec::new(),
            late: Duration::ZERO,
        }
    }

    /// Creates the nodes, servers and routes that exist before the trace begins.
    pub(super) async fn prepare(&mut self, trace: &Trace) -> anyhow::Result<()> {
        for &machine in &trace.nodes {
            self.place(machine);
            self.register(machine).await?;
            self.give_range(machine).await?;
            self.give_identity(machine).await?;
            self.report_address(machine).await?;
            self.tracker.lock().begin_with(machine);
        }
        let routes = trace.nodes.iter().map(|machine| HcloudRoute {
            destination: machine.destination(),
            gateway: machine.address().to_string(),
        });
        self.double.set_routes(routes.collect());
        Ok(())
    }

    /// Makes every step at its time.
    pub(super) async fn play(&mut self, trace: &Trace, begin: Instant) -> anyhow::Result<()> {
        for Event { at, step } in &trace.events {
            tokio::time::sleep_until(begin + *at).await;
            self.late = self.late.max((begin + *at).elapsed());
            self.step(step, begin)
                .await
                .with_context(|| format!("{step:?}"))?;
        }
        tokio::time::sleep_until(begin + trace.length).await;
        Ok(())
    }

    async fn step(&mut self, step: &Step, begin: Instant) -> anyhow::Result<()> {
        match *step {
            Step::Register(machine) => {
                self.place(machine);
                self.register(machine).await?;
            }
            Step::Range(machine) => self.give_range(machine).await?,
            Step::Identify(machine) => {
                self.give_identity(machine).await?;
                self.note(step, begin);
                self.want(machine, begin).await?;
            }
            Step::ChangeAddress(machine) => {
                self.tracker.lock().release(machine);
                self.place(machine);
            }
            Step::ReportAddress(machine) => {
                self.note(step, begin);
                self.want(machine, begin).await?;
            }
            Step::Terminate(machine) => {
                self.tracker.lock().release(machine);
                self.servers.remove(&machine.number);
                self.publish_servers();
            }
            Step::Delete(machine) => {
                self.note(step, begin);
                self.delete(machine, begin).await?;
            }
            Step::Heartbeat(machine) => self.patch_status(machine, &heartbeat()).await?,
            Step::Label(machine) => self.label(machine, begin).await?,
            Step::Refuse {
                endpoints,
                code,
                times,
            } => {
                for endpoint in endpoints {
                    self.double.add_fault(Fault::fail(endpoint, times, code));
                }
            }
            Step::Recover => self.double.clear_faults(),
        }
        Ok(())
    }

    fn note(&mut self, step: &Step, begin: Instant) {
        self.made.push(Event {
            at: begin.elapsed(),
            step: step.clone(),
        });
    }

    /// Writes the address, the last thing that the Node needs for a route, and starts its wait.
    async fn want(&self, machine: Machine, begin: Instant) -> anyhow::Result<()> {
        let now = begin.elapsed().as_secs_f64();
        self.tracker.lock().want(machine, now);
        self.report_address(machine).await
    }

    async fn delete(&self, machine: Machine, begin: Instant) -> anyhow::Result<()> {
        let now = begin.elapsed().as_secs_f64();
        self.tracker.lock().forget(machine, now);
        let how = DeleteParams::default();
        self.nodes.delete(&machine.name(), &how).await?;
        Ok(())
    }

    async fn label(&self, machine: Machine, begin: Instant) -> anyhow::Result<()> {
        let value = begin.elapsed().as_millis().to_string();
        let patch = json!({"metadata": {"labels": {"weft.dev/noise": value}}});
        self.patch(machine, &patch).await
    }

    /// Adds the server, or changes its address.
    fn place(&mut self, machine: Machine) {
        self.servers.insert(machine.number, machine);
        self.publish_servers();
    }

    fn publish_servers(&self) {
        let ours = self.servers.values().map(|machine| HcloudServer {
            id: machine.number.into(),
            name: machine.name(),
            ip: Some(machine.address()),
        });
        let others = (0..OTHERS).map(|number| HcloudServer {
            id: 10_000 + u64::from(number),
            name: format!("other-{number}"),
            ip: None,
        });
        self.double.set_servers(ours.chain(others).collect());
    }

    async fn register(&self, machine: Machine) -> anyhow::Result<()> {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": machine.name()}}))?;
        self.nodes.create(&PostParams::default(), &node).await?;
        Ok(())
    }

    async fn give_range(&self, machine: Machine) -> anyhow::Result<()> {
        let range = machine.destination();
        let patch = json!({"spec": {"podCIDR": range, "podCIDRs": [range]}});
        self.patch(machine, &patch).await
    }

    async fn give_identity(&self, machine: Machine) -> anyhow::Result<()> {
        let id = format!("hcloud://{}", machine.number);
        let patch = json!({"spec": {"providerID": id}});
        self.patch(machine, &patch).await
    }

    async fn report_address(&self, machine: Machine) -> anyhow::Result<()> {
        let addresses = json!([
            {"type": "Hostname", "address": machine.name()},
            {"type": "InternalIP", "address": machine.address().to_string()},
        ]);
        // A merge patch replaces the list; a strategic patch would keep the old address.
        let patch = json!({"status": {"addresses": addresses}});
        let how = PatchParams::default();
        let name = machine.name();
        self.nodes
            .patch_status(&name, &how, &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    async fn patch(&self, machine: Machine, patch: &Value) -> anyhow::Result<()> {
        let how = PatchParams::default();
        let patch = Patch::Strategic(patch);
        self.nodes.patch(&machine.name(), &how, &patch).await?;
        Ok(())
    }

    async fn patch_status(&self, machine: Machine, patch: &Value) -> anyhow::Result<()> {
        let how = PatchParams::default();
        let patch = Patch::Strategic(patch);
        let name = machine.name();
        self.nodes.patch_status(&name, &how, &patch).await?;
        Ok(())
    }
}

/// The condition that a kubelet updates.
fn heartbeat() -> Value {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "a heartbeat",
        "lastHeartbeatTime": now, "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}})
}

/// Current routes of the provider.
pub(super) fn table(double: &HcloudDouble) -> Table {
    let routes = double.routes().into_iter();
    routes
        .map(|route| (route.destination, route.gateway))
        .collect()
}
