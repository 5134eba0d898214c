//! Endpoint selection: readiness, traffic policies and topology hints.

use serde_json::{Value, json};
use weft_model::IpFamily;

use crate::world::{derive, model, port, service, set, slice, texts};

/// An endpoint by its last octet: `r` ready, `s` serving, `t` terminating, `l` on this node.
fn endpoint(octet: u8, flags: &str) -> Value {
    let has = |flag: char| flags.contains(flag);
    json!({"addresses": [format!("10.0.0.{octet}")],
           "conditions": {"ready": has('r'), "serving": has('s') || has('r'), "terminating": has('t')},
           "nodeName": if has('l') { "here" } else { "there" }})
}

fn hinted(octet: u8, flags: &str, zones: &[&str], nodes: &[&str]) -> Value {
    let names =
        |names: &[&str]| -> Vec<Value> { names.iter().map(|name| json!({"name": name})).collect() };
    let mut endpoint = endpoint(octet, flags);
    endpoint["hints"] = json!({"forZones": names(zones), "forNodes": names(nodes)});
    endpoint
}

/// Octets of the selected cluster and local endpoints, and whether any node has one.
fn chosen(spec: &Value, endpoints: &[Value]) -> (Vec<u8>, Vec<u8>, bool) {
    let port = port(&[service(spec, &json!([])), slice("one", &json!(endpoints))]);
    let octets = |list: &[std::net::SocketAddr]| {
        list.iter()
            .map(|address| match address.ip() {
                std::net::IpAddr::V4(ip) => ip.octets()[3],
                std::net::IpAddr::V6(_) => 0,
            })
            .collect()
    };
    (
        octets(&port.cluster),
        octets(&port.local),
        port.has_endpoints,
    )
}

#[test]
fn ready_first_then_those_on_their_way_out() {
    let cluster = json!({});
    let cases = [
        (
            vec![endpoint(1, "r"), endpoint(2, "st"), endpoint(3, "")],
            (vec![1], true),
        ),
        (
            vec![endpoint(1, ""), endpoint(2, "st"), endpoint(3, "t")],
            (vec![2], true),
        ),
        (vec![endpoint(1, "s"), endpoint(2, "t")], (vec![], false)),
        (vec![], (vec![], false)),
    ];
    for (endpoints, (cluster_list, any)) in cases {
        let found = chosen(&cluster, &endpoints);
        assert_eq!((found.0, found.2), (cluster_list, any), "{endpoints:?}");
        assert_eq!(found.1, [0; 0], "no policy asks for local endpoints");
    }
}

#[test]
fn local_policies_take_endpoints_of_this_node() {
    let internal = json!({"internalTrafficPolicy": "Local"});
    let external = json!({"type": "NodePort", "externalTrafficPolicy": "Local",
                          "ports": [{"name": "http", "port": 80, "nodePort": 30000}]});
    // Policy, endpoints; expected: cluster list, local list, any endpoint at all.
    let cases = [
        (
            &internal,
            vec![endpoint(1, "rl"), endpoint(2, "r")],
            (vec![], vec![1], true),
        ),
        (&internal, vec![endpoint(2, "r")], (vec![], vec![], true)),
        (
            &internal,
            vec![endpoint(1, "stl"), endpoint(2, "r")],
            (vec![], vec![1], true),
        ),
        (
            &internal,
            vec![endpoint(1, "l"), endpoint(2, "s")],
            (vec![], vec![], false),
        ),
        (
            &external,
            vec![endpoint(1, "rl"), endpoint(2, "r")],
            (vec![1, 2], vec![1], true),
        ),
        (&external, vec![endpoint(2, "r")], (vec![2], vec![], true)),
        (
            &external,
            vec![endpoint(1, "stl"), endpoint(2, "r")],
            (vec![2], vec![1], true),
        ),
    ];
    for (spec, endpoints, expected) in cases {
        assert_eq!(chosen(spec, &endpoints), expected, "{spec} {endpoints:?}");
    }
}

#[test]
fn hints_count_if_all_have_them_and_one_names_this_node() {
    let cases = [
        // By zone.
        (
            vec![
                hinted(1, "r", &["zone-a"], &[]),
                hinted(2, "r", &["zone-b"], &[]),
            ],
            vec![1],
        ),
        (
            vec![hinted(1, "r", &["zone-a"], &[]), endpoint(2, "r")],
            vec![1, 2],
        ),
        (
            vec![
                hinted(1, "r", &["zone-b"], &[]),
                hinted(2, "r", &["zone-c"], &[]),
            ],
            vec![1, 2],
        ),
        // Hints of endpoints that are not ready are ignored.
        (
            vec![hinted(1, "r", &["zone-a"], &[]), endpoint(2, "")],
            vec![1],
        ),
        // By node, which takes precedence over the zone.
        (
            vec![
                hinted(1, "r", &["zone-a"], &["there"]),
                hinted(2, "r", &["zone-b"], &["here", "there"]),
            ],
            vec![2],
        ),
        (
            vec![
                hinted(1, "r", &["zone-a"], &["there"]),
                hinted(2, "r", &["zone-b"], &["there"]),
            ],
            vec![1],
        ),
        // Terminating endpoints are used without regard to hints.
        (
            vec![
                hinted(1, "st", &["zone-b"], &[]),
                hinted(2, "st", &["zone-a"], &[]),
            ],
            vec![1, 2],
        ),
    ];
    for (endpoints, expected) in cases {
        assert_eq!(chosen(&json!({}), &endpoints).0, expected, "{endpoints:?}");
    }
}

#[test]
fn a_node_that_moves_to_another_zone_uses_other_endpoints() {
    let mut model = model(IpFamily::V4);
    let endpoints = json!([
        hinted(1, "r", &["zone-a"], &[]),
        hinted(2, "r", &["zone-b"], &[])
    ]);
    set(&mut model, &service(&json!({}), &json!([])));
    set(&mut model, &slice("one", &endpoints));
    model.take_changes();
    model.set_zone(Some("zone-b".into()));
    let changed = model
        .take_changes()
        .remove(&crate::world::key())
        .flatten()
        .unwrap();
    assert_eq!(texts(&changed.ports[0].cluster), ["10.0.0.2:8080"]);
    model.set_zone(Some("zone-b".into()));
    assert_eq!(model.news(), 0);
}

#[test]
fn order_is_that_of_the_text() {
    let endpoints: Vec<Value> = [9, 10, 2, 100].map(|octet| endpoint(octet, "r")).into();
    assert_eq!(chosen(&json!({}), &endpoints).0, [100, 10, 2, 9]);
    let mut six = slice(
        "six",
        &json!([{"addresses": ["fd00:10:180::9"]}, {"addresses": ["fd00:10:180:1::10"]}]),
    );
    six["addressType"] = "IPv6".into();
    let spec = json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1"], "ipFamilies": ["IPv6"]});
    let found = derive(IpFamily::V6, &[service(&spec, &json!([])), six]).unwrap();
    assert_eq!(
        texts(&found.ports[0].cluster),
        ["[fd00:10:180:1::10]:8080", "[fd00:10:180::9]:8080"]
    );
}

#[test]
fn slices_come_together_by_port_name_and_protocol() {
    let spec = json!({"ports": [{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"},
                                {"name": "dns", "port": 53, "protocol": "TCP"}]});
    let mut second = slice("two", &json!([endpoint(2, "r")]));
    second["ports"] = json!([{"name": "dns", "port": 5353, "protocol": "UDP"}, {"name": null, "port": 1},
        {"name": "http", "port": null}, {"name": "http", "port": 0}, {"name": "http", "port": 9090}]);
    let objects = [
        service(&spec, &json!([])),
        slice("one", &json!([endpoint(1, "r")])),
        second,
    ];
    let found = derive(IpFamily::V4, &objects).unwrap();
    let lists: Vec<Vec<String>> = found
        .ports
        .iter()
        .map(|port| texts(&port.cluster))
        .collect();
    assert_eq!(lists[0], ["10.0.0.1:8080", "10.0.0.2:9090"]);
    assert_eq!(lists[1], ["10.0.0.2:5353"]);
    assert_eq!(lists[2], [""; 0]);
}

#[test]
fn of_an_address_in_two_slices_the_pod_that_stays_counts() {
    for names in [["a", "b"], ["b", "a"]] {
        let objects = [
            service(&json!({}), &json!([])),
            slice(names[0], &json!([endpoint(1, "r")])),
            slice(names[1], &json!([endpoint(1, "st")])),
        ];
        let port = port(&objects);
        assert_eq!(texts(&port.cluster), ["10.0.0.1:8080"]);
        assert_eq!(port.endpoint_count, 1);
    }
}

#[test]
fn absent_conditions_mean_ready_and_only_the_first_address_counts() {
    let endpoints = json!([{"addresses": ["10.0.0.1", "10.0.0.2"]}, {"addresses": []},
                           {"addresses": ["10.0.0.3"], "conditions": {"ready": null}}]);
    let port = port(&[service(&json!({}), &json!([])), slice("one", &endpoints)]);
    assert_eq!(texts(&port.cluster), ["10.0.0.1:8080", "10.0.0.3:8080"]);
}

#[test]
fn bad_endpoints_are_named_and_the_rest_is_used() {
    let mut model = model(IpFamily::V4);
    set(&mut model, &service(&json!({}), &json!([])));
    let endpoints = json!([{"addresses": ["10.0.0.999"]}, {"addresses": ["fd00::1"]}, {"addresses": ["10.0.0.1"]}]);
    let problems = set(&mut model, &slice("one", &endpoints));
    assert_eq!(problems.len(), 2);
    assert!(
        problems[0]
            .to_string()
            .starts_with("EndpointSlice shop/one: ")
    );
    let found = model
        .take_changes()
        .remove(&crate::world::key())
        .flatten()
        .unwrap();
    assert_eq!(texts(&found.ports[0].cluster), ["10.0.0.1:8080"]);
}

#[test]
fn loopback_and_link_local_endpoints_are_used_as_upstream_does() {
    let endpoints = json!([{"addresses": ["127.0.0.1"]}, {"addresses": ["169.254.1.1"]}]);
    let port = port(&[service(&json!({}), &json!([])), slice("one", &endpoints)]);
    assert_eq!(port.cluster.len(), 2);
}

#[test]
fn a_load_balancer_gets_the_number_of_ready_addresses_on_this_node() {
    let spec = json!({"ports": [{"name": "http", "port": 80}, {"name": "more", "port": 81}]});
    let mut one = slice(
        "one",
        &json!([
            endpoint(1, "rl"),
            endpoint(2, "rl"),
            endpoint(3, "r"),
            endpoint(4, "stl")
        ]),
    );
    one["ports"] = json!([{"name": "http", "port": 8080}, {"name": "more", "port": 8081}]);
    let found = derive(IpFamily::V4, &[service(&spec, &json!([])), one]).unwrap();
    assert_eq!(found.local_ready, 2);
}
