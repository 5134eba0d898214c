//! Route tables of the EC2 double, with reads that lag behind writes.

use std::time::{Duration, Instant};

use super::{Ec2Instance, Ec2Route, Ec2Table, Ec2Target, form::Form, refusal::Refusal, xml};

/// Current route tables, and the earlier states that reads still return.
#[derive(Debug)]
pub(super) struct Tables {
    now: Vec<Ec2Table>,
    /// Earlier states, each with the time until which reads return it.
    earlier: Vec<(Instant, Vec<Ec2Table>)>,
    lag: Duration,
}

impl Tables {
    pub(super) fn new(now: Vec<Ec2Table>, lag: Duration) -> Self {
        Self {
            now,
            earlier: Vec::new(),
            lag,
        }
    }

    /// The state that reads return.
    pub(super) fn visible(&mut self) -> &[Ec2Table] {
        let now = Instant::now();
        self.earlier.retain(|(until, _)| *until > now);
        self.earlier.first().map_or(&self.now, |(_, tables)| tables)
    }

    pub(super) fn routes(&self) -> Vec<Ec2Route> {
        let of = |table: &Ec2Table| {
            let id = table.id.clone();
            let routes = table.routes.clone().into_iter();
            routes.map(move |(destination, target)| Ec2Route {
                table: id.clone(),
                destination,
                target,
            })
        };
        self.now.iter().flat_map(of).collect()
    }

    pub(super) fn put(&mut self, route: Ec2Route) {
        let mut tables = self.now.iter_mut();
        if let Some(table) = tables.find(|table| table.id == route.table) {
            table.routes.insert(route.destination, route.target);
        }
    }

    pub(super) fn create(
        &mut self,
        form: &Form,
        instances: &[Ec2Instance],
        quota: usize,
    ) -> Result<String, Refusal> {
        let (destination, target) = (form.destination()?, target(form, instances)?);
        let table = self.table(form)?;
        if table.routes.contains_key(&destination) {
            let message = format!("The route identified by {destination} already exists.");
            return Err(Refusal::new("RouteAlreadyExists", &message));
        }
        if table.routes.len() >= quota {
            return Err(Refusal::new("RouteLimitExceeded", "the table is full"));
        }
        self.change(form, |table| {
            table.routes.insert(destination, target);
        })?;
        Ok(xml::done("CreateRoute"))
    }

    pub(super) fn replace(
        &mut self,
        form: &Form,
        instances: &[Ec2Instance],
    ) -> Result<String, Refusal> {
        let (destination, target) = (form.destination()?, target(form, instances)?);
        if !self.table(form)?.routes.contains_key(&destination) {
            let message = format!("There is no route defined for '{destination}'");
            return Err(Refusal::new("InvalidParameterValue", &message));
        }
        self.change(form, |table| {
            table.routes.insert(destination, target);
        })?;
        Ok(xml::done("ReplaceRoute"))
    }

    pub(super) fn delete(&mut self, form: &Form) -> Result<String, Refusal> {
        let destination = form.destination()?;
        if !self.table(form)?.routes.contains_key(&destination) {
            return Err(Refusal::new("InvalidRoute.NotFound", "no such route"));
        }
        self.change(form, |table| {
            table.routes.remove(&destination);
        })?;
        Ok(xml::done("DeleteRoute"))
    }

    fn table(&mut self, form: &Form) -> Result<&mut Ec2Table, Refusal> {
        let id = form.required("RouteTableId")?;
        let found = self.now.iter_mut().find(|table| table.id == id);
        found.ok_or_else(|| Refusal::new("InvalidRouteTableID.NotFound", id))
    }

    fn change(&mut self, form: &Form, change: impl FnOnce(&mut Ec2Table)) -> Result<(), Refusal> {
        if self.lag > Duration::ZERO {
            let until = Instant::now() + self.lag;
            self.earlier.push((until, self.now.clone()));
        }
        change(self.table(form)?);
        Ok(())
    }
}

/// The target that a call names: an interface or an instance.
fn target(form: &Form, instances: &[Ec2Instance]) -> Result<Ec2Target, Refusal> {
    if let Some(interface) = form.parameter("NetworkInterfaceId") {
        let owner = instances
            .iter()
            .find(|instance| instance.interfaces.iter().any(|own| own == interface));
        let owner = owner.filter(|instance| !instance.terminated);
        let missing = || Refusal::new("InvalidNetworkInterfaceID.NotFound", interface);
        return owner
            .map(|instance| Ec2Target::Instance(instance.id.clone()))
            .ok_or_else(missing);
    }
    let id = form.required("InstanceId")?;
    let found = instances.iter().find(|instance| instance.id == id);
    let instance = found.ok_or_else(|| Refusal::no_instance(id))?;
    if instance.terminated {
        return Err(Refusal::new(
            "IncorrectInstanceState",
            "the instance is not running",
        ));
    }
    if instance.interfaces.len() > 1 {
        return Err(Refusal::several_interfaces(id));
    }
    Ok(Ec2Target::Instance(id.to_owned()))
}
