//! The network configuration of a call, from standard input.

use std::path::{Component, Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use std::net::IpAddr;
use weft_cns::Attachment;

use crate::{Code, Command, DEFAULT_QUEUE, DEFAULT_SOCKET, Fault, SpecVersion, names};

/// Longest path that the kernel accepts for a Unix socket, in bytes.
const LONGEST_SOCKET_PATH: usize = 107;

/// The parts of the calling plugin's configuration that concern addresses. Other fields are
/// ignored.
#[derive(Debug)]
pub struct NetworkConfig {
    /// Version of the result.
    pub version: SpecVersion,
    /// The network's name: part of every key.
    pub name: String,
    /// This plugin's object.
    pub ipam: Ipam,
    previous: Option<Box<RawValue>>,
    attachments: Option<Box<RawValue>>,
    runtime: Option<Box<RawValue>>,
}

/// The object `ipam`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ipam {
    /// This plugin's name, by which the caller finds it.
    #[serde(rename = "type")]
    pub kind: String,
    /// The daemon's socket.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// Directory of the release queue.
    #[serde(default = "default_queue")]
    pub queue: PathBuf,
    /// A file that gets a line for each call.
    #[serde(default)]
    pub log: Option<PathBuf>,
    /// Routes for the pod in place of the default route of each family.
    #[serde(default)]
    pub routes: Option<Vec<ConfiguredRoute>>,
}

/// A route that the configuration asks for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredRoute {
    /// Destination of the route.
    pub dst: IpNet,
    /// Next hop; none means the gateway of the address.
    #[serde(default)]
    pub gw: Option<IpAddr>,
}

fn default_socket() -> PathBuf {
    DEFAULT_SOCKET.into()
}

fn default_queue() -> PathBuf {
    DEFAULT_QUEUE.into()
}

/// The part that is decoded first: the version decides the format of every answer.
#[derive(Deserialize)]
struct Versioned {
    #[serde(rename = "cniVersion")]
    version: Option<String>,
}

/// The version to answer in, as far as the input can be decoded.
pub(crate) fn version_of(input: &[u8]) -> Option<SpecVersion> {
    let versioned: Versioned = serde_json::from_slice(input).ok()?;
    SpecVersion::parse(&versioned.version?)
}

#[derive(Deserialize)]
struct Wire {
    #[serde(rename = "cniVersion")]
    version: Option<String>,
    name: Option<String>,
    ipam: Option<Box<RawValue>>,
    #[serde(rename = "prevResult")]
    previous: Option<Box<RawValue>>,
    #[serde(rename = "cni.dev/valid-attachments")]
    attachments: Option<Box<RawValue>>,
    #[serde(rename = "runtimeConfig")]
    runtime: Option<Box<RawValue>>,
}

impl NetworkConfig {
    /// Reads and checks a configuration for a command.
    pub fn parse(input: &[u8], command: Command) -> Result<Self, Fault> {
        let wire: Wire = serde_json::from_slice(input).map_err(|error| {
            Fault::new(
                Code::Undecodable,
                "cannot decode the network configuration",
                error,
            )
        })?;
        let version = negotiate(wire.version.as_deref(), command)?;
        let name = wire.name.unwrap_or_default();
        if !names::is_identifier(&name) {
            let shown: String = name.chars().take(64).collect();
            return Err(invalid("name", format!("{shown:?} is not a network name")));
        }
        let ipam = wire.ipam.ok_or_else(|| invalid("ipam", "it is missing"))?;
        let ipam: Ipam = decode("ipam", &ipam)?;
        check_path("ipam.socket", &ipam.socket)?;
        check_path("ipam.queue", &ipam.queue)?;
        if let Some(log) = &ipam.log {
            check_path("ipam.log", log)?;
        }
        if ipam.socket.as_os_str().len() > LONGEST_SOCKET_PATH {
            return Err(invalid("ipam.socket", "the path is too long for a socket"));
        }
        Ok(Self {
            version,
            name,
            ipam,
            previous: wire.previous,
            attachments: wire.attachments,
            runtime: wire.runtime,
        })
    }

    /// The addresses of `prevResult`.
    pub(crate) fn previous_addresses(&self) -> Result<Vec<IpAddr>, Fault> {
        #[derive(Deserialize)]
        struct Previous {
            #[serde(default)]
            ips: Vec<Address>,
        }
        #[derive(Deserialize)]
        struct Address {
            address: IpNet,
        }
        let previous = self.previous.as_deref();
        let previous = previous.ok_or_else(|| invalid("prevResult", "it is required by CHECK"))?;
        let previous: Previous = decode("prevResult", previous)?;
        Ok(previous.ips.iter().map(|ip| ip.address.addr()).collect())
    }

    /// The attachments that a GC must not release. A missing list is an error: it does not mean
    /// that no attachment exists.
    pub(crate) fn valid_attachments(&self) -> Result<Vec<Attachment>, Fault> {
        const FIELD: &str = "cni.dev/valid-attachments";
        let list = self.attachments.as_deref();
        let list = list.ok_or_else(|| invalid(FIELD, "it is required by GC"))?;
        let list: Vec<Attachment> = decode(FIELD, list)?;
        let is_odd = |attachment: &&Attachment| {
            !names::is_identifier(&attachment.container_id)
                || !names::is_interface(&attachment.ifname)
        };
        match list.iter().find(is_odd) {
            None => Ok(list),
            Some(_) => Err(invalid(
                FIELD,
                "an entry is not a container id with an interface",
            )),
        }
    }

    /// Addresses that the runtime asks for, by the capability `ips`.
    pub(crate) fn desired_addresses(&self) -> Result<Vec<IpAddr>, Fault> {
        #[derive(Deserialize)]
        struct Runtime {
            #[serde(default)]
            ips: Vec<String>,
        }
        let Some(runtime) = self.runtime.as_deref() else {
            return Ok(Vec::new());
        };
        let runtime: Runtime = decode("runtimeConfig", runtime)?;
        runtime.ips.iter().map(|text| desired(text)).collect()
    }
}

/// An address with or without a prefix length: runtimes pass either.
fn desired(text: &str) -> Result<IpAddr, Fault> {
    let with_prefix = || text.parse::<IpNet>().ok().map(|net| net.addr());
    text.parse().ok().or_else(with_prefix).ok_or_else(|| {
        let shown: String = text.chars().take(64).collect();
        invalid(
            "runtimeConfig.ips",
            format!("{shown:?} is not an IP address"),
        )
    })
}

fn negotiate(text: Option<&str>, command: Command) -> Result<SpecVersion, Fault> {
    let incompatible = |details: String| {
        Fault::new(
            Code::IncompatibleVersion,
            "incompatible CNI version",
            details,
        )
    };
    let Some(text) = text else {
        return Err(incompatible(
            "cniVersion is missing, which means 0.1.0; this plugin supports 0.3.0 to 1.1.0"
                .to_owned(),
        ));
    };
    let version = SpecVersion::parse(text).ok_or_else(|| {
        let shown: String = text.chars().take(32).collect();
        incompatible(format!(
            "the configuration is of {shown:?}; this plugin supports 0.3.0 to 1.1.0"
        ))
    })?;
    if version < command.since() {
        return Err(incompatible(format!(
            "{} exists since {}, the configuration is of {version}",
            command.as_str(),
            command.since()
        )));
    }
    Ok(version)
}

fn decode<T: DeserializeOwned>(field: &str, value: &RawValue) -> Result<T, Fault> {
    serde_json::from_str(value.get()).map_err(|error| invalid(field, error))
}

fn invalid(field: &str, details: impl std::fmt::Display) -> Fault {
    Fault::new(
        Code::InvalidConfig,
        format!("invalid {field} in the network configuration"),
        details,
    )
}

/// Requires an absolute path without `.` and `..`, so that the configuration shows the real path.
fn check_path(field: &str, path: &Path) -> Result<(), Fault> {
    let is_plain = path
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let has_zero = path.as_os_str().as_encoded_bytes().contains(&0);
    if path.is_absolute() && is_plain && !has_zero {
        return Ok(());
    }
    Err(invalid(field, "expected an absolute path without .."))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(config: &Value, command: Command) -> Result<NetworkConfig, Fault> {
        NetworkConfig::parse(config.to_string().as_bytes(), command)
    }

    fn config() -> Value {
        json!({"cniVersion": "1.0.0", "name": "podnet", "type": "ptp", "ipMasq": true,
               "ipam": {"type": "weft-cni"}})
    }

    #[test]
    fn fields_of_the_caller_are_ignored() {
        let parsed = parse(&config(), Command::Add).unwrap();
        assert_eq!(parsed.version, SpecVersion::V1_0_0);
        assert_eq!(parsed.ipam.socket, Path::new(DEFAULT_SOCKET));
        assert_eq!(parsed.ipam.queue, Path::new(DEFAULT_QUEUE));
    }

    #[test]
    fn each_invalid_field_is_named_with_its_code() {
        use Code::{IncompatibleVersion, InvalidConfig, Undecodable};
        for (change, code, named) in [
            (json!({"cniVersion": null}), IncompatibleVersion, "0.1.0"),
            (json!({"cniVersion": "0.2.0"}), IncompatibleVersion, "0.2.0"),
            (json!({"cniVersion": "1.2.0"}), IncompatibleVersion, "1.2.0"),
            (json!({"cniVersion": 1}), Undecodable, ""),
            (json!({"name": null}), InvalidConfig, "name"),
            (json!({"name": "../etc"}), InvalidConfig, "name"),
            (json!({"ipam": null}), InvalidConfig, "ipam"),
            (json!({"ipam": []}), InvalidConfig, "ipam"),
            (json!({"ipam": {}}), InvalidConfig, "type"),
            (
                json!({"ipam": {"type": "weft-cni", "sokcet": "/a"}}),
                InvalidConfig,
                "sokcet",
            ),
            (
                json!({"ipam": {"type": "weft-cni", "socket": "a"}}),
                InvalidConfig,
                "socket",
            ),
            (
                json!({"ipam": {"type": "weft-cni", "socket": "/a\u{0}"}}),
                InvalidConfig,
                "socket",
            ),
            (
                json!({"ipam": {"type": "weft-cni", "queue": "/a/../b"}}),
                InvalidConfig,
                "queue",
            ),
            (
                json!({"ipam": {"type": "weft-cni", "log": "b"}}),
                InvalidConfig,
                "log",
            ),
            (
                json!({"ipam": {"type": "weft-cni", "socket": format!("/{}", "a".repeat(107))}}),
                InvalidConfig,
                "too long",
            ),
        ] {
            let mut broken = config();
            for (key, value) in change.as_object().unwrap() {
                broken[key] = value.clone();
            }
            let fault = parse(&broken, Command::Add).unwrap_err();
            assert_eq!(fault.code, code, "{change}: {fault:?}");
            let text = format!("{} {}", fault.message, fault.details);
            assert!(text.contains(named), "{change}: {text}");
        }
    }

    #[test]
    fn a_command_newer_than_the_configuration_is_refused() {
        for version in SpecVersion::ALL {
            for command in Command::ALL {
                let mut config = config();
                config["cniVersion"] = json!(version.as_str());
                let refused = parse(&config, command).is_err();
                assert_eq!(
                    refused,
                    version < command.since(),
                    "{command:?} in {version}"
                );
            }
        }
    }

    #[test]
    fn a_clean_up_without_a_list_frees_nothing() {
        let mut config = config();
        config["cniVersion"] = json!("1.1.0");
        let list = |config: &Value| parse(config, Command::Gc).unwrap().valid_attachments();
        assert_eq!(list(&config).unwrap_err().code, Code::InvalidConfig);
        config["cni.dev/valid-attachments"] = json!([]);
        assert_eq!(list(&config).unwrap(), []);
        config["cni.dev/valid-attachments"] = json!([{"containerID": "c1", "ifname": "eth0"}]);
        assert_eq!(list(&config).unwrap()[0].container_id, "c1");
        config["cni.dev/valid-attachments"] = json!([{"containerID": "", "ifname": "eth0"}]);
        assert_eq!(list(&config).unwrap_err().code, Code::InvalidConfig);
    }

    #[test]
    fn desired_addresses_come_with_or_without_a_prefix() {
        let mut config = config();
        config["runtimeConfig"] = json!({"ips": ["10.1.0.7/16", "fd00::7"], "portMappings": []});
        let desired = |config: &Value| parse(config, Command::Add).unwrap().desired_addresses();
        let expected: [IpAddr; 2] = ["10.1.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        assert_eq!(desired(&config).unwrap(), expected);
        config["runtimeConfig"] = json!({"ips": ["10.1.0"]});
        assert_eq!(desired(&config).unwrap_err().code, Code::InvalidConfig);
    }
}
