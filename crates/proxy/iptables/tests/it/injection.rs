//! Text from objects never becomes anything but a comment or an address.

use proptest::prelude::*;
use serde_json::{Value, json};
use weft_model::IpFamily;
use weft_proxy::objects::Object;

use crate::world::{OPTIONS, World};

/// Words that would be a rule, a chain or an end of a table if they got out of their place.
fn nasty() -> impl Strategy<Value = String> {
    let fixed = prop::sample::select(vec![
        "x\n-A INPUT -j ACCEPT",
        "x\" -j ACCEPT --comment \"",
        "x\nCOMMIT\n*filter",
        "-j",
        "!",
        "a b",
        "x\\",
        "$(reboot)",
        "10.0.0.1 -j ACCEPT",
        "KUBE-SERVICES",
        "",
    ]);
    prop_oneof![fixed.prop_map(str::to_owned), ".{0,40}", "[ -~]{0,300}"]
}

fn objects(words: &[String; 8]) -> [Value; 2] {
    let [
        namespace,
        name,
        port,
        cluster_ip,
        external,
        range,
        endpoint,
        policy,
    ] = words;
    [
        json!({"kind": "Service", "metadata": {"namespace": namespace, "name": name},
            "spec": {"type": "LoadBalancer", "clusterIP": cluster_ip, "externalIPs": [external],
                "loadBalancerSourceRanges": [range, "10.0.0.0/8"],
                "externalTrafficPolicy": policy, "sessionAffinity": policy,
                "ports": [{"name": port, "port": 80, "protocol": policy, "nodePort": 30000},
                          {"name": port, "port": 81, "nodePort": 30001}]},
            "status": {"loadBalancer": {"ingress": [{"ip": external}, {"ip": "192.0.2.1"}]}}}),
        json!({"kind": "EndpointSlice",
            "metadata": {"namespace": namespace, "name": "slice",
                         "labels": {"kubernetes.io/service-name": name},
                         "annotations": {"note": policy}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [endpoint], "nodeName": policy,
                           "hints": {"forZones": [{"name": range}]}},
                          {"addresses": ["10.244.0.1"]}],
            "ports": [{"name": port, "port": 8080}]}),
    ]
}

fn words() -> impl Strategy<Value = [String; 8]> {
    let words = prop::array::uniform8(nasty());
    (words, any::<bool>(), any::<bool>()).prop_map(|(mut words, address, name)| {
        // Half of the time a valid address and name, so that the rest gets far.
        if address {
            "10.96.0.1".clone_into(&mut words[3]);
        }
        if name {
            "shop".clone_into(&mut words[0]);
            "cart".clone_into(&mut words[1]);
        }
        words
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn no_word_of_an_object_becomes_a_rule(words in words()) {
        let mut world = World::new(IpFamily::V4, OPTIONS);
        for object in objects(&words) {
            world.model.set(&Object::decode(&object).unwrap().unwrap());
        }
        world.sync();
        // Every rule is one that we know how to write, in a chain of ours or a known jump.
        let rules = world.rules().to_string();
        for line in rules.lines() {
            prop_assert!(line.is_ascii() && line.len() < 600, "{line:?}");
        }
        for line in rules.lines().filter_map(|line| line.strip_prefix("-A ")) {
            let (chain, rule) = line.split_once(' ').unwrap();
            prop_assert!(weft_ruleset::Rule::parse(rule).is_ok(), "{line}");
            let built_in = !chain.starts_with("KUBE-");
            prop_assert!(!built_in || line.contains("-j KUBE-"), "{line}");
        }
    }
}
