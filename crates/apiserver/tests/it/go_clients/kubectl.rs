//! Tests with the real kubectl against the embedded API server.

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use weft_apiserver::ApiServer;

use super::{MANIFEST, peer, serve, text};
use crate::support::{self, MAPS, config_map};

struct Kubectl {
    binary: PathBuf,
    server: ApiServer,
    home: TempDir,
}

impl Kubectl {
    /// kubectl with a server of its own; `None` where it is not built.
    async fn start() -> Option<Self> {
        let binary = peer("kubectl")?;
        let (server, home) = serve().await;
        Some(Self {
            binary,
            server,
            home,
        })
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(arguments.split(' '))
            .env("HOME", self.home.path());
        command.env("KUBECONFIG", self.home.path().join("kubeconfig"));
        command
    }

    async fn try_run(&self, arguments: &str) -> Output {
        let mut command = self.command(arguments);
        tokio::task::spawn_blocking(move || command.output())
            .await
            .unwrap()
            .unwrap()
    }

    async fn run(&self, arguments: &str) -> String {
        let output = self.try_run(arguments).await;
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments}\n{out}{err}");
        out
    }

    fn file(&self, name: &str, content: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_works_unchanged() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };

    assert!(kubectl.run("version").await.contains("v1.36.4"));
    kubectl.run("create namespace made").await;
    kubectl.run("create configmap cm --from-literal=a=b").await;
    assert_eq!(
        kubectl.run("get configmap cm -o jsonpath={.data.a}").await,
        "b"
    );
    assert!(
        kubectl
            .run("auth whoami")
            .await
            .contains("kubernetes-admin")
    );
    assert!(kubectl.run("auth can-i delete nodes").await.contains("yes"));
    kubectl.run("create serviceaccount robot").await;
    assert!(kubectl.run("create token robot").await.starts_with("eyJ"));

    let manifest = kubectl.file("manifest.yaml", MANIFEST);
    let first = kubectl.run(&format!("apply -f {manifest}")).await;
    assert_eq!(first, "deployment.apps/web created\nservice/web created\n");
    let again = kubectl.run(&format!("apply -f {manifest}")).await;
    assert_eq!(
        again,
        "deployment.apps/web unchanged\nservice/web unchanged\n"
    );
    let changed = kubectl.file("changed.yaml", &MANIFEST.replace("i:1", "i:2"));
    let configured = kubectl.run(&format!("apply -f {changed}")).await;
    assert!(
        configured.contains("deployment.apps/web configured"),
        "{configured}"
    );
    let applied = kubectl
        .run(&format!(
            "apply --server-side --force-conflicts -f {changed}"
        ))
        .await;
    assert!(
        applied.contains("deployment.apps/web serverside-applied"),
        "{applied}"
    );

    // kubectl looks up the items of a List in OpenAPI v2.
    let list = "{apiVersion: v1, kind: List, items: [
        {apiVersion: v1, kind: ConfigMap, metadata: {name: one}},
        {apiVersion: v1, kind: ConfigMap, metadata: {name: two}}]}";
    let list = kubectl.file("list.yaml", list);
    let created = kubectl.run(&format!("create -f {list}")).await;
    assert_eq!(created, "configmap/one created\nconfigmap/two created\n");

    kubectl.run("scale deployment web --replicas=5").await;
    let wide = kubectl.run("get deployments -o wide").await;
    assert!(
        wide.contains("0/5") && wide.contains("i:2") && wide.contains("app=web"),
        "{wide}"
    );
    assert!(
        kubectl
            .run("get service web -o yaml")
            .await
            .contains("clusterIP: 10.")
    );
    assert!(
        kubectl
            .run("describe service web")
            .await
            .contains("Selector:")
    );
    assert!(
        kubectl
            .run("describe deployment web")
            .await
            .contains("5 desired")
    );
    kubectl.run("label deployment web tier=front").await;
    kubectl.run("annotate deployment web note=x").await;
    kubectl.run("patch deployment web --type=json -p=[{\"op\":\"remove\",\"path\":\"/metadata/labels/tier\"}]").await;
    kubectl
        .run("wait --for=jsonpath={.spec.replicas}=5 deployment/web --timeout=10s")
        .await;
    let node = kubectl.file(
        "node.yaml",
        "{apiVersion: v1, kind: Node, metadata: {name: n1}}",
    );
    kubectl.run(&format!("create -f {node}")).await;
    kubectl.run("cordon n1").await;
    assert!(
        kubectl
            .run("get nodes")
            .await
            .contains("SchedulingDisabled")
    );
    assert!(
        kubectl
            .run("describe node n1")
            .await
            .contains("Unschedulable:      true")
    );
    assert!(kubectl.run("get all").await.contains("service/web"));
    assert!(
        kubectl
            .run("api-resources")
            .await
            .contains("endpointslices")
    );
    kubectl.run("delete deployment web").await;
    let gone = kubectl.try_run("get deployment web").await;
    assert!(text(&gone.stderr).contains("deployments.apps \"web\" not found"));
    let wrong = kubectl.file(
        "wrong.yaml",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: w}, bogus: 1}",
    );
    let refused = kubectl.try_run(&format!("create -f {wrong}")).await;
    assert!(
        text(&refused.stderr).contains("unknown field \"bogus\""),
        "{}",
        text(&refused.stderr)
    );
    kubectl.run("delete namespace made").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_edits_with_an_editor() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    kubectl
        .run("create configmap cm --from-literal=word=before")
        .await;
    let editor = kubectl.file(
        "editor.sh",
        "#!/bin/sh\nexec sed -i s/before/after/ \"$1\"\n",
    );
    let mut command = kubectl.command("edit configmap cm");
    command.env("KUBE_EDITOR", format!("sh {editor}"));
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let output = output.unwrap().unwrap();
    assert_eq!(
        text(&output.stdout),
        "configmap/cm edited\n",
        "{}",
        text(&output.stderr)
    );
    let word = kubectl
        .run("get configmap cm -o jsonpath={.data.word}")
        .await;
    assert_eq!(word, "after");
}

/// A running kubectl, killed on drop.
struct Running {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The first words of the next line.
    fn words(&mut self, count: usize) -> String {
        let mut line = String::new();
        assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "it ended");
        let words: Vec<&str> = line.split_whitespace().take(count).collect();
        words.join(" ")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_watches_as_tables_and_as_objects() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    let server = &kubectl.server;
    support::post(server, MAPS, &config_map("a")).await;
    let table = kubectl.command("get configmaps -w --output-watch-events");
    let (mut table, mut names) = tokio::task::block_in_place(|| {
        let mut table = Running::start(table);
        assert_eq!(table.words(3), "EVENT NAME DATA");
        assert_eq!(table.words(3), "ADDED a 0");
        let mut names = Running::start(kubectl.command("get configmaps -w -o name"));
        assert_eq!(names.words(1), "configmap/a");
        (table, names)
    });
    let data = json!({"data": {"k": "v"}});
    support::patch(server, &format!("{MAPS}/a"), "merge-patch+json", &data).await;
    support::post(server, MAPS, &config_map("b")).await;
    support::delete(server, &format!("{MAPS}/a")).await;
    tokio::task::block_in_place(|| {
        let seen: Vec<String> = (0..3).map(|_| table.words(3)).collect();
        assert_eq!(seen, ["MODIFIED a 1", "ADDED b 0", "DELETED a 1"]);
        let seen: Vec<String> = (0..3).map(|_| names.words(1)).collect();
        assert_eq!(seen, ["configmap/a", "configmap/b", "configmap/a"]);
    });
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, image: 'i:1'}]}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80}]}
";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_objects_in_every_format() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    let manifest = kubectl.file("pod.yaml", POD);
    kubectl.run(&format!("create -f {manifest}")).await;
    let status = json!({"status": {
        "phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    let path = "/api/v1/namespaces/default/pods/p/status";
    support::patch(&kubectl.server, path, "merge-patch+json", &status).await;
    let list: Value = serde_json::from_str(&kubectl.run("get pods -o json").await).unwrap();
    assert_eq!(list["kind"], "List");
    assert_eq!(list["items"][0]["status"]["podIP"], "10.1.2.3");
    let one = kubectl.run("get pod p -o yaml").await;
    assert!(one.contains("\n  nodeName: n1\n"), "{one}");
    let narrow = kubectl.run("get pods").await;
    assert!(!narrow.contains("10.1.2.3"), "{narrow}");
    for (arguments, parts) in [
        ("get pods -o wide", &["NODE", "10.1.2.3", "n1"][..]),
        ("get pods -o wide --show-labels", &["app=web"]),
        ("get services -o wide", &["SELECTOR", "app=web", "80/TCP"]),
        ("get nodes -o wide", &["INTERNAL-IP", "n1"]),
        ("get pods -L app", &["APP", "web"]),
        ("get pods -o name", &["pod/p"]),
        (
            "get pods -o custom-columns=IP:.status.podIP",
            &["IP\n10.1.2.3\n"],
        ),
        (
            "get pods,services -A",
            &["pod/p", "service/web", "service/kubernetes"],
        ),
        (
            "get pods --field-selector=spec.nodeName=n1 -o name",
            &["pod/p"],
        ),
    ] {
        let shown = kubectl.run(arguments).await;
        for part in parts {
            assert!(shown.contains(part), "no {part:?} in {arguments}:\n{shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_describes_objects_with_their_events() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    let manifest = kubectl.file("pod.yaml", POD);
    kubectl.run(&format!("create -f {manifest}")).await;
    let uid = kubectl.run("get pod p -o jsonpath={.metadata.uid}").await;
    let event = json!({
        "metadata": {"name": "p.1"}, "reason": "Placed", "message": "it is there", "type": "Normal",
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default", "uid": uid},
        "source": {"component": "test"}, "count": 2,
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
    });
    let events = "/api/v1/namespaces/default/events";
    support::post(&kubectl.server, events, &event).await;
    kubectl.run("create configmap cm --from-literal=a=b").await;
    for (arguments, parts) in [
        (
            "describe pod p",
            &["Node:", "n1", "Image:", "Placed", "it is there"][..],
        ),
        (
            "describe node n1",
            &["Non-terminated Pods:", "default", "p"],
        ),
        (
            "describe service web",
            &["Selector:", "app=web", "http  80/TCP"],
        ),
        ("describe configmap cm", &["Data", "a:"]),
        ("describe namespace default", &["Status:", "Active"]),
        ("events", &["Placed", "Pod/p"]),
    ] {
        let shown = kubectl.run(arguments).await;
        for part in parts {
            assert!(shown.contains(part), "no {part:?} in {arguments}:\n{shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_patches_in_three_ways_and_replaces() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    let manifest = kubectl.file("manifest.yaml", MANIFEST);
    kubectl.run(&format!("create -f {manifest}")).await;
    let container = r#"{"spec":{"template":{"spec":{"containers":[{"name":"d","image":"j:1"}]}}}}"#;
    kubectl
        .run(&format!("patch deployment web -p {container}"))
        .await;
    let images = "get deployment web -o jsonpath={.spec.template.spec.containers[*].image}";
    assert_eq!(
        kubectl.run(images).await,
        "j:1 i:1",
        "strategic: merged by name"
    );
    kubectl
        .run(&format!("patch deployment web --type=merge -p {container}"))
        .await;
    assert_eq!(kubectl.run(images).await, "j:1", "merge: replaced");
    let operations = r#"[{"op":"test","path":"/spec/replicas","value":2},{"op":"replace","path":"/spec/replicas","value":7}]"#;
    kubectl
        .run(&format!("patch deployment web --type=json -p {operations}"))
        .await;
    let stale = kubectl
        .try_run(&format!("patch deployment web --type=json -p {operations}"))
        .await;
    assert!(!stale.status.success(), "the test of the patch fails");
    let status = r#"{"status":{"replicas":3}}"#;
    kubectl
        .run(&format!(
            "patch deployment web --subresource=status --type=merge -p {status}"
        ))
        .await;
    let both = "get deployment web -o jsonpath={.spec.replicas}/{.status.replicas}";
    assert_eq!(kubectl.run(both).await, "7/3");
    kubectl.run(&format!("replace -f {manifest}")).await;
    assert_eq!(kubectl.run(both).await, "2/3");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_scales_and_waits() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    let manifest = kubectl.file("manifest.yaml", MANIFEST);
    kubectl.run(&format!("create -f {manifest}")).await;
    let wrong = "scale deployment web --current-replicas=9 --replicas=3";
    let refused = text(&kubectl.try_run(wrong).await.stderr);
    assert!(
        refused.contains("Expected replicas to be 9, was 2"),
        "{refused}"
    );
    kubectl
        .run("scale deployment web --current-replicas=2 --replicas=3")
        .await;
    let replicas = "get deployment web -o jsonpath={.spec.replicas}";
    assert_eq!(kubectl.run(replicas).await, "3");

    let path = "/apis/apps/v1/namespaces/default/deployments/web";
    let condition = json!({"status": {"conditions": [{
        "type": "Available", "status": "True", "lastTransitionTime": null, "lastUpdateTime": null,
    }]}});
    let waiting = kubectl.run("wait --for=condition=Available deployment/web --timeout=30s");
    let change = async {
        watches(&kubectl.server, 1).await;
        support::patch(
            &kubectl.server,
            &format!("{path}/status"),
            "merge-patch+json",
            &condition,
        )
        .await
    };
    let (waited, changed) = tokio::join!(waiting, change);
    assert!(changed.status.is_success(), "{}", changed.text);
    assert_eq!(waited, "deployment.apps/web condition met\n");
    // The server notices asynchronously that the client before disconnected.
    watches(&kubectl.server, 0).await;
    let waiting = kubectl.run("wait --for=delete deployment/web --timeout=30s");
    let deletion = async {
        watches(&kubectl.server, 1).await;
        support::delete(&kubectl.server, path).await
    };
    let (waited, _) = tokio::join!(waiting, deletion);
    assert_eq!(waited, "deployment.apps/web condition met\n");
    let late = kubectl
        .try_run("wait --for=create configmap/never --timeout=1s")
        .await;
    assert!(!late.status.success());
}

/// Waits until `count` watches are open.
async fn watches(server: &ApiServer, count: usize) {
    while server.stats().open_watches(&weft_apiserver::Matcher::any()) != count {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
