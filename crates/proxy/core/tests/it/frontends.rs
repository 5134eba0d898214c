//! Frontends derived from Services: families, addresses, policies and invalid values.

use std::sync::Arc;

use serde_json::{Value, json};
use weft_model::{IpFamily, Protocol};
use weft_proxy::{Effect, Frontend};

use crate::world::{derive, model, port, service, set, texts};

fn frontend(spec: &Value) -> Arc<Frontend> {
    port(&[service(spec, &json!([]))]).frontend
}

#[test]
fn services_that_are_not_served_here() {
    let cases = [
        json!({"clusterIP": ""}),
        json!({"clusterIP": "None"}),
        json!({"type": "ExternalName"}),
        json!({"ports": []}),
        json!({"ipFamilies": ["IPv6"], "clusterIPs": ["fd00::1"]}),
        json!({"ipFamilies": ["IPv6", "IPv4"], "clusterIPs": ["fd00::1"]}),
    ];
    for spec in cases {
        let found = derive(IpFamily::V4, &[service(&spec, &json!([]))]);
        assert!(found.is_none(), "{spec}: {found:?}");
    }
    let mut other = service(&json!({}), &json!([]));
    other["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "x"});
    assert!(derive(IpFamily::V4, &[other]).is_none());
}

#[test]
fn each_family_has_the_cluster_ip_at_its_place() {
    let spec = json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1", "010.96.0.009"],
                      "ipFamilies": ["IPv6", "IPv4"]});
    for (family, expected) in [(IpFamily::V4, "10.96.0.9"), (IpFamily::V6, "fd00::1")] {
        let found = derive(family, &[service(&spec, &json!([]))]).unwrap();
        let cluster_ip = found.ports[0].frontend.cluster_ip;
        assert_eq!(cluster_ip.to_string(), expected);
    }
    let old = json!({"ipFamilies": null, "clusterIPs": null});
    assert_eq!(frontend(&old).cluster_ip.to_string(), "10.96.0.1");
}

#[test]
fn addresses_are_those_of_the_family_in_their_order() {
    let spec = json!({"type": "LoadBalancer",
        "externalIPs": ["198.51.100.9", "2001:db8::9", "", "198.51.100.7", "nonsense"]});
    let ingress = json!([{"ip": "192.0.2.9", "ipMode": "VIP"}, {"ip": "192.0.2.8", "ipMode": "Proxy"},
        {"hostname": "lb.example.com"}, {"ip": "2001:db8::1"}, {"ip": "192.0.2.7"}]);
    let found = port(&[service(&spec, &ingress)]).frontend;
    assert_eq!(texts(&found.external_ips), ["198.51.100.9", "198.51.100.7"]);
    assert_eq!(texts(&found.load_balancer_ips), ["192.0.2.9", "192.0.2.7"]);
}

#[test]
fn source_ranges_that_let_everyone_in_are_none() {
    let ranges = |list: Value| {
        let spec = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": list});
        texts(&frontend(&spec).source_ranges)
    };
    let some = json!([" 10.1.2.3/8 ", "2001:db8::/32", "10.0.0.0/8", "bad"]);
    assert_eq!(ranges(some), ["10.0.0.0/8", "10.0.0.0/8"]);
    assert_eq!(ranges(json!(["10.0.0.0/8", "0.0.0.0/0"])), [""; 0]);
    assert_eq!(ranges(json!(["10.0.0.0/8", "::/0"])), ["10.0.0.0/8"]);
}

#[test]
fn policies_count_where_there_is_something_they_are_about() {
    // Fields; expected: external local, internal local, health check port, affinity.
    let cases = [
        (json!({}), (false, false, None, None)),
        (
            json!({"externalTrafficPolicy": "Local"}),
            (false, false, None, None),
        ),
        (
            json!({"externalTrafficPolicy": "Local", "externalIPs": ["2001:db8::1"]}),
            (true, false, None, None),
        ),
        (
            json!({"type": "NodePort", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001}),
            (true, false, None, None),
        ),
        (
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001}),
            (true, false, Some(30001), None),
        ),
        (
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 0}),
            (true, false, None, None),
        ),
        (
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Cluster", "healthCheckNodePort": 30001}),
            (false, false, None, None),
        ),
        (
            json!({"internalTrafficPolicy": "Local"}),
            (false, true, None, None),
        ),
        (
            json!({"sessionAffinity": "ClientIP"}),
            (false, false, None, Some(10_800)),
        ),
        (
            json!({"sessionAffinity": "ClientIP",
                   "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}}}),
            (false, false, None, Some(7)),
        ),
        (
            json!({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}}}),
            (false, false, None, None),
        ),
    ];
    for (spec, expected) in cases {
        let found = frontend(&spec);
        let policies = (
            found.external_local,
            found.internal_local,
            found.health_check_node_port,
            found.affinity,
        );
        assert_eq!(policies, expected, "{spec}");
    }
}

#[test]
fn a_bad_part_is_named_and_the_rest_is_served() {
    let spec = json!({"type": "NodePort", "externalIPs": ["x y"], "ports": [
        {"name": "a", "port": 0}, {"name": "b", "port": 70000}, {"name": "c", "port": 80, "protocol": "ICMP"},
        {"name": "d", "port": 80, "nodePort": 99999}, {"name": "e", "port": 81, "protocol": "UDP"},
        {"name": "f\n-j", "port": 82}]});
    let mut model = model(IpFamily::V4);
    let problems = set(&mut model, &service(&spec, &json!([])));
    let words: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(words.len(), 6, "{words:#?}");
    assert!(
        words
            .iter()
            .all(|text| text.starts_with("Service shop/cart: "))
    );
    let found = model
        .take_changes()
        .remove(&crate::world::key())
        .flatten()
        .unwrap();
    let ports: Vec<_> = found
        .ports
        .iter()
        .map(|p| (&*p.frontend.name, p.frontend.protocol))
        .collect();
    assert_eq!(ports, [("e", Protocol::Udp)]);
}

#[test]
fn of_two_ports_with_one_name_the_later_counts() {
    let spec = json!({"ports": [{"name": "a", "port": 1}, {"name": "a", "port": 2},
                                {"name": "a", "port": 3, "protocol": "UDP"}]});
    let found = derive(IpFamily::V4, &[service(&spec, &json!([]))]).unwrap();
    let ports: Vec<u16> = found.ports.iter().map(|port| port.frontend.port).collect();
    assert_eq!(ports, [2, 3]);
}

#[test]
fn names_too_long_for_a_comment_are_left_out() {
    let mut object = service(&json!({}), &json!([]));
    object["metadata"]["name"] = "x".repeat(253).into();
    let mut model = model(IpFamily::V4);
    assert_eq!(set(&mut model, &object).len(), 1);
    assert!(model.take_changes().is_empty());
}

#[test]
fn an_affinity_timeout_that_no_kernel_accepts_is_clamped_and_reported() {
    let cases = [
        (json!(0), 1),
        (json!(-5), 1),
        (json!(86_401), 86_400),
        (json!(4_294_967_296_i64), 86_400),
    ];
    for (seconds, expected) in cases {
        let spec = json!({"sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}});
        let object = service(&spec, &json!([]));
        assert_eq!(frontend(&spec).affinity, Some(expected), "{seconds}");
        let problems = set(&mut model(IpFamily::V4), &object);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].effect, Effect::Clamped, "{problems:?}");
        assert!(
            problems[0].what.contains(&seconds.to_string()),
            "{problems:?}"
        );
    }
    for seconds in [1, 86_400] {
        let spec = json!({"sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}});
        assert_eq!(frontend(&spec).affinity, Some(seconds));
        let problems = set(&mut model(IpFamily::V4), &service(&spec, &json!([])));
        assert!(problems.is_empty(), "{problems:?}");
    }
}
