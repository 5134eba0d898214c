//! Unchanged Go clients, where `make peers` built them.

use std::{
    path::PathBuf,
    process::{Command, Output},
};

use weft_apiserver::{ApiServer, Matcher, RunConfig, Verb};

/// A peer's binary; none is no failure unless `WEFT_MUST_RUN_PEERS` says so.
fn peer(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("WEFT_PEERS")
        .map(PathBuf::from)
        .or_else(|| {
            Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/weft/peers/v1.36.4/bin"))
        })?;
    let found = Some(cache.join(name)).filter(|path| path.is_file());
    assert!(
        found.is_some() || std::env::var_os("WEFT_MUST_RUN_PEERS").is_none(),
        "{name} is not in {}: run `make peers`",
        cache.display()
    );
    if found.is_none() {
        eprintln!("not run: {name} is not in {}", cache.display());
    }
    found
}

struct Kubectl {
    binary: PathBuf,
    home: PathBuf,
}

impl Kubectl {
    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments.split(' ')).env("HOME", &self.home);
        command.env("KUBECONFIG", self.home.join("kubeconfig"));
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
        let path = self.home.join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn serve(name: &str) -> (ApiServer, PathBuf) {
    let home = std::env::temp_dir().join(format!("weft-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&home).unwrap();
    let mut config = RunConfig::new("127.0.0.1:0".parse().unwrap());
    config.kubeconfig = Some(home.join("kubeconfig"));
    (weft_apiserver::start(config).await.unwrap(), home)
}

const MANIFEST: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: 'i:1', env: [{name: A, value: '1'}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_works_unchanged() {
    let Some(binary) = peer("kubectl") else {
        return;
    };
    let (server, home) = serve("kubectl").await;
    let kubectl = Kubectl {
        binary,
        home: home.clone(),
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
    assert!(kubectl.run("create token robot").await.starts_with("weft-"));

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
    drop(server);
    std::fs::remove_dir_all(home).unwrap();
}

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
    // What it writes into its network must not be written into this machine's.
    let script = "ip link set lo up && exec \"$0\" --exact \
        go_clients::kube_proxy_syncs_its_informers --nocapture";
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
    let (server, home) = serve("kube-proxy").await;
    let nodes = kube::Api::<k8s_openapi::api::core::v1::Node>::all(server.client());
    let node = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]},
    }));
    nodes
        .create(&kube::api::PostParams::default(), &node.unwrap())
        .await
        .unwrap();
    let log = std::fs::File::create(home.join("log")).unwrap();
    let mut proxy = Command::new(binary)
        .arg(format!(
            "--kubeconfig={}",
            home.join("kubeconfig").display()
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
    let log = std::fs::read_to_string(home.join("log")).unwrap();
    std::fs::remove_dir_all(home).unwrap();
    assert!(done, "{:?}\n{log}", stats.requests(&Matcher::any()));
}
