//! Provider `aws`: routes in the route tables of a VPC, by EC2's query API.
//!
//! A list is one call (and one more for each further page); a create, a replacement and a delete
//! are one call for each table. Before the first route to an instance its source/destination check
//! is switched off, once.

use std::io;

use futures::future::BoxFuture;
use weft_model::SharedStr;
use weft_routes::{NextHop, NextHopKind, ProviderError, Route, RouteAction, Step, Wanted};

use crate::{Answer, Calls, Capabilities, InstanceAddresses, Provider};

mod api;
mod cloud_config;
mod failure;
mod form;
mod instance;
mod listing;
mod route_target;
mod settings;
mod signer;
mod tables;
mod wire;

use api::{Api, Operation};
pub use cloud_config::{CloudConfig, CloudConfigError};
use form::Form;
use route_target::{RouteTarget, RouteTargets};
pub use settings::{AwsSettings, AwsSettingsError, TableChoice};
use tables::Tables;

/// The route tables of one cluster. All of them get the same routes; where there are several, there
/// is one for each zone.
#[derive(Debug)]
pub struct AwsProvider {
    api: Api,
    tables: Tables,
    targets: RouteTargets,
    quota: Option<usize>,
}

impl AwsProvider {
    /// Connects on the first call.
    pub fn new(settings: AwsSettings, calls: Calls) -> io::Result<Self> {
        let tables = Tables::new(settings.tables.clone());
        let quota = settings.quota;
        Ok(Self {
            api: Api::new(settings, calls)?,
            tables,
            targets: RouteTargets::default(),
            quota,
        })
    }

    async fn do_step(&self, step: &Step) -> Result<(), ProviderError> {
        match &step.action {
            RouteAction::Create { new, .. } => self.create(new).await,
            RouteAction::Replace { new, .. } => self.replace(new).await,
            RouteAction::Delete { old, .. } => self.delete(old).await,
        }
    }

    async fn create(&self, new: &Wanted) -> Result<(), ProviderError> {
        let (tables, target) = self.prepare(new).await?;
        let mut changed = false;
        for table in &tables {
            let form = Form::route(table, &new.destination)?.to(&target);
            let done = self.change(Operation::CreateRoute, form, new).await;
            done.map_err(|error| half_way(error, changed))?;
            changed = true;
        }
        Ok(())
    }

    async fn replace(&self, new: &Wanted) -> Result<(), ProviderError> {
        let (tables, target) = self.prepare(new).await?;
        let mut changed = false;
        for table in &tables {
            let form = || Ok(Form::route(table, &new.destination)?.to(&target));
            let mut done = self.change(Operation::ReplaceRoute, form()?, new).await;
            // The route may be missing in some of several tables: create it there.
            if done == Err(ProviderError::Conflict) && tables.len() > 1 {
                done = self.change(Operation::CreateRoute, form()?, new).await;
            }
            done.map_err(|error| half_way(error, changed))?;
            changed = true;
        }
        Ok(())
    }

    async fn delete(&self, old: &Route) -> Result<(), ProviderError> {
        let tables = self.tables.ids(&self.api).await?;
        let mut result = Err(ProviderError::Gone);
        for table in &tables {
            let form = Form::route(table, &old.destination)?;
            match self.api.change(Operation::DeleteRoute, form).await {
                Ok(()) => result = Ok(()),
                Err(ProviderError::Gone) => {}
                Err(error) => return Err(half_way(error, result.is_ok())),
            }
        }
        if let Some(NextHop::Instance(id)) = &old.next_hop {
            self.targets.forget(id);
        }
        result
    }

    async fn prepare(&self, new: &Wanted) -> Result<(Vec<SharedStr>, RouteTarget), ProviderError> {
        let instance = instance_of(new)?;
        let tables = self.tables.ids(&self.api).await?;
        let target = self.targets.prepare(&self.api, &instance, new.address());
        Ok((tables, target.await?))
    }

    /// Makes a call that routes packets to an instance. If the instance changed, the remembered
    /// target is dropped.
    async fn change(
        &self,
        operation: Operation,
        form: Form,
        new: &Wanted,
    ) -> Result<(), ProviderError> {
        let result = self.api.change(operation, form).await;
        if let (Err(ProviderError::NotReady(_)), Ok(instance)) = (&result, instance_of(new)) {
            self.targets.forget(&instance);
        }
        result
    }
}

fn instance_of(new: &Wanted) -> Result<SharedStr, ProviderError> {
    let named = match &new.next_hop {
        Some(NextHop::Instance(id)) => Some(id),
        _ => new.provider_id.as_ref(),
    };
    let id = named.and_then(|id| instance::id(id));
    id.ok_or_else(|| ProviderError::NotReady("node has no EC2 instance ID".into()))
}

/// After a change of some tables, the failure of the others leaves an uncertain state.
fn half_way(error: ProviderError, changed: bool) -> ProviderError {
    if changed {
        ProviderError::Uncertain
    } else {
        error
    }
}

impl Provider for AwsProvider {
    fn name(&self) -> &'static str {
        "aws"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            next_hop: NextHopKind::Instance,
            // Writes are limited to about five a second in the long run.
            parallel: 4,
            settle: tables::SETTLE,
            quota: self.quota,
            knows_instances: true,
            ..Capabilities::default()
        }
    }

    fn instance(&self, provider_id: &str) -> Option<SharedStr> {
        instance::id(provider_id)
    }

    fn list(&self) -> BoxFuture<'_, Answer<Vec<Route>>> {
        Box::pin(async { Answer::from(self.tables.list(&self.api).await) })
    }

    fn apply<'a>(&'a self, step: &'a Step) -> BoxFuture<'a, Answer<()>> {
        Box::pin(async { Answer::from(self.do_step(step).await) })
    }

    fn instance_addresses<'a>(
        &'a self,
        instances: &'a [SharedStr],
    ) -> BoxFuture<'a, Answer<InstanceAddresses>> {
        Box::pin(async { Answer::from(instance::addresses(&self.api, instances).await) })
    }
}
