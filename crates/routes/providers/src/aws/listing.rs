//! Conversion of EC2 route tables to routes.

use std::collections::BTreeMap;

use weft_model::SharedStr;
use weft_routes::{Cidr, Mark, NextHop, Route, RouteTarget};

use super::wire::{RouteTable, TableRoute};

/// Merges the routes of all tables.
///
/// A destination that is missing in some tables, or differs between them, is listed as a blackhole:
/// then it is replaced in all tables if its node exists, and deleted in all tables if not.
pub(super) fn routes(tables: &[RouteTable]) -> Vec<Route> {
    let mut merged: BTreeMap<Cidr, (Route, usize)> = BTreeMap::new();
    for route in tables.iter().flat_map(|table| &table.routes.items) {
        let Some(route) = read(route) else {
            continue;
        };
        let entry = merged.entry(route.destination.clone());
        let (known, times) = entry.or_insert_with(|| (route.clone(), 0));
        *times += 1;
        known.blackhole |= route.blackhole || known.next_hop != route.next_hop;
        if route.mark == Mark::Foreign {
            known.mark = Mark::Foreign;
        }
    }
    let whole = tables.len();
    let routes = merged.into_values().map(|(mut route, times)| {
        route.blackhole |= times < whole && route.mark != Mark::Foreign;
        route
    });
    routes.collect()
}

/// Converts a route. One to an instance, or left over from an instance, may be ours; all others are
/// foreign. `None` for destinations that are not a range, such as a prefix list.
fn read(route: &TableRoute) -> Option<Route> {
    let v4 = route.destination_cidr_block.as_deref();
    let destination = v4.or(route.destination_ipv6_cidr_block.as_deref())?;
    let blackhole = route.state.as_deref() == Some("blackhole");
    let instance = filled(route.instance_id.as_ref());
    // Routes of a terminated instance keep at most the interface.
    let ours = instance.is_some() || (blackhole && !leads_elsewhere(route));
    Some(Route {
        destination: Cidr::parse(destination),
        target: RouteTarget::Unknown,
        next_hop: instance.map(|id| NextHop::Instance(SharedStr::new(id))),
        target_addresses: None,
        blackhole,
        mark: if ours { Mark::None } else { Mark::Foreign },
        id: None,
    })
}

fn leads_elsewhere(route: &TableRoute) -> bool {
    let targets = [
        &route.gateway_id,
        &route.nat_gateway_id,
        &route.transit_gateway_id,
        &route.local_gateway_id,
        &route.carrier_gateway_id,
        &route.egress_only_internet_gateway_id,
        &route.vpc_peering_connection_id,
        &route.core_network_arn,
    ];
    let mut named = targets.into_iter().map(|target| filled(target.as_ref()));
    named.any(|target| target.is_some())
}

fn filled(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::wire::Items;

    fn route(destination: &str, instance: &str) -> TableRoute {
        TableRoute {
            destination_cidr_block: Some(destination.to_owned()),
            instance_id: Some(instance.to_owned()),
            state: Some("active".to_owned()),
            ..TableRoute::default()
        }
    }

    fn table(id: &str, items: Vec<TableRoute>) -> RouteTable {
        RouteTable {
            id: id.to_owned(),
            routes: Items { items },
        }
    }

    #[test]
    fn a_destination_is_whole_when_all_tables_agree() {
        let both = || vec![route("10.1.0.0/24", "i-1"), route("10.2.0.0/24", "i-2")];
        let listed = routes(&[table("a", both()), table("b", both())]);
        assert_eq!(listed.len(), 2);
        assert!(listed.iter().all(|route| !route.blackhole));
    }

    #[test]
    fn a_destination_that_is_missing_or_different_somewhere_is_broken() {
        let one = table(
            "a",
            vec![route("10.1.0.0/24", "i-1"), route("10.2.0.0/24", "i-2")],
        );
        let other = table("b", vec![route("10.2.0.0/24", "i-3")]);
        let listed = routes(&[one, other]);
        assert_eq!(listed.len(), 2);
        assert!(listed.iter().all(|route| route.blackhole));
    }

    #[test]
    fn what_leads_to_no_instance_is_foreign_unless_an_instance_was_there() {
        let local = TableRoute {
            gateway_id: Some("local".to_owned()),
            instance_id: Some(String::new()),
            ..route("10.0.0.0/16", "")
        };
        let interface = |state: &str| TableRoute {
            instance_id: None,
            network_interface_id: Some("eni-1".to_owned()),
            state: Some(state.to_owned()),
            ..route("10.3.0.0/24", "")
        };
        let gone_gateway = TableRoute {
            instance_id: None,
            nat_gateway_id: Some("nat-1".to_owned()),
            state: Some("blackhole".to_owned()),
            ..route("10.4.0.0/24", "")
        };
        let mark = |route: &TableRoute| read(route).unwrap().mark;
        assert_eq!(mark(&local), Mark::Foreign);
        assert_eq!(mark(&interface("active")), Mark::Foreign);
        assert_eq!(mark(&interface("blackhole")), Mark::None);
        assert_eq!(mark(&gone_gateway), Mark::Foreign);
    }

    #[test]
    fn a_prefix_list_is_not_listed() {
        assert_eq!(read(&TableRoute::default()), None);
    }
}
