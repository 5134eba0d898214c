//! Hostile objects against the real kernel: the rules that remain are accepted and read back
//! unchanged.

use serde_json::{Value, json};
use weft_model::IpFamily;
use weft_proxy::{AuditReport, Backend as _, ReadBudget, objects::Object};
use weft_testkit::lab;

use crate::{
    host::{PROGRAMS, everywhere, programs, saved, sorted_rules, world},
    world::OPTIONS,
};

/// Everything a field of a Service can be that the API server would not let in.
fn specs(family: IpFamily) -> Vec<Value> {
    let (any, loopback, multicast, link_local, broadcast) = match family {
        IpFamily::V4 => (
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "169.254.1.1",
            "255.255.255.255",
        ),
        IpFamily::V6 => ("::", "::1", "ff02::1", "fe80::1", "ffff:ffff::"),
    };
    let odd = [any, loopback, multicast, link_local, broadcast];
    let affinity = |seconds: i64| {
        json!({"sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}})
    };
    let mut specs: Vec<Value> = [0, -1, 1, 86_400, 86_401, i64::from(u32::MAX), i64::MAX]
        .map(affinity)
        .into();
    specs.extend(odd.map(|address| json!({"clusterIP": address, "clusterIPs": [address]})));
    specs.extend([
        json!({"type": "LoadBalancer", "externalIPs": odd}),
        json!({"type": "LoadBalancer", "externalIPs": [odd[3], odd[3], odd[3]]}),
        json!({"type": "LoadBalancer", "loadBalancerSourceRanges":
            [format!("{any}/1"), format!("{loopback}/8"), format!("{multicast}/32"),
             format!("{broadcast}/31"), format!("{any}/31"), format!("{any}/99"), "x", ""]}),
        json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["::/0", "0.0.0.0/0"]}),
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 1}),
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 65_536}),
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": -1}),
        json!({"type": "NodePort", "ports": [{"name": "http", "port": 80, "nodePort": 1},
            {"name": "https", "port": 65_535, "nodePort": 65_535},
            {"name": "zero", "port": 0, "nodePort": 0}, {"name": "less", "port": -1},
            {"name": "more", "port": 65_536}, {"name": "x", "port": 1, "nodePort": 70_000}]}),
        json!({"ports": [{"name": "http", "port": 80, "protocol": "ICMP"},
            {"name": "http", "port": 80, "protocol": "SCTP"},
            {"name": "http", "port": 80, "protocol": "UDP"},
            {"name": "http", "port": 80, "protocol": "tcp"}, {"name": "http", "port": 80}]}),
        json!({"ports": [{"name": "n".repeat(250), "port": 80}, {"name": "http", "port": 81}]}),
        json!({"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local",
            "type": "NodePort", "ports": [{"name": "http", "port": 80, "nodePort": 30_000}]}),
        json!({"internalTrafficPolicy": "--", "externalTrafficPolicy": "\n", "sessionAffinity": "-"}),
    ]);
    specs
}

fn objects(family: IpFamily, number: usize, overrides: &Value) -> [Value; 2] {
    // As long as a name can be.
    let name = format!("s{number}-{}", "x".repeat(180));
    let base = if family == IpFamily::V4 {
        "10.96.0.1"
    } else {
        "fd00:96::1"
    };
    let odd = match family {
        IpFamily::V4 => [
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "169.254.1.1",
            "255.255.255.255",
            "10.244.0.1",
        ],
        IpFamily::V6 => [
            "::",
            "::1",
            "ff02::1",
            "fe80::1",
            "ffff:ffff::",
            "fd00:244::1",
        ],
    };
    let mut service = json!({"kind": "Service", "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIP": base, "ports": [{"name": "http", "port": 80}]},
        "status": {"loadBalancer": {"ingress": odd.map(|address| json!({"ip": address}))}}});
    for (field, value) in overrides.as_object().unwrap() {
        service["spec"][field] = value.clone();
    }
    let endpoints = odd.map(|address| json!({"addresses": [address], "nodeName": "node"}));
    let slice = json!({"kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": format!("s{number}"),
                     "labels": {"kubernetes.io/service-name": name}},
        "addressType": family.as_str(), "endpoints": endpoints,
        "ports": [{"name": "http", "port": 65_535}, {"name": "http", "port": 70_000},
                  {"name": "http", "port": 1, "protocol": "UDP"}, {"name": "https", "port": 0},
                  {"name": "http", "port": 2, "protocol": "SCTP"}]});
    [service, slice]
}

#[test]
fn the_real_kernel_accepts_what_is_left_of_hostile_objects() {
    lab::with_programs(&PROGRAMS, |_| {
        for (family, variant) in everywhere() {
            let mut world = world(family, variant, OPTIONS);
            world.sync();
            for (number, spec) in specs(family).iter().enumerate() {
                for object in objects(family, number, spec) {
                    let object = Object::decode(&object).unwrap().unwrap();
                    world.model.set(&object);
                }
                let when = format!("{family} {variant}: {spec}");
                let report = world.try_sync();
                let report = report.unwrap_or_else(|error| panic!("{when}: {error:?}"));
                assert!(report.partial_failure.is_none(), "{when}: {report:?}");
                let fresh = world.fresh().to_string();
                let real = saved(world.backend.kernel());
                assert_eq!(sorted_rules(&real), sorted_rules(&fresh), "{when}");
            }
            // Rules that read back in other words would be repaired for ever.
            let touch = "*nat\n:FOREIGN - [0:0]\nCOMMIT\n";
            programs(family, variant).restore(touch.as_bytes()).unwrap();
            match world.backend.audit(ReadBudget::Available).unwrap() {
                AuditReport::Read { repaired, .. } => assert_eq!(repaired, []),
                other => panic!("not read: {other:?}"),
            }
        }
    });
}
