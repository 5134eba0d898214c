//! Reads the manifests in `deploy/`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// The directory.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// Every file that ends so, below a directory.
pub(crate) fn files(below: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_str().unwrap().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The documents of a text.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// Every object that is to be applied. All files have to be YAML; kustomize's own, patches and
/// alert rules are no objects.
pub(crate) fn objects() -> Vec<Value> {
    let files = files(&root(), "");
    let texts = files.iter().map(|path| fs::read_to_string(path).unwrap());
    texts
        .flat_map(|text| documents(&text))
        .filter(is_applied)
        .collect()
}

fn is_applied(document: &Value) -> bool {
    let version = document["apiVersion"].as_str().unwrap_or("kustomize");
    let annotations = &document["metadata"]["annotations"];
    !version.starts_with("kustomize")
        && annotations
            .get("config.kubernetes.io/local-config")
            .is_none()
}

/// Kind, namespace and name of what is referred to.
pub(crate) fn name(reference: &Value, namespace: &str) -> String {
    let kind = reference["kind"].as_str().unwrap();
    let name = reference["name"].as_str().unwrap();
    format!("{kind} {namespace}/{name}")
}

/// Kind, namespace and name of an object.
pub(crate) fn identity(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap();
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("");
    let name = object["metadata"]["name"].as_str().unwrap();
    format!("{kind} {namespace}/{name}")
}

pub(crate) fn of_kind<'a>(
    objects: &'a [Value],
    kind: &'static str,
) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// The workloads: objects with a pod template.
pub(crate) fn workloads(objects: &[Value]) -> impl Iterator<Item = &Value> {
    of_kind(objects, "DaemonSet").chain(of_kind(objects, "Deployment"))
}

/// The pods of a workload.
pub(crate) fn pod(workload: &Value) -> &Value {
    &workload["spec"]["template"]["spec"]
}

/// A container of a workload.
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) value: Value,
}

/// All containers, those that run first included.
pub(crate) fn containers(objects: &[Value]) -> Vec<Container> {
    let all = workloads(objects).flat_map(|workload| {
        ["initContainers", "containers"]
            .into_iter()
            .filter_map(|list| pod(workload)[list].as_array())
            .flatten()
    });
    let container = |value: &Value| {
        let name = value["name"].as_str().unwrap();
        Container {
            name: name.to_owned(),
            value: value.clone(),
        }
    };
    all.map(container).collect()
}

impl Container {
    /// True if it is one of the agents; the others only prepare the node.
    pub(crate) fn asks_the_api_server(&self) -> bool {
        let command = &self.value["command"];
        let words = command.as_array().map(Vec::as_slice).unwrap_or_default();
        let prepares = words.iter().any(|word| word == "--init-only");
        command[0] == "weft" && command[1] != "cni" && !prepares
    }

    /// The value of an environment variable, without expansion.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let variables = self.value["env"].as_array()?;
        let variable = variables.iter().find(|variable| variable["name"] == name)?;
        Some(variable["value"].as_str()?.to_owned())
    }
}
