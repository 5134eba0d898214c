//! The kernel's own route table: every node leads packets for other nodes' pods to these nodes.
//!
//! A route is ours if it carries our protocol number, and only such routes are ever changed. It has
//! a metric of its own, because the kernel takes the metric, and not the protocol, to tell which
//! route a new one replaces.
//!
//! Nodes have to be on one link, since a kernel sends packets only to gateways that it reaches
//! directly. Where that is not so, the network between the nodes needs the routes, and another
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
use weft_routes::{Action, ProviderError, Route, Step, Wanted};

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

/// How many changes are under way at once. The kernel does one after the other anyway; this only
/// keeps its answers from being waited for one by one.
const PARALLEL: usize = 16;
/// How long the machine's addresses are believed.
const FRESH: Duration = Duration::from_secs(1);

/// The routes of one network namespace.
#[derive(Debug)]
pub struct NetlinkProvider {
    routing: Routing,
    settings: NetlinkSettings,
    calls: Calls,
    changed: Arc<Notify>,
    own: Mutex<Option<(Instant, Arc<[IpAddr]>)>>,
    /// Ends with the provider.
    _follower: JoinSet<()>,
}

/// Why the provider cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It must not run like this.
    #[error("unusable settings")]
    Settings(#[from] SettingsError),
    /// The kernel does not let it.
    #[error("no way to the kernel's routes")]
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

    /// Counts calls there.
    #[must_use]
    pub fn counting(mut self, calls: Calls) -> Self {
        self.calls = calls;
        self
    }

    /// Makes the fallback routes if the settings want them, and removes them if not. Whoever only
    /// observes does not call it.
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

    /// Deletes every route of ours, and says how many there were: for an operator who wants the
    /// node as it was. Otherwise routes outlive the process, so that packets flow while it restarts.
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
        // With another metric the old one was not replaced, and it may be preferred.
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

    /// Writes a route, never over one that is not ours.
    ///
    /// Adding is safe by itself, since the kernel refuses what would take another's place. Before
    /// a replacement the table is read, and afterwards too: what counts is what packets do.
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

    /// The route that the kernel shall have, if its gateway can be reached.
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

    /// The machine's addresses, read once for a burst of routes.
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
            .ok_or_else(|| not_ready(&format!("there is no interface {name}")))
    }
}

/// Everything by which the kernel can tell a route of ours from others.
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

/// What is deleted shall not be there: if it was not, so much the better.
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
                Action::Create { new, .. } => calls.count("create", self.create(new)).await,
                Action::Replace { old, new, .. } => {
                    calls.count("replace", self.replace(old, new)).await
                }
                Action::Delete { old, .. } => calls.count("delete", self.delete(old)).await,
            };
            done.into()
        })
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.changed.notified())
    }
}
