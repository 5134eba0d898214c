//! An unmodified kube-proxy in a network namespace of its own.

use std::{path::PathBuf, process::Command};

use weft_apiserver::{Matcher, Verb};

use super::{peer, serve, text};

/// Set in the child that runs inside a network namespace of its own.
const INSIDE: &str = "WEFT_TEST_INSIDE_NETNS";

#[tokio::test(flavor = "multi_thread")]
async fn kube_proxy_syncs_its_informers() {
    let Some(binary) = peer("kube-proxy") else {
        return;
    };
    if std::env::var_os(INSIDE).is_some() {
        run_kube_proxy(binary).await;
        return;
    }
    // kube-proxy must not write rules into the network namespace of this machine.
    let script = "ip link set lo up && exec \"$0\" --exact \
        go_clients::kube_proxy::kube_proxy_syncs_its_informers --nocapture";
    let mut child = Command::new("unshare");
    child.args(["--user", "--map-root-user", "--net", "sh", "-c", script]);
    child.arg(std::env::current_exe().unwrap()).env(INSIDE, "1");
    let output = tokio::task::spawn_blocking(move || child.output())
        .await
        .unwrap()
        .unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("1 passed"), "{out}");
}

async fn run_kube_proxy(binary: PathBuf) {
    let (server, home) = serve().await;
    let nodes = kube::Api::<k8s_openapi::api::core::v1::Node>::all(server.client());
    let node = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]},
    }));
    nodes
        .create(&kube::api::PostParams::default(), &node.unwrap())
        .await
        .unwrap();
    let log = std::fs::File::create(home.path().join("log")).unwrap();
    let mut proxy = Command::new(binary)
        .arg(format!(
            "--kubeconfig={}",
            home.path().join("kubeconfig").display()
        ))
        .args([
            "--hostname-override=n1",
            "--proxy-mode=nftables",
            "--conntrack-max-per-core=0",
        ])
        .stderr(log)
        .spawn()
        .unwrap();
    let streaming = |resource: &str| {
        Matcher::any()
            .verb(Verb::Watch)
            .resource(resource)
            .streaming_list(true)
    };
    let stats = server.stats();
    let synced = || {
        ["nodes", "services", "endpointslices", "servicecidrs"]
            .iter()
            .all(|resource| stats.open_watches(&streaming(resource)) > 0)
            && stats
                .requests(&Matcher::any().verb(Verb::Create).resource("events"))
                .iter()
                .any(|record| record.status == 201)
    };
    let mut tries = 600;
    while !synced() && tries > 0 && proxy.try_wait().unwrap().is_none() {
        tries -= 1;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let done = synced();
    proxy.kill().unwrap();
    proxy.wait().unwrap();
    let log = std::fs::read_to_string(home.path().join("log")).unwrap();
    assert!(done, "{:?}\n{log}", stats.requests(&Matcher::any()));
}
