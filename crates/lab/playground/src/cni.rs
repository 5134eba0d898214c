//! The CNI part of a container runtime: reads the configuration and calls its plugins one by one.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use serde_json::Value;
use thiserror::Error;

use crate::{
    place::Place,
    program::{ProgramError, output},
};

/// Name of a pod's interface.
const DEVICE: &str = "eth0";

/// A CNI operation failed.
#[derive(Debug, Error)]
pub(crate) enum CniError {
    /// The node has no configuration yet.
    #[error("cannot find a CNI configuration in {0}")]
    Unconfigured(PathBuf),
    /// The configuration cannot be used.
    #[error("cannot use the CNI configuration {path}")]
    Configuration {
        /// Path of the file.
        path: PathBuf,
        /// Error of reading or parsing it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A plugin failed.
    #[error("{plugin} {verb}: {said}")]
    Plugin {
        /// Name of the plugin.
        plugin: String,
        /// `ADD` or `DEL`.
        verb: &'static str,
        /// Message of the plugin.
        said: String,
    },
    /// The result of a plugin is not JSON.
    #[error("cannot parse the result of {plugin}")]
    Answer {
        /// Name of the plugin.
        plugin: String,
        /// Error of parsing it.
        source: serde_json::Error,
    },
}

/// Directories of a node's plugins and configurations, and the place where its plugins run.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    pub(crate) programs: PathBuf,
    pub(crate) configurations: PathBuf,
    pub(crate) place: Place,
}

/// The pod that a plugin is called for.
#[derive(Clone, Debug)]
pub(crate) struct Attachment {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Path of its network namespace.
    pub(crate) network: PathBuf,
}

/// The configuration with which a pod was attached, and the result of the last plugin.
#[derive(Clone, Debug)]
pub(crate) struct Attached {
    configuration: Value,
    result: Value,
}

impl Attached {
    /// The pod's addresses.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let entries = self.result["ips"].as_array().into_iter().flatten();
        let texts = entries.filter_map(|entry| entry["address"].as_str());
        texts
            .filter_map(|text| text.split('/').next()?.parse().ok())
            .collect()
    }
}

impl Runtime {
    /// The effective configuration: the first file by name.
    pub(crate) fn configuration(&self) -> Result<Value, CniError> {
        let unconfigured = || CniError::Unconfigured(self.configurations.clone());
        let entries = fs::read_dir(&self.configurations).map_err(|_| unconfigured())?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|kind| kind == "conflist"))
            .collect();
        files.sort();
        let path = files.into_iter().next().ok_or_else(unconfigured)?;
        let path = self.followed(path);
        if !path.exists() {
            return Err(unconfigured());
        }
        read(&path).map_err(|source| CniError::Configuration { path, source })
    }

    /// The file that a link leads to, as programs of this node see it.
    fn followed(&self, path: PathBuf) -> PathBuf {
        let Ok(target) = fs::read_link(&path) else {
            return path;
        };
        let mut mounts = self.place.mounts.iter();
        let inside = mounts.find_map(|(source, mounted)| {
            let rest = target.strip_prefix(mounted).ok()?;
            Some(source.join(rest))
        });
        inside.unwrap_or(path)
    }

    /// Attaches a pod: `ADD` with every plugin.
    pub(crate) fn add(&self, pod: &Attachment) -> Result<Attached, CniError> {
        let configuration = self.configuration()?;
        let mut result = Value::Null;
        for plugin in plugins(&configuration) {
            result = self.call("ADD", pod, &configuration, plugin, &result)?;
        }
        Ok(Attached {
            configuration,
            result,
        })
    }

    /// Detaches a pod, also one that was attached only in part: `DEL` with every plugin in reverse.
    pub(crate) fn delete(
        &self,
        pod: &Attachment,
        attached: Option<&Attached>,
    ) -> Result<(), CniError> {
        let (configuration, result) = match attached {
            Some(attached) => (attached.configuration.clone(), &attached.result),
            None => (self.configuration()?, &Value::Null),
        };
        for plugin in plugins(&configuration).rev() {
            self.call("DEL", pod, &configuration, plugin, result)?;
        }
        Ok(())
    }

    fn call(
        &self,
        verb: &'static str,
        pod: &Attachment,
        configuration: &Value,
        plugin: &Value,
        previous: &Value,
    ) -> Result<Value, CniError> {
        let name = plugin["type"].as_str().unwrap_or_default();
        let mut input = plugin.clone();
        input["name"] = configuration["name"].clone();
        input["cniVersion"] = configuration["cniVersion"].clone();
        if !previous.is_null() {
            input["prevResult"] = previous.clone();
        }
        let program = self.programs.join(name);
        let mut command = self.place.command(&[program.display().to_string()]);
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &pod.uid)
            .env("CNI_NETNS", &pod.network)
            .env("CNI_IFNAME", DEVICE)
            .env("CNI_PATH", &self.programs)
            .env("CNI_ARGS", arguments(pod));
        let answer = output(&mut command, input.to_string().as_bytes());
        let answer = answer.map_err(|error| CniError::Plugin {
            plugin: name.to_owned(),
            verb,
            said: complaint(&error),
        })?;
        if verb == "DEL" {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer).map_err(|source| CniError::Answer {
            plugin: name.to_owned(),
            source,
        })
    }
}

/// The message of a failed plugin: that of its JSON error, or its whole output.
fn complaint(error: &ProgramError) -> String {
    let ProgramError::Failed { said, .. } = error else {
        return weft_model::error_text(error);
    };
    let begin = said.find('{').unwrap_or_default();
    let value: Option<Value> = serde_json::from_str(&said[begin..]).ok();
    let message = value.and_then(|value| {
        let details = value["details"]
            .as_str()
            .map(|details| format!(": {details}"));
        Some(value["msg"].as_str()?.to_owned() + &details.unwrap_or_default())
    });
    message.unwrap_or_else(|| said.clone())
}

/// `CNI_ARGS` as container runtimes set it for Kubernetes.
fn arguments(pod: &Attachment) -> String {
    format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
        pod.namespace, pod.name, pod.uid, pod.uid
    )
}

fn plugins(configuration: &Value) -> std::slice::Iter<'_, Value> {
    configuration["plugins"]
        .as_array()
        .map_or([].iter(), |plugins| plugins.iter())
}

fn read(path: &Path) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
    let value: Value = serde_json::from_slice(&fs::read(path)?)?;
    if value["plugins"].as_array().is_none_or(Vec::is_empty) {
        return Err("the list of plugins is empty".into());
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_configuration_by_name_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let runtime = Runtime {
            programs: PathBuf::new(),
            configurations: directory.path().to_owned(),
            place: Place {
                namespace: String::new(),
                mounts: Vec::new(),
            },
        };
        assert!(matches!(
            runtime.configuration(),
            Err(CniError::Unconfigured(_))
        ));
        for (file, name) in [
            ("20-b.conflist", "b"),
            ("10-a.conflist", "a"),
            ("00.txt", "c"),
        ] {
            let text = json!({"name": name, "plugins": [{"type": "bridge"}]}).to_string();
            fs::write(directory.path().join(file), text).unwrap();
        }
        assert_eq!(runtime.configuration().unwrap()["name"], "a");
        fs::write(directory.path().join("05.conflist"), "{}").unwrap();
        assert!(matches!(
            runtime.configuration(),
            Err(CniError::Configuration { .. })
        ));
    }

    #[test]
    fn a_link_leads_where_programs_of_the_node_see_it() {
        let directory = tempfile::tempdir().unwrap();
        let memory = directory.path().join("run");
        fs::create_dir(&memory).unwrap();
        let runtime = Runtime {
            programs: PathBuf::new(),
            configurations: directory.path().to_owned(),
            place: Place {
                namespace: String::new(),
                mounts: vec![(memory.clone(), "/run/weft".into())],
            },
        };
        let link = directory.path().join("10-a.conflist");
        std::os::unix::fs::symlink("/run/weft/10-a.conflist", link).unwrap();
        assert!(
            matches!(runtime.configuration(), Err(CniError::Unconfigured(_))),
            "as after a reboot"
        );
        let text = json!({"name": "a", "plugins": [{"type": "bridge"}]}).to_string();
        fs::write(memory.join("10-a.conflist"), text).unwrap();
        assert_eq!(runtime.configuration().unwrap()["name"], "a");
    }

    #[test]
    fn addresses_are_read_from_the_last_result() {
        let attached = Attached {
            configuration: json!({}),
            result: json!({"ips": [
                {"address": "10.244.0.5/24"}, {"address": "fd00::5/64"}, {"address": "nonsense"},
            ]}),
        };
        let addresses: Vec<IpAddr> = ["10.244.0.5", "fd00::5"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(attached.addresses(), addresses);
    }
}
