//! Comparison of kubectl's output for this server and for a real one.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::{MANIFEST, not_run, peer, serve, text};

/// The commands in sequence; `DIR` has the manifests below. Some fail on purpose.
const SCRIPT: &[&str] = &[
    "get all",
    "create configmap cm --from-literal=a=b",
    "create configmap cm --from-literal=a=b",
    "get configmap cm -o yaml",
    "describe configmap cm",
    "create secret generic password --from-literal=k=v",
    "get secret password -o yaml",
    "describe secret password",
    "apply -f DIR/web.yaml",
    "apply -f DIR/web.yaml",
    "apply -f DIR/web-2.yaml",
    "apply --server-side -f DIR/web-2.yaml",
    "apply --server-side --field-manager=other -f DIR/web.yaml",
    "apply --server-side --field-manager=other --force-conflicts -f DIR/web.yaml",
    "get deployments -o wide",
    "get deployment web -o yaml",
    "get deployment web -o yaml --show-managed-fields",
    "get service web -o yaml",
    "get services -o wide",
    // Without events: the real server's repair of cluster IPs may report one at any moment.
    "describe service web --show-events=false",
    "describe deployment web",
    "scale deployment web --current-replicas=9 --replicas=3",
    "scale deployment web --replicas=5",
    "set image deployment/web c=i:3",
    "label deployment web tier=front",
    "label deployment web tier=back",
    "annotate deployment web note=x",
    "patch deployment web --type=json -p=[{\"op\":\"remove\",\"path\":\"/metadata/labels/tier\"}]",
    "patch deployment web --type=json -p=[{\"op\":\"test\",\"path\":\"/spec/replicas\",\"value\":9}]",
    "patch deployment web -p={\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"d\",\"image\":\"j:1\"}]}}}}",
    "wait --for=jsonpath={.spec.replicas}=5 deployment/web --timeout=10s",
    "expose deployment web --name=exposed --port=81",
    "get deployments,services -o name",
    "get deployment web -o jsonpath={.metadata.generation}",
    "get deployments --field-selector=metadata.name=nobody",
    "get deployments -l app=web -o name",
    "create -f DIR/unknown.yaml",
    "create -f DIR/nameless.yaml",
    "create -f DIR/list.yaml",
    "apply -f DIR/list.yaml",
    "get configmaps one two -o name",
    "create --dry-run=server -f DIR/dry.yaml -o name",
    "get configmap dry",
    "get nosuch",
    "auth can-i delete nodes",
    "delete deployment web",
    "delete deployment web",
    "get deployment web",
    "delete configmap,secret --all",
    "get configmaps",
];

/// One of the two servers.
struct Side {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    namespace: String,
    directory: PathBuf,
}

impl Side {
    /// Exit status and output, without values that must differ.
    fn says(&self, line: &str) -> String {
        let line = line.replace("DIR", &self.directory.display().to_string());
        let output = Command::new(&self.kubectl)
            .args(line.split(' '))
            .arg(format!("--namespace={}", self.namespace))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.directory)
            .output()
            .unwrap();
        let status = output.status.code().unwrap_or(-1);
        let said = text(&output.stdout) + &text(&output.stderr);
        let lines: Vec<String> = said.lines().filter_map(comparable).collect();
        format!("{status}\n{}", lines.join("\n"))
    }
}

/// A line without ages, addresses, versions and times; `None` if nothing else is in it.
fn comparable(line: &str) -> Option<String> {
    let own = [
        "uid:",
        "resourceVersion:",
        "creationTimestamp:",
        "CreationTimestamp:",
        "time:",
    ];
    let start = line.trim_start().trim_start_matches("- ");
    if own.iter().any(|key| start.starts_with(key)) {
        return None;
    }
    let indent = line.len() - line.trim_start().len();
    let words = line.split_whitespace().map(|word| {
        let bare = word.trim_matches(|c| c == '"' || c == ',');
        if is_age(bare) {
            "AGE"
        } else if bare.parse::<std::net::IpAddr>().is_ok() {
            "ADDRESS"
        } else {
            word
        }
    });
    let words: Vec<&str> = words.collect();
    Some(format!("{}{}", " ".repeat(indent), words.join(" ")))
}

fn is_age(word: &str) -> bool {
    let number = word.strip_suffix(['s', 'm']).unwrap_or_default();
    !number.is_empty()
        && number
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'm')
}

fn write(directory: &Path) {
    for (name, content) in [
        ("web.yaml", MANIFEST.to_owned()),
        ("web-2.yaml", MANIFEST.replace("i:1", "i:2")),
        (
            "unknown.yaml",
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: w}, bogus: 1}".to_owned(),
        ),
        (
            "nameless.yaml",
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: 'No Name'}}".to_owned(),
        ),
        (
            "list.yaml",
            "{apiVersion: v1, kind: List, items: [
                {apiVersion: v1, kind: ConfigMap, metadata: {name: one}},
                {apiVersion: v1, kind: ConfigMap, metadata: {name: two}}]}"
                .to_owned(),
        ),
        (
            "dry.yaml",
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: dry}}".to_owned(),
        ),
    ] {
        std::fs::write(directory.join(name), content).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_prints_the_same_for_a_real_server() {
    let Some(kubectl) = peer("kubectl") else {
        return;
    };
    let Some(real) = std::env::var_os("WEFT_TEST_KUBECONFIG") else {
        not_run("WEFT_TEST_KUBECONFIG names no real server: `make conformance` sets it");
        return;
    };
    let (_server, home) = serve().await;
    write(home.path());
    // The real server has no controller manager, so its namespaces are never emptied.
    let namespace = format!("kubectl-{}", std::process::id());
    let side = |kubeconfig| Side {
        kubectl: kubectl.clone(),
        kubeconfig,
        namespace: namespace.clone(),
        directory: home.path().to_owned(),
    };
    let sides = [side(home.path().join("kubeconfig")), side(real.into())];
    tokio::task::spawn_blocking(move || {
        let create = format!("create namespace {}", sides[0].namespace);
        let mut different = Vec::new();
        for line in [create.as_str()].iter().chain(SCRIPT) {
            let [ours, theirs] = sides.each_ref().map(|side| side.says(line));
            if ours != theirs {
                different.push(format!(
                    "kubectl {line}\n--- here\n{ours}\n--- there\n{theirs}"
                ));
            }
        }
        assert!(different.is_empty(), "{}", different.join("\n\n"));
    })
    .await
    .unwrap();
}

#[test]
fn only_values_that_must_differ_are_left_out() {
    for (line, expected) in [
        ("web   2/2   2  3m12s", Some("web 2/2 2 AGE")),
        ("  clusterIP: 10.96.4.5", Some("  clusterIP: ADDRESS")),
        ("  replicas: 5", Some("  replicas: 5")),
        ("  uid: 1-2", None),
        ("    time: \"2026-01-01T00:00:00Z\"", None),
    ] {
        assert_eq!(comparable(line).as_deref(), expected, "{line}");
    }
}
