//! Every command against a daemon that grants every request.

use serde_json::json;

use crate::{
    daemon::{FakeDaemon, Reply, four},
    plugin::Node,
};

const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

#[test]
fn add_answers_with_both_families_in_every_version() {
    let node = Node::new();
    let daemon = FakeDaemon::granting(&node.socket());
    for version in VERSIONS {
        let ended = node.call_with("ADD", "c1", &node.config(version));
        assert!(ended.succeeded, "{ended:?}");
        let result = ended.json();
        assert_eq!(result["cniVersion"], version);
        let mut expected = json!([{"address": "10.1.0.7/24", "gateway": "10.1.0.1"},
                                  {"address": "fd00::7/64", "gateway": "fd00::1"}]);
        if version.starts_with('0') {
            expected[0]["version"] = json!("4");
            expected[1]["version"] = json!("6");
        }
        assert_eq!(result["ips"], expected, "{version}");
    }
    let received = &daemon.received()[0];
    assert_eq!(
        (&*received.method, &*received.path),
        ("POST", "/network/requestipconfigs")
    );
    assert_eq!(
        received.body,
        json!({"desiredIPAddresses": [], "podInterfaceID": "c1", "infraContainerID": "c1",
               "orchestratorContext": {"podName": "p0", "podNamespace": "default", "podUID": "u-1"},
               "ifname": "eth0", "secondaryInterfacesExist": false, "BackendInterfaceExist": false,
               "BacknendInterfaceMacAddress": [], "networkName": "podnet"})
    );
    let wait = received
        .headers
        .iter()
        .find(|(name, _)| name == "weft-wait-milliseconds");
    let wait: u64 = wait.unwrap().1.parse().unwrap();
    assert!(
        (20_000..30_000).contains(&wait),
        "the daemon may park it: {wait}"
    );
}

#[test]
fn add_passes_on_the_desired_addresses() {
    let node = Node::new();
    let daemon = FakeDaemon::granting(&node.socket());
    let mut config = node.config("1.0.0");
    config["runtimeConfig"] = json!({"ips": ["10.1.0.7/24"]});
    assert!(node.call_with("ADD", "c1", &config).succeeded);
    assert_eq!(
        daemon.received()[0].body["desiredIPAddresses"],
        json!(["10.1.0.7"])
    );
}

#[test]
fn del_releases_and_prints_nothing() {
    let node = Node::new();
    let daemon = FakeDaemon::granting(&node.socket());
    for version in VERSIONS {
        node.call_with("DEL", "c1", &node.config(version))
            .assert_silent_success();
    }
    assert_eq!(daemon.containers("/network/releaseipconfigs"), ["c1"; 5]);
    assert_eq!(node.queued(), [""; 0]);
}

#[test]
fn check_compares_with_what_the_daemon_holds() {
    let node = Node::new();
    let _daemon = FakeDaemon::granting(&node.socket());
    let check = |ips: &[&str]| {
        let mut config = node.config("1.0.0");
        let ips: Vec<_> = ips.iter().map(|ip| json!({"address": ip})).collect();
        config["prevResult"] = json!({"cniVersion": "1.0.0", "ips": ips});
        node.call_with("CHECK", "c1", &config)
    };
    check(&["fd00::7/64", "10.1.0.7/24"]).assert_silent_success();
    assert_eq!(check(&["10.1.0.8/24", "fd00::7/64"]).code(), 103);
    let ended = check(&["10.1.0.7/24"]);
    assert_eq!(ended.code(), 103, "one family lost");
    let details = ended.json()["details"].as_str().unwrap().to_owned();
    assert_eq!(
        details,
        "the pod has [10.1.0.7], the daemon holds [10.1.0.7, fd00::7]"
    );
    assert_eq!(check(&[]).code(), 103);
    let without = node.call_with("CHECK", "c1", &node.config("1.0.0"));
    assert_eq!(without.code(), 7);
}

#[test]
fn check_fails_when_nothing_is_held() {
    let node = Node::new();
    let _daemon = FakeDaemon::start(&node.socket(), |_| {
        Reply::json(&json!({"response": {"ReturnCode": 14, "Message": "unknown key"}}))
    });
    let mut config = node.config("1.0.0");
    for ips in [json!([{"address": "10.1.0.7/24"}]), json!([])] {
        config["prevResult"] = json!({"ips": ips});
        assert_eq!(node.call_with("CHECK", "c1", &config).code(), 103);
    }
}

#[test]
fn status_reports_whether_an_add_can_be_served() {
    for (serving, code) in [
        ("ready", None),
        ("unavailable", Some(50)),
        ("limited", Some(51)),
    ] {
        let node = Node::new();
        let daemon = FakeDaemon::start(&node.socket(), move |_| {
            Reply::json(
                &json!({"serving": serving, "reason": "no addresses in the cluster",
                              "response": {"ReturnCode": 0, "Message": ""}}),
            )
        });
        let ended = node.call("STATUS", "");
        match code {
            None => ended.assert_silent_success(),
            Some(code) => {
                assert_eq!(ended.code(), code);
                assert_eq!(ended.json()["details"], "no addresses in the cluster");
            }
        }
        assert_eq!(daemon.received()[0].method, "GET");
    }
}

#[test]
fn gc_passes_on_the_valid_attachments() {
    let node = Node::new();
    let daemon = FakeDaemon::granting(&node.socket());
    let mut config = node.config("1.1.0");
    let valid = json!([{"containerID": "c1", "ifname": "eth0"}]);
    config["cni.dev/valid-attachments"] = valid.clone();
    let ended = node.call_with("GC", "", &config);
    ended.assert_silent_success();
    assert!(
        ended.stderr.contains("released 2 attachments"),
        "{}",
        ended.stderr
    );
    let body = &daemon.received()[0].body;
    assert_eq!(
        *body,
        json!({"networkName": "podnet", "validAttachments": valid})
    );
}

#[test]
fn gc_without_a_list_sends_no_request() {
    let node = Node::new();
    let daemon = FakeDaemon::granting(&node.socket());
    assert_eq!(node.call("GC", "").code(), 7);
    assert!(daemon.received().is_empty());
}

#[test]
fn version_needs_no_daemon_and_no_configuration() {
    let node = Node::new();
    for version in VERSIONS {
        let result = node
            .call_with("VERSION", "", &json!({"cniVersion": version}))
            .json();
        assert_eq!(
            result,
            json!({"cniVersion": version, "supportedVersions": VERSIONS})
        );
    }
    let result = node
        .call_with("VERSION", "", &json!({"cniVersion": "7.0.0"}))
        .json();
    assert_eq!(result["cniVersion"], "1.1.0");
}

#[test]
fn every_call_leaves_a_line_in_the_log() {
    let node = Node::new();
    let _daemon = FakeDaemon::start(&node.socket(), |received| match &*received.path {
        "/network/requestipconfigs" => Reply::json(&json!({
            "podIPInfo": [four("10.1.0.7")], "response": {"ReturnCode": 0, "Message": ""}})),
        _ => Reply::Answer(500, "on fire".to_owned()),
    });
    assert!(node.call("ADD", "c1").succeeded);
    assert_eq!(node.call("DEL", "c1").code(), 11);
    let text = std::fs::read_to_string(node.path("log")).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let told: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                &line["command"],
                &line["pod"],
                line["outcome"].as_str().unwrap(),
            )
        })
        .collect();
    let pod = json!("default/p0");
    assert_eq!(
        told,
        [
            (&json!("ADD"), &pod, "done 10.1.0.7/24"),
            (
                &json!("DEL"),
                &pod,
                "code 11: cannot release addresses: HTTP 500: on fire"
            ),
        ]
    );
}
