//! The configuration that a runtime reads. Values from flags get in as values: nothing in them
//! can become structure.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use weft_cni::{PLUGIN, SpecVersion};

/// The plugin that creates interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum MainPlugin {
    /// All pods of the node behind one bridge
    Bridge,
    /// A link of its own for each pod
    Ptp,
}

/// Settings of interfaces.
pub(super) struct Main<'a> {
    pub(super) plugin: MainPlugin,
    pub(super) bridge: &'a str,
    pub(super) ip_masq: bool,
    pub(super) mtu: Option<u16>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Conflist {
    cni_version: SpecVersion,
    name: String,
    plugins: Vec<Plugin>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Plugin {
    Bridge(Bridge),
    Ptp(Ptp),
    Portmap { capabilities: Capabilities },
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a setting of the plugin"
)]
struct Bridge {
    #[serde(rename = "bridge")]
    device: String,
    is_gateway: bool,
    force_address: bool,
    hairpin_mode: bool,
    ip_masq: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u16>,
    ipam: Ipam,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Ptp {
    ip_masq: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u16>,
    ipam: Ipam,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Capabilities {
    port_mappings: bool,
}

/// The part that is ours.
#[derive(Debug, Serialize)]
pub(super) struct Ipam {
    #[serde(rename = "type")]
    kind: &'static str,
    socket: String,
    queue: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<String>,
}

impl Ipam {
    pub(super) fn new(socket: &Path, queue: &Path, log: Option<&Path>) -> Self {
        // Flags are text already.
        let text = |path: &Path| path.to_string_lossy().into_owned();
        Self {
            kind: PLUGIN,
            socket: text(socket),
            queue: text(queue),
            log: log.map(text),
        }
    }
}

impl Conflist {
    pub(super) fn new(
        cni_version: SpecVersion,
        name: &str,
        main: &Main<'_>,
        ipam: Ipam,
        portmap: bool,
    ) -> Self {
        let Main { ip_masq, mtu, .. } = *main;
        let interfaces = match main.plugin {
            MainPlugin::Bridge => Plugin::Bridge(Bridge {
                device: main.bridge.to_owned(),
                is_gateway: true,
                // A gateway of a former range is replaced; otherwise every ADD would fail.
                force_address: true,
                // A pod may be the endpoint of the Service it asks.
                hairpin_mode: true,
                ip_masq,
                mtu,
                ipam,
            }),
            MainPlugin::Ptp => Plugin::Ptp(Ptp { ip_masq, mtu, ipam }),
        };
        let ports = portmap.then_some(Plugin::Portmap {
            capabilities: Capabilities {
                port_mappings: true,
            },
        });
        Self {
            cni_version,
            name: name.to_owned(),
            plugins: [interfaces].into_iter().chain(ports).collect(),
        }
    }

    /// The programs that it names besides ours.
    pub(super) fn others(&self) -> impl Iterator<Item = &'static str> {
        self.plugins.iter().map(|plugin| match plugin {
            Plugin::Bridge(_) => "bridge",
            Plugin::Ptp(_) => "ptp",
            Plugin::Portmap { .. } => "portmap",
        })
    }

    pub(super) fn to_text(&self) -> anyhow::Result<Vec<u8>> {
        let mut text =
            serde_json::to_vec_pretty(self).context("cannot encode the configuration")?;
        text.push(b'\n');
        Ok(text)
    }
}
