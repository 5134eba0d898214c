//! Provider `hcloud`: the routes of a Hetzner Cloud network.
//!
//! A list is one call: nodes are found by their addresses, so servers need not be listed. A change
//! is one call and the polls of the action that it starts.

use std::{io, sync::Arc};

use futures::future::BoxFuture;
use weft_model::{IpFamily, SharedStr};
use weft_routes::{
    Cidr, Mark, NextHop, ProviderError, Route, RouteAction, RouteTarget, Step, Wanted,
};

use crate::{Answer, Calls, Capabilities, InstanceAddresses, Provider};

mod actions;
mod api;
mod failure;
mod network;
mod rate;
mod servers;
mod settings;
mod token;
mod wire;

use actions::Actions;
use api::{Api, Purpose};
use network::NetworkId;
pub use settings::{HcloudSettings, HcloudSettingsError};
pub use token::{HcloudToken, TokenError};

/// The route table of one network.
#[derive(Debug)]
pub struct HcloudProvider {
    api: Arc<Api>,
    actions: Actions,
    network: NetworkId,
    quota: usize,
}

impl HcloudProvider {
    /// Connects on the first call. Has to be called on a tokio runtime: actions are polled by a
    /// task that ends with the provider.
    pub fn new(settings: HcloudSettings, calls: Calls) -> io::Result<Self> {
        let (poll, timeout) = (settings.poll, settings.action_timeout);
        let (network, quota) = (NetworkId::new(&settings.network), settings.quota);
        let api = Arc::new(Api::new(settings, calls)?);
        Ok(Self {
            actions: Actions::start(api.clone(), poll, timeout),
            api,
            network,
            quota,
        })
    }

    async fn list_routes(&self) -> Answer<Vec<Route>> {
        let answer = self.network.read(&self.api).await;
        Answer {
            result: answer
                .result
                .map(|network| network.routes.iter().map(to_route).collect()),
            rate: answer.rate,
        }
    }

    async fn do_step(&self, step: &Step) -> Answer<()> {
        match &step.action {
            RouteAction::Create { new, .. } => self.create(new).await,
            RouteAction::Delete { old, .. } => self.delete(old).await,
            RouteAction::Replace { old, new, .. } => self.replace(old, new).await,
        }
    }

    async fn create(&self, new: &Wanted) -> Answer<()> {
        match to_wire(new) {
            Ok(route) => self.change(Purpose::Create, &route).await,
            Err(error) => Answer::from(Err(error)),
        }
    }

    async fn delete(&self, old: &Route) -> Answer<()> {
        // The API needs both, and refuses if either differs from the route.
        let Some(NextHop::Address(gateway)) = &old.next_hop else {
            let reason = "cannot delete a route without a gateway".into();
            return Answer::from(Err(ProviderError::Invalid(reason)));
        };
        let route = wire::Route {
            destination: old.destination.text().to_owned(),
            gateway: gateway.to_string(),
        };
        self.change(Purpose::Delete, &route).await
    }

    async fn replace(&self, old: &Route, new: &Wanted) -> Answer<()> {
        // A route that cannot be created is refused before the old one is deleted.
        let route = match to_wire(new) {
            Ok(route) => route,
            Err(error) => return Answer::from(Err(error)),
        };
        let deleted = self.delete(old).await;
        if !matches!(deleted.result, Ok(()) | Err(ProviderError::Gone)) {
            return deleted;
        }
        let created = self.change(Purpose::Create, &route).await;
        Answer {
            result: created.result.map_err(|_| ProviderError::Uncertain),
            rate: created.rate.or(deleted.rate),
        }
    }

    async fn change(&self, purpose: Purpose, route: &wire::Route) -> Answer<()> {
        let network = match self.network.number(&self.api).await {
            Ok(number) => number,
            Err(answer) => return answer,
        };
        let begun = self.api.change(purpose, network, route).await;
        let ended = match begun.result {
            Ok(action) => self.actions.wait(purpose, action).await,
            Err(error) => Answer::from(Err(error)),
        };
        Answer {
            result: ended.result,
            rate: ended.rate.or(begun.rate),
        }
    }
}

/// Converts a listed route. One whose gateway is not an address counts as foreign.
fn to_route(listed: &wire::Route) -> Route {
    let gateway = listed.gateway.parse().ok();
    Route {
        destination: Cidr::parse(&listed.destination),
        target: RouteTarget::Unknown,
        next_hop: gateway.map(NextHop::Address),
        target_addresses: None,
        blackhole: false,
        mark: if gateway.is_some() {
            Mark::None
        } else {
            Mark::Foreign
        },
        id: None,
    }
}

fn to_wire(new: &Wanted) -> Result<wire::Route, ProviderError> {
    let net = new.destination.net();
    let net = net.map_err(|error| ProviderError::Invalid(error.to_string().as_str().into()))?;
    if new.destination.family() != Some(IpFamily::V4) {
        let reason = "Hetzner Cloud networks route IPv4 only";
        return Err(ProviderError::Invalid(reason.into()));
    }
    let no_address = || ProviderError::NotReady("node has no internal address".into());
    Ok(wire::Route {
        destination: net.to_string(),
        gateway: new.address().ok_or_else(no_address)?.to_string(),
    })
}

impl Provider for HcloudProvider {
    fn name(&self) -> &'static str {
        "hcloud"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            families: vec![IpFamily::V4],
            // An action locks the network.
            parallel: 1,
            quota: Some(self.quota),
            knows_instances: true,
            ..Capabilities::default()
        }
    }

    /// Takes the number of `hcloud://<number>`. Dedicated servers (`hrobot://…`, `hcloud://bm-…`)
    /// cannot be routed to.
    fn instance(&self, provider_id: &str) -> Option<SharedStr> {
        let id = provider_id.strip_prefix("hcloud://")?;
        id.parse::<u64>().ok().map(|_| SharedStr::new(id))
    }

    fn list(&self) -> BoxFuture<'_, Answer<Vec<Route>>> {
        Box::pin(self.list_routes())
    }

    fn apply<'a>(&'a self, step: &'a Step) -> BoxFuture<'a, Answer<()>> {
        Box::pin(self.do_step(step))
    }

    fn instance_addresses<'a>(
        &'a self,
        instances: &'a [SharedStr],
    ) -> BoxFuture<'a, Answer<InstanceAddresses>> {
        Box::pin(servers::addresses(&self.api, &self.network, instances))
    }
}
