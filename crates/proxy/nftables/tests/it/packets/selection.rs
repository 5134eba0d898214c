//! Endpoints that are chosen by readiness and topology, as packets find them.

use serde_json::{Value, json};
use weft_model::Protocol;
use weft_testkit::{cluster::NODE, lab};

use super::{
    EVERYWHERE, Network, Reply,
    Sender::{Client, Node, PodA},
    answered, at, cluster_ip, networks, servers, service, set_of, slice, to,
};

/// A slice of which each endpoint is changed by its place.
fn changed(network: &Network, name: &str, change: impl Fn(&str, &mut Value)) -> Value {
    let mut slice = slice(network.family, name, &EVERYWHERE);
    for (place, endpoint) in EVERYWHERE
        .iter()
        .zip(slice["endpoints"].as_array_mut().unwrap())
    {
        change(place, endpoint);
    }
    slice
}

#[test]
fn terminating_endpoints_serve_until_another_is_ready() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let terminating = json!({"ready": false, "serving": true, "terminating": true});
            let unready = json!({"ready": false, "serving": false, "terminating": false});
            let local = json!({"type": "NodePort", "externalTrafficPolicy": "Local"});
            let of = |network: &Network, name: &str, ready: &[&str], serving: &[&str]| {
                changed(network, name, |place, endpoint| {
                    if serving.contains(&place) {
                        endpoint["conditions"] = terminating.clone();
                    } else if !ready.contains(&place) {
                        endpoint["conditions"] = unready.clone();
                    }
                })
            };
            let front = to(cluster_ip(family, 40), 80);
            let node_port = to(at(family, "node"), 30041);
            for (ready, serving, expected) in [
                (&["pod-a"][..], &["pod-b", "remote"][..], &["pod-a"][..]),
                (&[], &["pod-b", "remote"], &["pod-b", "remote"]),
                (&["remote"], &["pod-a", "pod-b"], &["remote"]),
            ] {
                let slices = ["web", "local"].map(|name| of(&network, name, ready, serving));
                network.program(&[
                    service(family, "web", 40, &json!({})),
                    service(family, "local", 41, &local),
                ]);
                network.program(&slices);
                assert_eq!(servers(&network, PodA, front, 40), set_of(expected));
                // Of the node's own, a ready one first and else one that still serves.
                let own: Vec<&str> = match ready {
                    ["pod-a"] => vec!["pod-a"],
                    [] => vec!["pod-b"],
                    _ => vec!["pod-a", "pod-b"],
                };
                assert_eq!(servers(&network, Client, node_port, 40), set_of(&own));
            }
            let slices = ["web", "local"].map(|name| of(&network, name, &[], &[]));
            network.program(&slices);
            assert_eq!(network.ask(PodA, front, Protocol::Tcp), Reply::Refused);
        }
    });
}

#[test]
fn hints_keep_connections_in_the_zone_and_on_the_node() {
    lab::inside(|lab| {
        for mut network in networks(lab) {
            let family = network.family;
            let front = to(cluster_ip(family, 42), 80);
            let zone = |name: &str| json!({"forZones": [{"name": name}]});
            let in_zones = changed(&network, "web", |place, endpoint| {
                endpoint["hints"] = zone(if place == "remote" { "north" } else { "south" });
            });
            network.program(&[service(family, "web", 42, &json!({}))]);
            network.program(&[in_zones]);
            assert_eq!(
                servers(&network, PodA, front, 60),
                set_of(&EVERYWHERE),
                "no zone here"
            );
            for (name, expected) in [("north", &["remote"][..]), ("south", &["pod-a", "pod-b"])] {
                network.world.model.set_zone(Some(name.into()));
                network.sync();
                for sender in [PodA, Node] {
                    assert_eq!(servers(&network, sender, front, 40), set_of(expected));
                }
            }
            // As trafficDistribution PreferSameNode asks for.
            let on_nodes = changed(&network, "web", |place, endpoint| {
                let node = if place == "pod-b" { NODE } else { "node-1" };
                endpoint["hints"] = zone("south");
                endpoint["hints"]["forNodes"] = json!([{"name": node}]);
            });
            network.program(&[on_nodes]);
            let (server, _) = answered(network.ask(PodA, front, Protocol::Tcp));
            assert_eq!(server, "pod-b");
            assert_eq!(servers(&network, PodA, front, 20), set_of(&["pod-b"]));
        }
    });
}
