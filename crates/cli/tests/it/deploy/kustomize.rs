//! Tests of the output of kustomize for `deploy/`, on the embedded and the real API server.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use weft_apiserver::{ApiServer, RunConfig};
use weft_testkit::peer;

use super::manifests::{containers, documents, files, identity, of_kind, root};

struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    _home: tempfile::TempDir,
    /// Unless the environment names a real server.
    _server: Option<ApiServer>,
}

impl Kubectl {
    /// kubectl with a server; none where it is not built.
    async fn start() -> Option<Self> {
        let program = peer("kubectl")?;
        let home = tempfile::tempdir().unwrap();
        let real = std::env::var_os("WEFT_TEST_KUBECONFIG").map(PathBuf::from);
        let kubeconfig = real
            .clone()
            .unwrap_or_else(|| home.path().join("kubeconfig"));
        let server = if real.is_some() {
            None
        } else {
            let mut config = RunConfig::new("127.0.0.1:0".parse().unwrap());
            config.kubeconfig = Some(kubeconfig.clone());
            Some(weft_apiserver::start(config).await.unwrap())
        };
        Some(Self {
            program,
            kubeconfig,
            _home: home,
            _server: server,
        })
    }

    fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = Command::new(&self.program)
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.kubeconfig.parent().unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        child.wait_with_output().unwrap()
    }

    fn succeeds(&self, arguments: &[&str], input: &str) -> String {
        let output = self.run(arguments, input);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments:?}\n{out}{err}");
        out
    }

    fn kustomize(&self, directory: &Path) -> String {
        self.succeeds(&["kustomize", directory.to_str().unwrap()], "")
    }
}

/// Every directory that can be applied; a component needs an overlay around it.
fn directories() -> Vec<PathBuf> {
    let files = files(&root(), "kustomization.yaml");
    let directories: Vec<PathBuf> = files
        .iter()
        .filter(|file| !std::fs::read_to_string(file).unwrap().contains("Component"))
        .map(|file| file.parent().unwrap().to_owned())
        .collect();
    assert!(directories.len() >= 8, "{directories:?}");
    directories
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_would_apply_what_kustomize_makes() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    for directory in directories() {
        let made = kubectl.kustomize(&directory);
        let words = ["apply", "--server-side", "--dry-run=server", "-f", "-"];
        let told = kubectl.succeeds(&words, &made);
        let applied = told.lines().count();
        assert_eq!(
            applied,
            documents(&made).len(),
            "{}: {told}",
            directory.display()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_object_is_labelled_as_a_part_of_weft() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    for directory in directories() {
        for object in documents(&kubectl.kustomize(&directory)) {
            let label = |metadata: &Value| metadata["labels"]["app.kubernetes.io/part-of"].clone();
            let who = identity(&object);
            assert_eq!(label(&object["metadata"]), "weft", "{who}");
            if let Some(metadata) = object.pointer("/spec/template/metadata") {
                assert_eq!(label(metadata), "weft", "{who}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_leaves_no_placeholder() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    let made = kubectl.kustomize(&root().join("examples/monitored"));
    for placeholder in ["REGISTRY", "VERSION", "APISERVER_ADDRESS", "fd00:10:244::"] {
        assert!(!made.contains(placeholder), "{placeholder} is left");
    }
    let agents = containers(&documents(&made));
    let agents = agents.iter().filter(|agent| agent.asks_the_api_server());
    for agent in agents {
        let host = agent.variable("KUBERNETES_SERVICE_HOST");
        assert_eq!(host.as_deref(), Some("192.0.2.10"), "{}", agent.name);
        // Beyond loopback, where only the proxy's health still listens.
        let probes = ["livenessProbe", "readinessProbe"];
        for probe in probes.iter().filter_map(|probe| agent.value.get(probe)) {
            let local = probe["httpGet"].get("host").is_some();
            assert_eq!(local, agent.name == "proxy", "{}", agent.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_azures_objects_agents_have_rights_on_those_and_nothing_allocates() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    let made = kubectl.kustomize(&root().join("examples/azure"));
    for unwanted in ["ipam.weft.dev", "REGISTRY", "APISERVER_ADDRESS"] {
        assert!(!made.contains(unwanted), "{unwanted} is there");
    }
    let objects = documents(&made);
    let kinds = |kind: &'static str| of_kind(&objects, kind).count();
    assert_eq!(
        (kinds("Deployment"), kinds("CustomResourceDefinition")),
        (0, 0)
    );
    let azure = serde_json::json!(["acn.azure.com"]);
    let role = of_kind(&objects, "Role").next().unwrap();
    let rules = role["rules"].as_array().unwrap();
    assert!(
        rules.iter().all(|rule| rule["apiGroups"] == azure),
        "{role}"
    );
    let written: Vec<&Value> = (rules.iter())
        .filter(|rule| rule["verbs"].as_array().unwrap().contains(&"patch".into()))
        .map(|rule| &rule["resources"])
        .collect();
    assert_eq!(written, [&serde_json::json!(["nodenetworkconfigs"])]);
    let policy = of_kind(&objects, "ValidatingAdmissionPolicy")
        .next()
        .unwrap();
    let matched = &policy["spec"]["matchConstraints"]["resourceRules"];
    assert_eq!(matched[0]["apiGroups"], azure);
    assert_eq!(matched.as_array().unwrap().len(), 1);
    let agents = containers(&objects);
    let flagged: Vec<&str> = (agents.iter())
        .filter(|agent| {
            agent.value["command"]
                .to_string()
                .contains("--nnc-group=acn.azure.com")
        })
        .map(|agent| agent.name.as_str())
        .collect();
    assert_eq!(flagged, ["ipam"]);
}
