//! Manifests of `deploy/` that the playground uses: objects to create, and command lines of
//! containers.

use serde_json::Value;
use thiserror::Error;

/// Custom resource definitions.
pub(crate) const DEFINITIONS: [&str; 4] = [
    include_str!("../../../../deploy/crds/clustersubnetstates.yaml"),
    include_str!("../../../../deploy/crds/ippools.yaml"),
    include_str!("../../../../deploy/crds/ippoolshards.yaml"),
    include_str!("../../../../deploy/crds/nodenetworkconfigs.yaml"),
];
/// RBAC objects and admission policies.
pub(crate) const RIGHTS: [&str; 2] = [
    include_str!("../../../../deploy/controller/rights.yaml"),
    include_str!("../../../../deploy/node/rights.yaml"),
];
/// DaemonSet of the node agents.
pub(crate) const NODE: &str = include_str!("../../../../deploy/node/daemonset.yaml");
/// Deployment of the controller.
pub(crate) const CONTROLLER: &str = include_str!("../../../../deploy/controller/deployment.yaml");

/// A manifest could not be read.
#[derive(Debug, Error)]
#[error("cannot use a manifest: {0}")]
pub struct ManifestError(String);

/// A container of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Container {
    /// Name, which is also that of its component.
    pub(crate) name: String,
    /// Command line with references to the environment.
    pub(crate) command: Vec<String>,
    /// Names and literal values of its environment.
    environment: Vec<(String, String)>,
}

/// All objects of a manifest.
pub(crate) fn objects(manifest: &str) -> Result<Vec<Value>, ManifestError> {
    serde_saphyr::from_multiple(manifest).map_err(|error| ManifestError(error.to_string()))
}

/// The containers that the workload in a manifest runs.
pub(crate) fn containers(manifest: &str) -> Result<Vec<Container>, ManifestError> {
    let objects = objects(manifest)?;
    let containers = objects
        .iter()
        .find_map(|object| object.pointer("/spec/template/spec/containers")?.as_array())
        .ok_or_else(|| ManifestError("it has no workload with containers".to_owned()))?;
    containers.iter().map(container).collect()
}

fn container(value: &Value) -> Result<Container, ManifestError> {
    let missing = |what: &str| ManifestError(format!("a container has no {what}"));
    let name = value["name"].as_str().ok_or_else(|| missing("name"))?;
    let command = value["command"]
        .as_array()
        .ok_or_else(|| missing("command"))?;
    let words: Option<Vec<String>> = command
        .iter()
        .map(|word| word.as_str().map(str::to_owned))
        .collect();
    Ok(Container {
        name: name.to_owned(),
        command: words.ok_or_else(|| missing("command that is a list of strings"))?,
        environment: environment(value),
    })
}

fn environment(container: &Value) -> Vec<(String, String)> {
    let variables = container["env"].as_array().map(Vec::as_slice);
    let literal = |variable: &Value| {
        let (name, value) = (variable["name"].as_str()?, variable["value"].as_str()?);
        Some((name.to_owned(), value.to_owned()))
    };
    let variables = variables.unwrap_or_default().iter();
    variables.filter_map(literal).collect()
}

impl Container {
    /// Its command line with `$(NAME)` replaced, as by a kubelet, and another program. Values in
    /// `known` have precedence over those of the manifest.
    pub(crate) fn line(&self, program: &str, known: &[(&str, &str)]) -> Vec<String> {
        let written = self.environment.iter();
        let written = written.map(|(name, value)| (&**name, &**value));
        let all: Vec<(&str, &str)> = known.iter().copied().chain(written).collect();
        let words = self.command.iter().skip(1).map(|word| {
            all.iter().fold(word.clone(), |word, (name, value)| {
                word.replace(&format!("$({name})"), value)
            })
        });
        std::iter::once(program.to_owned()).chain(words).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_have_the_expected_containers() {
        let names = |manifest| -> Vec<String> {
            let containers = containers(manifest).unwrap();
            containers
                .into_iter()
                .map(|container| container.name)
                .collect()
        };
        assert_eq!(names(NODE), ["proxy", "ipam", "routes", "cni"]);
        assert_eq!(names(CONTROLLER), ["controller"]);
    }

    #[test]
    fn references_to_the_environment_are_replaced_and_the_program_is_ours() {
        let proxy = &containers(NODE).unwrap()[0];
        let line = proxy.line("/bin/weft", &[("NODE_NAME", "node-1")]);
        assert_eq!(line[..2], ["/bin/weft", "proxy"]);
        assert!(line.contains(&"--hostname-override=node-1".to_owned()));
    }

    #[test]
    fn known_values_have_precedence_over_the_manifest() {
        let ipam = &containers(NODE).unwrap()[1];
        let line = ipam.line("weft", &[("NODE_NAME", "n"), ("HOST_ROOT", "/r")]);
        assert_eq!(line.last().unwrap(), "--root-dir=/r");
        let line = ipam.line("weft", &[("NODE_NAME", "n")]);
        assert_eq!(line.last().unwrap(), "--root-dir=/");
    }

    #[test]
    fn every_reference_is_one_that_the_playground_knows() {
        for manifest in [NODE, CONTROLLER] {
            for container in containers(manifest).unwrap() {
                let line = container.line("weft", &[("NODE_NAME", "n"), ("HOST_ROOT", "/r")]);
                assert!(!line.iter().any(|word| word.contains("$(")), "{line:?}");
            }
        }
    }
}
