//! The bridge of pods: made before the configuration, and corrected when the node's range changes.

use serde_json::{Value, json};
use weft_testkit::lab::{self, Lab};

use super::{
    Node,
    staying::{Staying, until},
};

const BRIDGE: &[&str] = &["--main-plugin", "bridge"];

fn link(lab: &Lab) -> Value {
    let text = lab.program("ip", &["-j", "-d", "link", "show", "weft0"]);
    let links: Value = serde_json::from_str(&text).unwrap();
    links[0].clone()
}

fn mac(lab: &Lab) -> String {
    link(lab)["address"].as_str().unwrap().to_owned()
}

/// Addresses of the bridge, without those that the kernel makes itself.
fn addresses(lab: &Lab) -> Vec<String> {
    let text = lab.program("ip", &["-j", "address", "show", "weft0"]);
    let links: Value = serde_json::from_str(&text).unwrap();
    let infos = links[0]["addr_info"].as_array().unwrap().iter();
    let global = infos.filter(|info| info["scope"] == "global");
    global
        .map(|info| {
            let local = info["local"].as_str().unwrap();
            format!("{local}/{}", info["prefixlen"])
        })
        .collect()
}

fn gateways(list: &[(&str, u8)]) -> Value {
    let subnet =
        |(address, length): &(&str, u8)| json!({"IPAddress": address, "PrefixLength": length});
    let list: Vec<Value> = list.iter().map(subnet).collect();
    json!({"gateways": list})
}

fn ip(lab: &Lab, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    lab.program("ip", &words);
}

fn add_port(lab: &Lab) {
    ip(lab, "link add port0 type veth peer name port1");
    ip(lab, "link set port0 master weft0");
}

/// Lets a port join the bridge and leave it.
fn pass_a_port(lab: &Lab) {
    add_port(lab);
    ip(lab, "link delete port0");
}

#[test]
fn the_bridge_has_a_hardware_address_of_its_own_that_stays() {
    lab::inside(|lab| {
        let node = Node::new();
        node.daemon(&["ready"]);
        assert_eq!(node.install(BRIDGE).code, Some(0));
        let first = mac(lab);
        let octet = u8::from_str_radix(&first[..2], 16).unwrap();
        assert_eq!(octet & 3, 2, "local and for one station: {first}");
        assert!(
            link(lab)["flags"]
                .as_array()
                .unwrap()
                .contains(&json!("UP"))
        );
        pass_a_port(lab);
        assert_eq!(mac(lab), first, "a bridge without ports lost its address");
        ip(lab, "link delete weft0");
        assert_eq!(node.install(BRIDGE).code, Some(0));
        assert_eq!(mac(lab), first, "as after a reboot");
    });
}

#[test]
fn a_bridge_that_lost_its_hardware_address_gets_one() {
    lab::inside(|lab| {
        let node = Node::new();
        node.daemon(&["ready"]);
        lab.bridge("weft0");
        pass_a_port(lab);
        assert_eq!(mac(lab), "00:00:00:00:00:00", "as a failed ADD leaves it");
        assert_eq!(node.install(BRIDGE).code, Some(0));
        assert_ne!(mac(lab), "00:00:00:00:00:00");
    });
}

#[test]
fn a_bridge_in_use_keeps_its_hardware_address() {
    lab::inside(|lab| {
        let node = Node::new();
        node.daemon(&["ready"]);
        lab.bridge("weft0");
        add_port(lab);
        let before = mac(lab);
        assert_eq!(node.install(BRIDGE).code, Some(0));
        assert_eq!(mac(lab), before, "pods know it as their gateway's");
        ip(lab, "link delete port0");
        assert_eq!(mac(lab), before, "and from now on it stays");
    });
}

#[test]
fn the_bridge_follows_the_range_of_the_node() {
    lab::inside(|lab| {
        let node = Node::new();
        let daemon = node.daemon(&["ready"]);
        daemon.set(&gateways(&[("10.244.3.1", 24), ("fd00:3::1", 64)]));
        let staying = Staying::start(&node, BRIDGE);
        until("installed", || node.configuration().is_some());
        assert_eq!(addresses(lab), ["10.244.3.1/24", "fd00:3::1/64"]);
        // Unknown for a while, as after the Node was deleted: no address is taken away.
        daemon.set(&json!({"gateways": [], "serving": "unavailable"}));
        std::fs::remove_file(node.program()).unwrap();
        until("another round", || node.program().exists());
        assert_eq!(addresses(lab).len(), 2);
        daemon.set(&gateways(&[("10.244.4.1", 24), ("fd00:4::1", 64)]));
        daemon.set(&json!({"serving": "ready"}));
        until("corrected", || {
            addresses(lab) == ["10.244.4.1/24", "fd00:4::1/64"]
        });
        // By hand, as operators had to.
        ip(lab, "link delete weft0");
        until("made again", || {
            let links = lab.program("ip", &["-j", "link"]);
            links.contains("\"weft0\"")
        });
        until("with its addresses", || addresses(lab).len() == 2);
        let log = staying.stop();
        assert!(log.contains("bridge address removed"), "{log}");
        assert!(log.contains("10.244.3.1/24"), "{log}");
    });
}

#[test]
fn a_device_that_is_not_a_bridge_is_left_alone() {
    lab::inside(|lab| {
        let node = Node::new();
        node.daemon(&["ready"]);
        ip(lab, "link add weft0 type veth peer name weft1");
        let installed = node.install(BRIDGE);
        assert_eq!(installed.code, Some(1));
        assert!(
            installed.stderr.contains("weft0 is not a bridge"),
            "{}",
            installed.stderr
        );
        assert_eq!(node.configuration(), None);
    });
}
