//! Watches kernel events and reports when the table has to be read again.
//!
//! On a node links, addresses and routes come and go with every pod, and none of that concerns
//! other nodes. Relevant are events of interfaces with node addresses, of our routes, and of
//! foreign routes in the cluster's ranges.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use weft_host::{
    addresses::InterfaceAddress,
    routing::{Change, Event, Events, KernelRoute, Routing},
};

use super::{Gateways, NetlinkSettings};

/// Time without relevant events before a change is reported: changes come in bursts.
const QUIET: Duration = Duration::from_millis(200);
/// Longest delay of a report: a link that keeps flapping must not delay the repair of routes for
/// ever.
const LONGEST: Duration = Duration::from_secs(1);

/// Filter of events: relevant ones may have removed a route of ours or made room for one.
#[derive(Debug)]
pub(super) struct Follower {
    settings: NetlinkSettings,
    /// Netlink port of our own writes, whose events are ignored.
    own_port: u32,
    /// Interfaces that have, or had, node addresses; `None` if all of them count.
    interfaces: Option<HashSet<u32>>,
    /// Last known state of links: many link events do not change it.
    links: HashMap<u32, bool>,
    changed: Arc<Notify>,
}

impl Follower {
    pub(super) fn new(settings: &NetlinkSettings, own_port: u32, changed: Arc<Notify>) -> Self {
        Self {
            settings: settings.clone(),
            own_port,
            interfaces: None,
            links: HashMap::new(),
            changed,
        }
    }

    /// Follows events until their connection breaks; after that the table is read periodically
    /// only.
    pub(super) async fn follow(mut self, routing: Routing, mut events: Events) {
        self.learn(&routing).await;
        while let Some(event) = events.next().await {
            if self.matters(&event) {
                let lost = self.wait_until_quiet(&mut events).await;
                self.changed.notify_one();
                if lost {
                    return;
                }
                self.learn(&routing).await;
            }
        }
        self.changed.notify_one();
    }

    /// Reads which interfaces have node addresses, if that is not known. With on-link gateways, or
    /// if it cannot be read, all interfaces count.
    async fn learn(&mut self, routing: &Routing) {
        if self.interfaces.is_none()
            && self.settings.gateways == Gateways::Direct
            && let Ok(addresses) = routing.addresses().await
        {
            self.know(&addresses);
        }
    }

    fn know(&mut self, addresses: &[InterfaceAddress]) {
        let own = addresses
            .iter()
            .filter(|entry| self.is_of_node(entry.address));
        self.interfaces = Some(own.map(|entry| entry.interface).collect());
    }

    /// True if other nodes may be reached from this address: not loopback, IPv6 link-local or in
    /// the cluster's ranges.
    fn is_of_node(&self, address: IpAddr) -> bool {
        let local = match address {
            IpAddr::V4(address) => address.is_loopback(),
            IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
        };
        !local && !self.settings.covers(&address.into())
    }

    fn is_of_interest(&self, interface: u32) -> bool {
        let known = self.interfaces.as_ref();
        known.is_none_or(|known| known.contains(&interface))
    }

    /// Waits for the end of a burst. Returns true if the connection broke.
    async fn wait_until_quiet(&mut self, events: &mut Events) -> bool {
        let begun = Instant::now();
        let mut until = begun + QUIET;
        loop {
            tokio::select! {
                () = sleep_until(until) => return false,
                event = events.next() => match event {
                    None => return true,
                    Some(event) if self.matters(&event) => {
                        until = (Instant::now() + QUIET).min(begun + LONGEST);
                    }
                    Some(_) => {}
                },
            }
        }
    }

    fn matters(&mut self, event: &Event) -> bool {
        match &event.change {
            Change::Link { interface, up } => {
                let news = self.links.insert(*interface, *up) != Some(*up);
                news && self.is_of_interest(*interface)
            }
            Change::LinkGone { interface } => {
                self.links.remove(interface);
                self.is_of_interest(*interface)
            }
            Change::Address(entry) => {
                let own = self.is_of_node(entry.address);
                if let Some(interfaces) = self.interfaces.as_mut().filter(|_| own) {
                    interfaces.insert(entry.interface);
                }
                own
            }
            // Address events may be lost, so all interfaces count until the addresses are read
            // again.
            Change::Lost => {
                self.interfaces = None;
                self.links.clear();
                true
            }
            Change::RouteWritten(route) | Change::RouteDeleted(route) => {
                event.port != self.own_port && self.is_in_our_way(route)
            }
        }
    }

    /// True if a route in our table is ours, or could take the place of one. Foreign routes to
    /// single addresses are ignored: they lead to pods of this node.
    fn is_in_our_way(&self, route: &KernelRoute) -> bool {
        let destination = &route.destination;
        let single = destination.prefix_len() == destination.max_prefix_len();
        route.table == self.settings.table
            && (route.protocol == self.settings.protocol
                || (self.settings.covers(destination) && !single))
    }
}

#[cfg(test)]
mod tests {
    use weft_host::routing::RouteKind;

    use super::*;

    const OWN: u32 = 77;

    fn follower() -> Follower {
        let settings = NetlinkSettings::new(["10.244.0.0/16".parse().unwrap()]);
        Follower::new(&settings, OWN, Arc::default())
    }

    fn route(destination: &str, protocol: u8) -> KernelRoute {
        KernelRoute {
            destination: destination.parse().unwrap(),
            table: 254,
            protocol,
            metric: 201,
            type_of_service: 0,
            kind: RouteKind::Unicast,
            hops: Vec::new(),
        }
    }

    fn address(text: &str, interface: u32) -> InterfaceAddress {
        InterfaceAddress {
            address: text.parse().unwrap(),
            prefix_length: 24,
            interface,
        }
    }

    #[test]
    fn a_link_of_the_node_matters_when_packets_begin_or_cease_to_pass() {
        let mut follower = follower();
        let mut matters = |interface, up| {
            let change = Change::Link { interface, up };
            follower.matters(&Event { change, port: 0 })
        };
        assert!(matters(2, true), "nothing was known of it");
        assert!(!matters(2, true));
        assert!(matters(2, false));
        assert!(!matters(2, false));
        assert!(matters(2, true));
    }

    #[test]
    fn links_and_addresses_of_pods_are_ignored() {
        let mut follower = follower();
        let known = [
            address("127.0.0.1", 1),
            address("10.0.0.1", 2),
            address("10.244.1.1", 3),
            address("fe80::1", 4),
        ];
        follower.know(&known);
        let mut matters = |change| follower.matters(&Event { change, port: 0 });
        let link = |interface, up| Change::Link { interface, up };
        assert!(matters(link(2, true)));
        assert!(!matters(link(3, true)));
        assert!(!matters(link(4, true)));
        assert!(!matters(Change::LinkGone { interface: 3 }));
        assert!(matters(Change::LinkGone { interface: 2 }));
        assert!(!matters(Change::Address(address("fe80::9", 5))));
        assert!(!matters(Change::Address(address("10.244.1.1", 5))));
        assert!(!matters(link(5, true)));
        assert!(matters(Change::Address(address("10.0.0.9", 5))));
        assert!(matters(link(5, false)));
        assert!(matters(Change::Lost));
        assert!(matters(link(3, true)), "an address of it may be lost");
    }

    #[test]
    fn our_own_writes_other_tables_other_ranges_and_single_addresses_are_ignored() {
        let mut follower = follower();
        let mut matters = |change, port| follower.matters(&Event { change, port });
        let ours = route("10.244.1.0/24", 201);
        assert!(!matters(Change::RouteDeleted(ours.clone()), OWN));
        assert!(!matters(Change::RouteWritten(ours.clone()), OWN));
        assert!(matters(Change::RouteDeleted(ours.clone()), 0));
        assert!(matters(Change::RouteWritten(route("10.244.1.0/24", 4)), 9));
        assert!(!matters(Change::RouteWritten(route("10.244.1.7/32", 4)), 9));
        assert!(!matters(Change::RouteWritten(route("192.0.2.0/24", 4)), 9));
        let elsewhere = KernelRoute { table: 9, ..ours };
        assert!(!matters(Change::RouteDeleted(elsewhere), 9));
    }
}
