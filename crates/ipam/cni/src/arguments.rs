//! The environment of a CNI call: `CNI_COMMAND`, the container and the pod in `CNI_ARGS`.

use std::ffi::OsString;

use weft_cns::PodContext;

use crate::{Code, Fault, SpecVersion, names};

/// A command of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Assigns addresses to an interface.
    Add,
    /// Releases them.
    Del,
    /// Compares the addresses of an earlier ADD with those the daemon holds.
    Check,
    /// Reports whether an ADD could be served.
    Status,
    /// Releases attachments that are not listed.
    Gc,
    /// Lists the supported versions.
    Version,
}

impl Command {
    /// Every command.
    pub const ALL: [Self; 6] = [
        Self::Add,
        Self::Del,
        Self::Check,
        Self::Status,
        Self::Gc,
        Self::Version,
    ];

    /// The value of `CNI_COMMAND`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Gc => "GC",
            Self::Version => "VERSION",
        }
    }

    /// The version of the specification that introduced it.
    pub const fn since(self) -> SpecVersion {
        match self {
            Self::Add | Self::Del | Self::Version => SpecVersion::V0_3_0,
            Self::Check => SpecVersion::V0_4_0,
            Self::Status | Self::Gc => SpecVersion::V1_1_0,
        }
    }

    const fn concerns_container(self) -> bool {
        matches!(self, Self::Add | Self::Del | Self::Check)
    }

    const fn needs_namespace(self) -> bool {
        matches!(self, Self::Add | Self::Check)
    }
}

/// The validated environment of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// The value of `CNI_COMMAND`.
    pub command: Command,
    /// Empty if the command is not about a container.
    pub container_id: String,
    /// Empty if the command is not about a container.
    pub ifname: String,
    /// From `CNI_ARGS`, where a Kubernetes runtime passes it.
    pub pod: Option<PodContext>,
}

impl Invocation {
    /// Reads and checks the environment. Commands that are not about a container ignore all
    /// variables but `CNI_COMMAND`.
    pub fn read(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, Fault> {
        let variable = |name: &str| text(environment, name);
        let command = command(&variable("CNI_COMMAND")?)?;
        let mut invocation = Self {
            command,
            container_id: String::new(),
            ifname: String::new(),
            pod: None,
        };
        if !command.concerns_container() {
            return Ok(invocation);
        }
        invocation.container_id = variable("CNI_CONTAINERID")?;
        invocation.ifname = variable("CNI_IFNAME")?;
        let namespace = variable("CNI_NETNS")?;
        require(&[
            ("CNI_CONTAINERID", !invocation.container_id.is_empty()),
            (
                "CNI_NETNS",
                !command.needs_namespace() || !namespace.is_empty(),
            ),
            ("CNI_IFNAME", !invocation.ifname.is_empty()),
        ])?;
        if !names::is_identifier(&invocation.container_id) {
            return Err(wrong("CNI_CONTAINERID", &invocation.container_id));
        }
        if !names::is_interface(&invocation.ifname) {
            return Err(wrong("CNI_IFNAME", &invocation.ifname));
        }
        invocation.pod = match pod(&variable("CNI_ARGS")?) {
            // A release frees its key, and the pod is only additional information: a malformed one
            // must not prevent the release.
            Err(_) if command == Command::Del => None,
            pod => pod?,
        };
        Ok(invocation)
    }
}

/// Reads a variable; an unset one is empty.
fn text(environment: &dyn Fn(&str) -> Option<OsString>, name: &str) -> Result<String, Fault> {
    environment(name)
        .unwrap_or_default()
        .into_string()
        .map_err(|value| wrong(name, &value.to_string_lossy()))
}

fn command(text: &str) -> Result<Command, Fault> {
    require(&[("CNI_COMMAND", !text.is_empty())])?;
    Command::ALL
        .into_iter()
        .find(|command| command.as_str() == text)
        .ok_or_else(|| wrong("CNI_COMMAND", text))
}

fn require(variables: &[(&str, bool)]) -> Result<(), Fault> {
    let missing: Vec<&str> = variables
        .iter()
        .filter(|(_, is_there)| !is_there)
        .map(|(name, _)| *name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Fault::new(
        Code::InvalidEnvironment,
        "required environment variables are missing",
        missing.join(", "),
    ))
}

fn wrong(name: &str, value: &str) -> Fault {
    // A value of any length and content must fit into a log line.
    let shown: String = value.chars().take(64).collect();
    Fault::new(
        Code::InvalidEnvironment,
        format!("invalid value of {name}"),
        format!("{shown:?}"),
    )
}

/// The pod in `K=V;K=V`. Unknown keys belong to other plugins and are ignored.
fn pod(arguments: &str) -> Result<Option<PodContext>, Fault> {
    let mut pod = PodContext::default();
    for pair in arguments.split(';').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| wrong("CNI_ARGS", pair))?;
        let checked = || {
            let valid = names::is_kubernetes(value).then(|| value.to_owned());
            valid.ok_or_else(|| wrong("CNI_ARGS", pair))
        };
        match key {
            "K8S_POD_NAME" => pod.pod_name = checked()?,
            "K8S_POD_NAMESPACE" => pod.pod_namespace = checked()?,
            // Runtimes without a UID pass the key with an empty value.
            "K8S_POD_UID" if !value.is_empty() => pod.pod_uid = Some(checked()?),
            _ => {}
        }
    }
    match (pod.pod_name.is_empty(), pod.pod_namespace.is_empty()) {
        (false, false) => Ok(Some(pod)),
        (true, true) => Ok(None),
        _ => Err(Fault::new(
            Code::InvalidEnvironment,
            "invalid value of CNI_ARGS",
            "K8S_POD_NAME and K8S_POD_NAMESPACE must be set together",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Invocation, Fault> {
        Invocation::read(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    const ADD: [(&str, &str); 4] = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/p"),
        ("CNI_IFNAME", "eth0"),
    ];

    fn with_arguments(command: &str, arguments: &str) -> Result<Invocation, Fault> {
        let mut variables = ADD.to_vec();
        variables[0].1 = command;
        variables.push(("CNI_ARGS", arguments));
        read(&variables)
    }

    #[test]
    fn a_pod_is_read_from_the_arguments() {
        let arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p0;\
                         K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=0-1-2";
        let invocation = with_arguments("ADD", arguments).unwrap();
        assert_eq!(
            invocation.pod,
            Some(PodContext {
                pod_name: "p0".to_owned(),
                pod_namespace: "default".to_owned(),
                pod_uid: Some("0-1-2".to_owned()),
            })
        );
    }

    #[test]
    fn every_missing_variable_is_named() {
        let fault = read(&[("CNI_COMMAND", "ADD")]).unwrap_err();
        assert_eq!(fault.code, Code::InvalidEnvironment);
        assert_eq!(fault.details, "CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME");
        let fault = read(&[("CNI_COMMAND", "DEL")]).unwrap_err();
        assert_eq!(
            fault.details, "CNI_CONTAINERID, CNI_IFNAME",
            "DEL needs no namespace"
        );
        assert_eq!(read(&[]).unwrap_err().details, "CNI_COMMAND");
    }

    #[test]
    fn an_invalid_variable_is_named() {
        for (name, value) in [
            ("CNI_COMMAND", "add"),
            ("CNI_CONTAINERID", "../../etc"),
            ("CNI_IFNAME", "a/b"),
            ("CNI_ARGS", "K8S_POD_NAME"),
            ("CNI_ARGS", "K8S_POD_NAME=a;K8S_POD_NAMESPACE=\u{1b}[2J"),
            ("CNI_ARGS", "K8S_POD_NAME=a"),
        ] {
            let mut variables = vec![(name, value)];
            variables.extend(ADD);
            let fault = read(&variables).unwrap_err();
            assert_eq!(fault.code, Code::InvalidEnvironment, "{name}");
            assert!(fault.message.contains(name), "{fault:?}");
        }
    }

    #[test]
    fn invalid_arguments_do_not_stop_a_release() {
        assert!(with_arguments("ADD", "nonsense").is_err());
        assert_eq!(with_arguments("DEL", "nonsense").unwrap().pod, None);
    }
}
