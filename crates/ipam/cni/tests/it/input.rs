//! Input that no runtime should send.

use std::process::Command;

use serde_json::json;

use crate::{
    daemon::FakeDaemon,
    plugin::{Ended, Node, PROGRAM, run},
};

fn call(input: &[u8], variables: &[(&str, &str)]) -> Ended {
    let usual = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/pod"),
        ("CNI_IFNAME", "eth0"),
    ];
    let mut program = Command::new(PROGRAM);
    program
        .env_clear()
        .envs(usual)
        .envs(variables.iter().copied());
    run(&mut program, input)
}

#[test]
fn invalid_configurations_have_distinct_codes() {
    let deep = "[".repeat(100_000);
    for (input, code) in [
        (&b""[..], 6),
        (b"{", 6),
        (b"\xff\xfe", 6),
        (b"[]", 6),
        (b"\"text\"", 6),
        (deep.as_bytes(), 6),
        (b"{}", 1),
        (br#"{"cniVersion":"0.1.0","name":"a"}"#, 1),
        (br#"{"cniVersion":"1.0.0","cniVersion":"1.1.0"}"#, 6),
        (br#"{"cniVersion":"1.0.0"}"#, 7),
        (br#"{"cniVersion":"1.0.0","name":"a"}"#, 7),
        (
            br#"{"cniVersion":"1.0.0","name":"a","ipam":{"type":"weft-cni","dataDir":"/x"}}"#,
            7,
        ),
    ] {
        let ended = call(input, &[]);
        assert_eq!(ended.code(), code, "{:?}", String::from_utf8_lossy(input));
    }
}

#[test]
fn an_error_has_the_version_of_the_configuration() {
    let ended = call(br#"{"cniVersion":"0.4.0","name":"a"}"#, &[]);
    assert_eq!(ended.json()["cniVersion"], "0.4.0");
    let ended = call(br#"{"cniVersion":"9.9.9","name":"a"}"#, &[]);
    assert_eq!(ended.json()["cniVersion"], "1.1.0");
}

#[test]
fn huge_input_is_cut_off() {
    let huge = vec![b' '; 3 << 20];
    assert_eq!(call(&huge, &[]).code(), 6);
    let mut config = json!({"cniVersion": "1.0.0", "name": "a", "ipam": {"type": "weft-cni"}});
    config["padding"] = json!("x".repeat(1 << 20));
    assert_eq!(call(config.to_string().as_bytes(), &[]).code(), 6);
}

#[test]
fn the_environment_is_checked_before_anything_else() {
    for (name, value) in [
        ("CNI_COMMAND", ""),
        ("CNI_COMMAND", "UPDATE"),
        ("CNI_CONTAINERID", ""),
        ("CNI_CONTAINERID", "../c1"),
        ("CNI_NETNS", ""),
        ("CNI_IFNAME", "sixteen-letters-"),
        ("CNI_ARGS", "K8S_POD_NAME"),
    ] {
        let ended = call(b"", &[(name, value)]);
        assert_eq!(ended.code(), 4, "{name}={value}");
        let object = ended.json();
        let text = format!("{} {}", object["msg"], object["details"]);
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn del_works_without_a_namespace_and_with_invalid_other_fields() {
    let node = Node::new();
    let daemon = FakeDaemon::granting(&node.socket());
    let mut config = node.config("1.0.0");
    config["prevResult"] = json!("what another plugin left");
    config["runtimeConfig"] = json!(["odd"]);
    let ended = call(
        config.to_string().as_bytes(),
        &[
            ("CNI_COMMAND", "DEL"),
            ("CNI_NETNS", ""),
            ("CNI_ARGS", "odd"),
        ],
    );
    ended.assert_silent_success();
    assert_eq!(daemon.containers("/network/releaseipconfigs"), ["c1"]);
}
