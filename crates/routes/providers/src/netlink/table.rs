//! Conversion between kernel routes and the routes of plans.

use std::net::IpAddr;

use ipnet::IpNet;
use weft_host::routing::{Deletion, Hop, KernelRoute, RouteKind};
use weft_model::{IpFamily, SharedStr};
use weft_routes::{Cidr, Mark, NextHop, ProviderError, Route, RouteTarget, Wanted};

use super::{FALLBACK_METRIC, NetlinkSettings};

/// Prefix of the ID of a route whose metric is not the configured one.
const METRIC: &str = "metric ";

impl NetlinkSettings {
    /// Converts a kernel route; `None` if it is neither ours nor in the cluster's ranges.
    ///
    /// A route of ours that does not lead to exactly one gateway is listed as a blackhole, so that
    /// it is replaced or deleted.
    pub(super) fn list(&self, route: &KernelRoute) -> Option<Route> {
        let ours = route.protocol == self.protocol;
        if self.is_fallback(route) || !(ours || self.covers(&route.destination)) {
            return None;
        }
        let gateway = match route.hops[..] {
            [
                Hop {
                    gateway: Some(gateway),
                    ..
                },
            ] if route.kind == RouteKind::Unicast => Some(gateway),
            _ => None,
        };
        let strange = ours && route.metric != self.metric;
        let mark = match route.hops[..] {
            _ if ours => Mark::Ours,
            [
                Hop {
                    gateway: None,
                    interface: Some(_),
                    ..
                },
            ] if route.kind == RouteKind::Unicast => Mark::Connected,
            _ => Mark::Foreign,
        };
        Some(Route {
            destination: Cidr::from(route.destination),
            target: RouteTarget::Unknown,
            next_hop: gateway.map(NextHop::Address),
            target_addresses: None,
            blackhole: ours && gateway.is_none(),
            mark,
            id: strange.then(|| SharedStr::new(&format!("{METRIC}{}", route.metric))),
        })
    }

    fn is_fallback(&self, route: &KernelRoute) -> bool {
        route.protocol == self.protocol
            && route.metric == FALLBACK_METRIC
            && self.cluster_cidrs.contains(&route.destination)
    }

    /// The kernel metric of a listed route of ours.
    pub(super) fn metric_of(&self, route: &Route) -> Result<u32, ProviderError> {
        let Some(id) = &route.id else {
            return Ok(self.metric);
        };
        let metric = id.strip_prefix(METRIC).and_then(|text| text.parse().ok());
        metric.ok_or_else(|| invalid(&format!("{id} is not the ID of a route in this table")))
    }

    /// All attributes by which the kernel identifies a listed route of ours.
    pub(super) fn deletion(&self, route: &Route) -> Result<Deletion, ProviderError> {
        if route.mark.is_foreign() {
            return Err(invalid("cannot delete a foreign route"));
        }
        let gateway = match &route.next_hop {
            Some(NextHop::Address(gateway)) => Some(*gateway),
            Some(NextHop::Instance(id)) => {
                return Err(invalid(&format!("{id} is not an address")));
            }
            None => None,
        };
        Ok(Deletion {
            destination: net(&route.destination)?,
            table: self.table,
            protocol: self.protocol,
            metric: self.metric_of(route)?,
            gateway,
        })
    }

    /// Destination and gateway of a wanted route; an error if it would do harm.
    pub(super) fn destination_and_gateway(
        &self,
        wanted: &Wanted,
        own: &[IpAddr],
    ) -> Result<(IpNet, IpAddr), ProviderError> {
        let destination = net(&wanted.destination)?;
        if destination.prefix_len() == 0 {
            return Err(invalid("would be a default route"));
        }
        if !self.covers(&destination) {
            return Err(invalid("outside the cluster's ranges"));
        }
        let Some(gateway) = wanted.address() else {
            return Err(invalid("node has no address for the next hop"));
        };
        if IpFamily::of(gateway) != IpFamily::of(destination.addr()) {
            return Err(invalid("next hop is of the other family"));
        }
        if destination.contains(&gateway) {
            return Err(invalid(&format!("contains its own next hop {gateway}")));
        }
        // Packets to this machine would still arrive, but not those to its neighbours.
        if let Some(address) = own.iter().find(|address| destination.contains(*address)) {
            return Err(invalid(&format!("contains {address} of this machine")));
        }
        Ok((destination, gateway))
    }
}

/// The unreachable route that catches packets to unassigned ranges.
pub(super) fn fallback(settings: &NetlinkSettings, destination: IpNet) -> KernelRoute {
    KernelRoute {
        destination,
        table: settings.table,
        protocol: settings.protocol,
        metric: FALLBACK_METRIC,
        type_of_service: 0,
        kind: RouteKind::Unreachable,
        hops: Vec::new(),
    }
}

/// The routes that the kernel would replace by this one.
pub(super) fn in_place_of(route: &KernelRoute, mut routes: Vec<KernelRoute>) -> Vec<KernelRoute> {
    routes.retain(|there| {
        there.destination == route.destination
            && there.metric == route.metric
            && there.type_of_service == route.type_of_service
    });
    routes
}

fn net(cidr: &Cidr) -> Result<IpNet, ProviderError> {
    cidr.net().map_err(|error| invalid(&error.to_string()))
}

fn invalid(reason: &str) -> ProviderError {
    ProviderError::Invalid(SharedStr::new(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> NetlinkSettings {
        let cidrs = ["10.244.0.0/16", "fd00:10::/48"].map(|text| text.parse().unwrap());
        NetlinkSettings::new(cidrs)
    }

    fn kernel(destination: &str, protocol: u8, gateways: &[&str]) -> KernelRoute {
        let hop = |gateway: &&str| Hop {
            gateway: gateway.parse().ok(),
            interface: Some(2),
            on_link: false,
        };
        KernelRoute {
            destination: destination.parse().unwrap(),
            table: 254,
            protocol,
            metric: 201,
            type_of_service: 0,
            kind: RouteKind::Unicast,
            hops: gateways.iter().map(hop).collect(),
        }
    }

    fn wanted(destination: &str, gateway: &str) -> Wanted {
        Wanted {
            destination: Cidr::parse(destination),
            node: "node-2".into(),
            uid: "2".into(),
            next_hop: Some(NextHop::Address(gateway.parse().unwrap())),
            addresses: Vec::new(),
            provider_id: None,
        }
    }

    #[test]
    fn our_routes_are_listed_wherever_they_are_and_others_in_the_clusters_ranges() {
        let settings = settings();
        let listed = |route: &KernelRoute| {
            let route = settings.list(route)?;
            Some((route.mark, route.next_hop.is_some(), route.blackhole))
        };
        let ours = kernel("10.244.1.0/24", 201, &["10.0.0.1"]);
        assert_eq!(listed(&ours), Some((Mark::Ours, true, false)));
        let far = kernel("192.0.2.0/24", 201, &["10.0.0.1"]);
        assert_eq!(listed(&far), Some((Mark::Ours, true, false)));
        let bridge = kernel("10.244.9.0/24", 2, &["-"]);
        assert_eq!(listed(&bridge), Some((Mark::Connected, false, false)));
        let mut dropping = kernel("10.244.9.0/24", 4, &[]);
        dropping.kind = RouteKind::Blackhole;
        assert_eq!(listed(&dropping), Some((Mark::Foreign, false, false)));
        let gateway = kernel("10.244.9.0/24", 4, &["10.0.0.9"]);
        assert_eq!(listed(&gateway), Some((Mark::Foreign, true, false)));
        assert_eq!(listed(&kernel("0.0.0.0/0", 16, &["10.0.0.9"])), None);
        assert_eq!(listed(&kernel("10.0.0.0/24", 2, &["-"])), None);
    }

    #[test]
    fn a_route_of_ours_with_no_gateway_or_with_two_leads_nowhere() {
        let settings = settings();
        let mut dropping = kernel("10.244.1.0/24", 201, &[]);
        dropping.kind = RouteKind::Blackhole;
        let two = kernel("10.244.1.0/24", 201, &["10.0.0.1", "10.0.0.2"]);
        let direct = kernel("10.244.1.0/24", 201, &["-"]);
        for route in [dropping, two, direct] {
            let listed = settings.list(&route).unwrap();
            assert!(listed.blackhole && listed.next_hop.is_none(), "{route:?}");
            assert_eq!(settings.deletion(&listed).unwrap().gateway, None);
        }
    }

    #[test]
    fn a_deletion_names_the_metric_that_was_listed() {
        let settings = settings();
        let mut route = kernel("10.244.1.0/24", 201, &["10.0.0.1"]);
        for metric in [201, 7, 0] {
            route.metric = metric;
            let listed = settings.list(&route).unwrap();
            assert_eq!(listed.id.is_none(), metric == 201);
            assert_eq!(
                settings.deletion(&listed).unwrap(),
                Deletion {
                    destination: route.destination,
                    table: 254,
                    protocol: 201,
                    metric,
                    gateway: route.hops[0].gateway,
                }
            );
        }
        let foreign = settings.list(&kernel("10.244.1.0/24", 4, &["10.0.0.1"]));
        let refused = settings.deletion(&foreign.unwrap());
        assert!(matches!(refused, Err(ProviderError::Invalid(_))));
    }

    #[test]
    fn the_fallback_is_not_listed_and_what_only_looks_like_it_is() {
        let settings = settings();
        for net in settings.cluster_cidrs.clone() {
            assert_eq!(settings.list(&fallback(&settings, net)), None);
        }
        let narrow = fallback(&settings, "10.244.1.0/24".parse().unwrap());
        assert!(settings.list(&narrow).unwrap().blackhole);
    }

    #[test]
    fn harmful_routes_are_refused_with_a_reason() {
        let settings = settings();
        let own = ["10.0.0.1".parse().unwrap(), "10.244.7.1".parse().unwrap()];
        let check = |destination, gateway| {
            let outcome = settings.destination_and_gateway(&wanted(destination, gateway), &own);
            outcome.map_err(|error| error.to_string())
        };
        assert!(check("10.244.2.0/24", "10.0.0.2").is_ok());
        assert!(check("fd00:10:0:2::/64", "fd00::2").is_ok());
        for (destination, gateway, reason) in [
            ("0.0.0.0/0", "10.0.0.2", "refused: would be a default route"),
            (
                "10.245.0.0/24",
                "10.0.0.2",
                "refused: outside the cluster's ranges",
            ),
            (
                "10.0.0.0/8",
                "10.0.0.2",
                "refused: outside the cluster's ranges",
            ),
            (
                "10.244.2.0/24",
                "10.244.2.1",
                "refused: contains its own next hop 10.244.2.1",
            ),
            (
                "10.244.7.0/24",
                "10.0.0.2",
                "refused: contains 10.244.7.1 of this machine",
            ),
            (
                "10.244.2.0/24",
                "fd00::2",
                "refused: next hop is of the other family",
            ),
            ("10.244.2.0", "10.0.0.2", "refused: not a CIDR"),
        ] {
            assert_eq!(check(destination, gateway), Err(reason.to_owned()));
        }
    }
}
