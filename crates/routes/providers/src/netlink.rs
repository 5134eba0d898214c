//! Provider `netlink`: the route table of this machine's kernel.
//!
//! A route is ours if it carries our protocol number, and only such routes are ever changed. It has
//! a metric of its own, because the kernel identifies the route that a new one replaces by metric,
//! and not by protocol.
//!
//! Nodes have to be on one link, because a kernel sends packets only to gateways that it reaches
//! directly. Where they are not, the network between the nodes needs the routes, and another
//! provider writes them there.

use std::{net::IpAddr, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use ipnet::IpNet;
use tokio::{
    sync::{Mutex, Notify},
    task::JoinSet,
    time::Instant,
};
use weft_host::{
    Errno, NetlinkError,
    routing::{Deletion, Events, Hop, KernelRoute, Reach, RouteKind, Routing, Write},
};
use weft_model::IpFamily;
use weft_routes::{ProviderError, Route, RouteAction, Step, Wanted};

use crate::{Answer, Calls, Capabilities, Provider};

mod failure;
mod follow;
mod settings;
mod table;
mod warnings;

pub use settings::{FALLBACK_METRIC, Gateways, NetlinkSettings, SettingsError};
pub use warnings::HostWarning;

use failure::{deleting, not_ready, reading, writing};
use follow::Follower;

/// Number of changes under way at the same time. The kernel serialises them anyway; this only saves
/// waiting for each answer in turn.
const PARALLEL: usize = 16;
/// Time for which the machine's addresses are cached.
const FRESH: Duration = Duration::from_secs(1);

/// The routes of one network namespace.
#[derive(Debug)]
pub struct NetlinkProvider {
    routing: Routing,
    settings: NetlinkSettings,
    calls: Calls,
    changed: Arc<Notify>,
    own: Mutex<Option<(Instant, Arc<[IpAddr]>)>>,
    /// Watches the kernel's events; ends with the provider.
    _follower: JoinSet<()>,
}

/// The provider cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The settings are invalid.
    #[error("invalid netlink settings")]
    Settings(#[from] SettingsError),
    /// The kernel refused the socket or the subscription.
    #[error("cannot open rtnetlink")]
    Kernel(#[from] NetlinkError),
}

impl NetlinkProvider {
    /// Connects to the routes of the calling thread's network namespace, and changes nothing.
    ///
    /// Has to be called in the context of a tokio runtime. From then on it does not matter in which
    /// namespace the threads of that runtime are.
    pub fn open(mut settings: NetlinkSettings) -> Result<Self, OpenError> {
        settings.check()?;
        for range in &mut settings.cluster_cidrs {
            *range = range.trunc();
        }
        let routing = Routing::open()?;
        let changed = Arc::new(Notify::new());
        let follower = Follower::new(&settings, routing.port(), changed.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(follower.follow(routing.clone(), Events::open()?));
        Ok(Self {
            routing,
            settings,
            calls: Calls::default(),
            changed,
            own: Mutex::default(),
            _follower: tasks,
        })
    }

    /// Counts calls in `calls`.
    #[must_use]
    pub fn counting(mut self, calls: Calls) -> Self {
        self.calls = calls;
        self
    }

    /// Creates the fallback routes, or removes them if the settings do not want them. Not called in
    /// observe mode.
    pub async fn prepare(&self) -> Result<(), ProviderError> {
        for destination in &self.settings.cluster_cidrs {
            let fallback = table::fallback(&self.settings, *destination);
            if self.settings.fallback {
                self.put(&fallback, Write::Add).await?;
            } else {
                absent(self.routing.delete(&deletion(&fallback)).await)?;
            }
        }
        Ok(())
    }

    /// Deletes every route of ours and returns their number: for operators who remove weft from a
    /// node. Otherwise routes outlive the process, so that packets flow while it restarts.
    pub async fn flush(&self) -> Result<usize, ProviderError> {
        let mut deleted = 0;
        for family in IpFamily::ALL {
            for route in self.read(family).await? {
                if route.protocol == self.settings.protocol {
                    absent(self.routing.delete(&deletion(&route)).await)?;
                    deleted += 1;
                }
            }
        }
        Ok(deleted)
    }

    async fn read(&self, family: IpFamily) -> Result<Vec<KernelRoute>, ProviderError> {
        let routes = self.routing.routes(family, self.settings.table);
        routes.await.map_err(|error| reading(&error))
    }

    async fn read_all(&self) -> Result<Vec<Route>, ProviderError> {
        let mut found = Vec::new();
        for family in IpFamily::ALL {
            let routes = self.read(family).await?;
            found.extend(routes.iter().filter_map(|route| self.settings.list(route)));
        }
        Ok(found)
    }

    async fn create(&self, wanted: &Wanted) -> Result<(), ProviderError> {
        let route = self.route_to(wanted).await?;
        self.put(&route, Write::Add).await
    }

    async fn replace(&self, old: &Route, wanted: &Wanted) -> Result<(), ProviderError> {
        let route = self.route_to(wanted).await?;
        self.put(&route, Write::Replace).await?;
        // The kernel does not replace a route with another metric, and may prefer it.
        if self.settings.metric_of(old)? == route.metric {
            return Ok(());
        }
        match self.delete(old).await {
            Ok(()) | Err(ProviderError::Gone) => Ok(()),
            Err(_) => Err(ProviderError::Uncertain),
        }
    }

    async fn delete(&self, old: &Route) -> Result<(), ProviderError> {
        let deletion = self.settings.deletion(old)?;
        let deleted = self.routing.delete(&deletion).await;
        deleted.map_err(|error| deleting(&error))
    }

    /// Writes a route, never over a foreign one.
    ///
    /// An add is safe by itself, since the kernel refuses one that would take the place of another
    /// route. Before and after a replacement the table is read, because the kernel does not check
    /// the owner.
    async fn put(&self, route: &KernelRoute, how: Write) -> Result<(), ProviderError> {
        if how == Write::Add {
            match self.routing.write(route, Write::Add).await {
                Err(error) if error.errno() == Some(Errno::EXIST) => {}
                other => return other.map_err(|error| writing(&error)),
            }
        }
        let in_place = table::in_place_of(route, self.read(route.family()).await?);
        if in_place
            .iter()
            .any(|there| there.protocol != route.protocol)
        {
            return Err(ProviderError::Conflict);
        }
        if in_place == [route.clone()] {
            return Ok(());
        }
        let written = self.routing.write(route, Write::Replace).await;
        written.map_err(|error| writing(&error))?;
        let in_place = table::in_place_of(route, self.read(route.family()).await?);
        if in_place == [route.clone()] {
            return Ok(());
        }
        Err(ProviderError::Conflict)
    }

    /// The kernel route for a wanted one; an error if its gateway cannot be reached.
    async fn route_to(&self, wanted: &Wanted) -> Result<KernelRoute, ProviderError> {
        let own = self.own_addresses().await?;
        let (destination, gateway) = self.settings.destination_and_gateway(wanted, &own)?;
        let (interface, on_link) = match &self.settings.gateways {
            Gateways::Direct => (self.directly(gateway).await?, false),
            Gateways::OnLink { interface } => (self.interface(interface).await?, true),
        };
        Ok(self.route(destination, gateway, interface, on_link))
    }

    fn route(
        &self,
        destination: IpNet,
        gateway: IpAddr,
        interface: u32,
        on_link: bool,
    ) -> KernelRoute {
        KernelRoute {
            destination,
            table: self.settings.table,
            protocol: self.settings.protocol,
            metric: self.settings.metric,
            type_of_service: 0,
            kind: RouteKind::Unicast,
            hops: vec![Hop {
                gateway: Some(gateway),
                interface: Some(interface),
                on_link,
            }],
        }
    }

    /// The machine's addresses, cached for a burst of routes.
    async fn own_addresses(&self) -> Result<Arc<[IpAddr]>, ProviderError> {
        let mut known = self.own.lock().await;
        if let Some((read, addresses)) = &*known
            && read.elapsed() < FRESH
        {
            return Ok(addresses.clone());
        }
        let addresses = self.routing.addresses().await;
        let addresses = addresses.map_err(|error| reading(&error))?;
        let addresses: Arc<[IpAddr]> = addresses.iter().map(|entry| entry.address).collect();
        *known = Some((Instant::now(), addresses.clone()));
        Ok(addresses)
    }

    async fn directly(&self, gateway: IpAddr) -> Result<u32, ProviderError> {
        match self.routing.reach(gateway).await {
            Ok(Reach::Direct(interface)) => Ok(interface),
            Ok(Reach::Through(other)) => Err(not_ready(&format!(
                "{gateway} is not on a link of this machine, but behind {other}"
            ))),
            Ok(Reach::Local) => Err(not_ready(&format!(
                "{gateway} is an address of this machine"
            ))),
            Err(error) => Err(writing(&error)),
        }
    }

    async fn interface(&self, name: &str) -> Result<u32, ProviderError> {
        let links = self.routing.links().await;
        let links = links.map_err(|error| reading(&error))?;
        let found = links.iter().find(|link| link.name == name);
        found
            .map(|link| link.interface)
            .ok_or_else(|| not_ready(&format!("interface {name} does not exist")))
    }
}

/// All attributes by which the kernel identifies a route of ours.
fn deletion(route: &KernelRoute) -> Deletion {
    let gateway = match route.hops[..] {
        [hop] => hop.gateway,
        _ => None,
    };
    Deletion {
        destination: route.destination,
        table: route.table,
        protocol: route.protocol,
        metric: route.metric,
        gateway,
    }
}

/// Treats a route that did not exist as deleted.
fn absent(deleted: Result<(), NetlinkError>) -> Result<(), ProviderError> {
    match deleted {
        Err(error) if error.errno() == Some(Errno::SRCH) => Ok(()),
        other => other.map_err(|error| deleting(&error)),
    }
}

impl Provider for NetlinkProvider {
    fn name(&self) -> &'static str {
        "netlink"
    }

    fn prepare(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(Self::prepare(self))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            parallel: PARALLEL,
            free_lists: true,
            ..Capabilities::default()
        }
    }

    fn list(&self) -> BoxFuture<'_, Answer<Vec<Route>>> {
        Box::pin(async { self.calls.count("list", self.read_all()).await.into() })
    }

    fn apply<'a>(&'a self, step: &'a Step) -> BoxFuture<'a, Answer<()>> {
        Box::pin(async move {
            let calls = &self.calls;
            let done = match &step.action {
                RouteAction::Create { new, .. } => calls.count("create", self.create(new)).await,
                RouteAction::Replace { old, new, .. } => {
                    calls.count("replace", self.replace(old, new)).await
                }
                RouteAction::Delete { old, .. } => calls.count("delete", self.delete(old)).await,
            };
            done.into()
        })
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.changed.notified())
    }
}
