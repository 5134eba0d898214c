//! The CNI version of the configuration: what plugins and runtime know.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    time::{Duration, Instant},
};

use serde_json::json;

use super::Node;

const OLD: &str =
    r#"cat > /dev/null; echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}'"#;
const NEW: &str =
    r#"cat > /dev/null; echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}'"#;

fn put_plugin(node: &Node, name: &str, script: &str) {
    let path = node.path("opt/cni/bin").join(name);
    let check = "[ \"$CNI_COMMAND\" = VERSION ] || exit 1";
    fs::write(&path, format!("#!/bin/sh\n{check}\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_newest_version_that_plugins_and_runtime_know_is_used() {
    let two = "containerd://2.3.7";
    for (ptp, portmap, runtime, expected) in [
        (NEW, NEW, two, "1.1.0"),
        (NEW, NEW, "cri-o://1.33.2", "1.1.0"),
        (OLD, NEW, two, "1.0.0"),
        (NEW, OLD, two, "1.0.0"),
        // Their libraries refuse results of a version that they do not know.
        (NEW, NEW, "containerd://1.7.27", "1.0.0"),
        (NEW, NEW, "cri-o://1.28.0", "1.0.0"),
        (NEW, NEW, "docker://27.0.0", "1.0.0"),
        (NEW, NEW, "", "1.0.0"),
        ("exit 1", NEW, two, "1.0.0"),
        ("echo nonsense", NEW, two, "1.0.0"),
    ] {
        let node = Node::new();
        put_plugin(&node, "ptp", ptp);
        put_plugin(&node, "portmap", portmap);
        let daemon = node.daemon(&["ready"]);
        daemon.set(&json!({"containerRuntime": runtime}));
        let installed = node.install(&[]);
        assert_eq!(installed.code, Some(0), "{}", installed.stderr);
        let conflist = node.configuration().unwrap();
        let case = format!("{ptp} {portmap} {runtime}");
        assert_eq!(conflist["cniVersion"], expected, "{case}");
        assert_eq!(node.install(&["--cni-version", "0.4.0"]).code, Some(0));
        let conflist = node.configuration().unwrap();
        assert_eq!(conflist["cniVersion"], "0.4.0", "a flag decides: {case}");
    }
}

#[test]
fn a_plugin_that_does_not_answer_delays_nothing_for_long() {
    let node = Node::new();
    put_plugin(&node, "ptp", "exec sleep 600");
    put_plugin(&node, "portmap", NEW);
    let daemon = node.daemon(&["ready"]);
    daemon.set(&json!({"containerRuntime": "containerd://2.3.7"}));
    let begun = Instant::now();
    assert_eq!(node.install(&[]).code, Some(0));
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(node.configuration().unwrap()["cniVersion"], "1.0.0");
}
