//! One hand-made cluster with every feature, and the `iptables-save` of it, kept as text.
//!
//! `WEFT_UPDATE_GOLDEN=1 cargo test -p weft-iptables golden` rewrites the texts from what the
//! kernel prints; review the difference before committing it.

use std::{env, fs, path::PathBuf};

use serde_json::{Value, json};
use weft_host::iptables::Variant;
use weft_iptables::Options;
use weft_model::IpFamily;
use weft_proxy::{LocalDetector, Settings};
use weft_testkit::{cluster::NODE, lab};

use crate::{
    host::{PROGRAMS, saved, world},
    world::OPTIONS,
};

const OTHER: &str = "another-node";

fn service(namespace: &str, name: &str, spec: &Value, ingress: &Value) -> Value {
    json!({"kind": "Service", "metadata": {"namespace": namespace, "name": name}, "spec": spec,
           "status": {"loadBalancer": {"ingress": ingress}}})
}

/// A slice whose endpoints are addresses with the node they are on.
fn slice(namespace: &str, name: &str, ports: &Value, endpoints: &[(&str, &str)]) -> Value {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(address, node)| json!({"addresses": [address], "nodeName": node}))
        .collect();
    let family = match endpoints[0]["addresses"][0].as_str() {
        Some(address) if address.contains(':') => "IPv6",
        _ => "IPv4",
    };
    json!({"kind": "EndpointSlice",
           "metadata": {"namespace": namespace, "name": format!("{name}-{family}"),
                        "labels": {"kubernetes.io/service-name": name}},
           "addressType": family, "endpoints": endpoints, "ports": ports})
}

/// A cluster that kube-proxy v1.36.4 was seen to turn into the same rules, and behind it, in
/// another namespace, what that one lacks.
fn objects() -> Vec<Value> {
    let p80 = |port| json!([{"name": "p80", "port": port, "protocol": "TCP"}]);
    let mut objects = vec![
        service(
            "default",
            "kubernetes",
            &json!({"clusterIP": "10.96.0.1",
            "ports": [{"name": "https", "port": 443}]}),
            &json!([]),
        ),
        slice(
            "default",
            "kubernetes",
            &json!([{"name": "https", "port": 6443}]),
            &[("192.168.0.2", "")],
        ),
        service(
            "ns1",
            "svc1",
            &json!({"clusterIP": "10.96.0.41",
            "clusterIPs": ["10.96.0.41", "fd00:10:96::41"], "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"name": "p80", "port": 80}]}),
            &json!([]),
        ),
        slice(
            "ns1",
            "svc1",
            &p80(80),
            &[
                ("10.180.0.9", NODE),
                ("10.180.0.10", OTHER),
                ("10.180.0.2", OTHER),
            ],
        ),
        slice(
            "ns1",
            "svc1",
            &p80(80),
            &[("fd00:10:180::9", NODE), ("fd00:10:180:1::10", OTHER)],
        ),
        service(
            "ns1",
            "lblocal",
            &json!({"type": "LoadBalancer", "clusterIP": "10.96.0.42",
            "externalTrafficPolicy": "Local", "externalIPs": ["192.168.99.22"],
            "healthCheckNodePort": 30000,
            "ports": [{"name": "p80", "port": 80, "nodePort": 30001}]}),
            &json!([{"ip": "1.2.3.4"}]),
        ),
        slice(
            "ns1",
            "lblocal",
            &p80(8080),
            &[("10.180.0.21", NODE), ("10.180.1.22", OTHER)],
        ),
        service(
            "ns1",
            "lbcluster",
            &json!({"type": "LoadBalancer", "clusterIP": "10.96.0.45",
            "loadBalancerSourceRanges": ["203.0.113.0/25", "192.168.0.0/24"],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}},
            "ports": [{"name": "p80", "port": 80, "nodePort": 30002}]}),
            &json!([{"ip": "5.6.7.8", "ipMode": "VIP"}, {"ip": "5.6.7.9", "ipMode": "Proxy"}]),
        ),
        slice(
            "ns1",
            "lbcluster",
            &p80(8080),
            &[("10.180.0.31", NODE), ("10.180.1.32", OTHER)],
        ),
        service(
            "ns1",
            "empty",
            &json!({"type": "NodePort", "clusterIP": "10.96.0.46",
            "ports": [{"port": 80, "nodePort": 30003}]}),
            &json!([]),
        ),
        service(
            "ns1",
            "multi",
            &json!({"clusterIP": "10.96.0.47", "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            {"name": "sctp", "port": 99, "protocol": "SCTP"}]}),
            &json!([]),
        ),
        slice(
            "ns1",
            "multi",
            &json!([
            {"name": "dns", "port": 5353, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 5353, "protocol": "TCP"},
            {"name": "sctp", "port": 99, "protocol": "SCTP"}]),
            &[("10.180.0.41", NODE)],
        ),
        service(
            "ns1",
            "itp",
            &json!({"clusterIP": "10.96.0.48", "internalTrafficPolicy": "Local",
            "ports": [{"name": "p80", "port": 80}]}),
            &json!([]),
        ),
        slice("ns1", "itp", &p80(80), &[("10.180.1.51", OTHER)]),
    ];
    objects.extend(more());
    objects
}

fn more() -> Vec<Value> {
    let p80 = |port| json!([{"name": "p80", "port": port, "protocol": "TCP"}]);
    let mut ending = slice("ns2", "ending", &p80(8080), &[("10.180.0.61", NODE)]);
    ending["endpoints"][0]["conditions"] =
        json!({"ready": false, "serving": true, "terminating": true});
    vec![
        service(
            "ns2",
            "away",
            &json!({"type": "LoadBalancer", "clusterIP": "10.96.0.51",
            "externalTrafficPolicy": "Local", "externalIPs": ["192.168.99.23"],
            "healthCheckNodePort": 30010,
            "ports": [{"name": "p80", "port": 80, "nodePort": 30011}]}),
            &json!([{"ip": "1.2.3.5"}]),
        ),
        slice("ns2", "away", &p80(8080), &[("10.180.1.71", OTHER)]),
        service(
            "ns2",
            "both",
            &json!({"type": "NodePort", "clusterIP": "10.96.0.52",
            "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local",
            "ports": [{"name": "p80", "port": 80, "nodePort": 30012}]}),
            &json!([]),
        ),
        slice(
            "ns2",
            "both",
            &p80(8080),
            &[("10.180.0.81", NODE), ("10.180.1.82", OTHER)],
        ),
        service(
            "ns2",
            "ending",
            &json!({"clusterIP": "10.96.0.53",
            "ports": [{"name": "p80", "port": 80}]}),
            &json!([]),
        ),
        ending,
        service(
            "ns2",
            "six",
            &json!({"type": "LoadBalancer",
            "clusterIP": "fd00:10:96::54", "clusterIPs": ["fd00:10:96::54"],
            "ipFamilies": ["IPv6"], "externalIPs": ["2001:db8::22"],
            "loadBalancerSourceRanges": ["2001:db8:1::/48", "fd00:192::/64"],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}},
            "ports": [{"name": "p80", "port": 80, "nodePort": 30013}]}),
            &json!([{"ip": "2001:db8::33"}]),
        ),
        slice(
            "ns2",
            "six",
            &p80(8080),
            &[("fd00:10:180::61", NODE), ("fd00:10:180:1::62", OTHER)],
        ),
        service(
            "ns2",
            "six-empty",
            &json!({"type": "NodePort",
            "clusterIP": "fd00:10:96::55", "clusterIPs": ["fd00:10:96::55"],
            "ipFamilies": ["IPv6"],
            "ports": [{"port": 80, "nodePort": 30014}]}),
            &json!([]),
        ),
    ]
}

/// Those of the golden example, where they differ from the other tests'.
fn settings(family: IpFamily) -> Settings {
    let (pods, node_ip) = match family {
        IpFamily::V4 => ("10.180.0.0/16", "192.168.0.2"),
        IpFamily::V6 => ("fd00:10:180::/48", "fd00:192::2"),
    };
    Settings {
        local_detector: Some(LocalDetector::Network(pods.parse().unwrap())),
        node_ip: node_ip.parse().unwrap(),
        ..crate::world::settings(family)
    }
}

fn path(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata");
    directory.join(format!("{name}.save"))
}

/// Both variants print the same, but for the order of their tables.
fn by_table(text: &str) -> String {
    let mut tables: Vec<&str> = text.split_inclusive("COMMIT\n").collect();
    tables.sort_unstable();
    tables.concat()
}

fn check(family: IpFamily, options: Options, name: &str) {
    for variant in Variant::ALL {
        let mut world = world(family, variant, options);
        world.settings = settings(family);
        for object in objects() {
            world.put(&object);
        }
        world.sync();
        let text = by_table(&saved(world.backend.kernel()));
        if env::var_os("WEFT_UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            fs::write(path(name), &text).unwrap();
        }
        let reviewed = fs::read_to_string(path(name)).unwrap_or_default();
        for (real, reviewed) in text.lines().zip(reviewed.lines()) {
            assert_eq!(real, reviewed, "{name} {variant}");
        }
        assert_eq!(text.lines().count(), reviewed.lines().count(), "{name}");
    }
}

#[test]
fn every_feature_is_saved_as_the_reviewed_text_has_it() {
    lab::with_programs(&PROGRAMS, |_| check(IpFamily::V4, OPTIONS, "ipv4"));
}

#[test]
fn every_feature_of_ipv6_is_saved_as_the_reviewed_text_has_it() {
    lab::with_programs(&PROGRAMS, |_| check(IpFamily::V6, OPTIONS, "ipv6"));
}

#[test]
fn a_kernel_without_counters_gets_rules_without_them() {
    lab::with_programs(&PROGRAMS, |_| {
        let options = Options {
            nfacct: false,
            ..OPTIONS
        };
        check(IpFamily::V4, options, "ipv4-uncounted");
    });
}
