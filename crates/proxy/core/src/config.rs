//! kube-proxy's configuration, `kubeproxy.config.k8s.io/v1alpha1`.
//!
//! A [`KubeProxyConfiguration`] is what a file or flags say, in the file's own words, so that it
//! can be printed again. [`check`](KubeProxyConfiguration::check) turns it into a [`ProxyConfig`],
//! in which everything has a type, or tells all that is wrong with it at once.

mod check;
mod checked;
mod decode;
mod duration;
mod print;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use check::{FieldError, InvalidConfiguration};
pub use checked::{
    ClientConfig, ConntrackLimits, DetectLocal, Mode, NodeNetwork, NodePortSource, ProxyConfig,
    address_with_port,
};
pub use decode::{DecodeError, Decoded, decode};
pub use duration::{DurationError, GoDuration};

/// The group and version of the configuration.
/// The gate by which external addresses of Services can be switched off.
pub const EXTERNAL_IPS_GATE: &str = "AllowServiceExternalIPs";
/// Group and version of the file.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The kind of the configuration.
pub const KIND: &str = "KubeProxyConfiguration";
/// Where `/healthz` is served unless told otherwise.
pub const HEALTHZ_PORT: u16 = 10256;
/// Where metrics are served unless told otherwise.
pub const METRICS_PORT: u16 = 10249;

/// Everything that can be configured, with defaults where nothing was said. Fields stand in the
/// order in which kube-proxy prints them, which is that of the alphabet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeProxyConfiguration {
    /// The node's primary address, if it is not to be taken from the Node. Nothing binds to it.
    pub bind_address: String,
    /// Whether a port that cannot be bound ends the process.
    pub bind_address_hard_fail: bool,
    /// How to talk to the API server.
    pub client_connection: ClientConnection,
    /// The pods' networks, at most one for each family, separated by a comma.
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    /// How often everything is read again; watches make it unnecessary.
    pub config_sync_period: GoDuration,
    /// Limits of connection tracking.
    pub conntrack: Conntrack,
    /// Names for two of the modes below.
    pub detect_local: DetectLocalNames,
    /// How traffic of this node's pods is told.
    pub detect_local_mode: String,
    /// Whether profiles are served.
    pub enable_profiling: bool,
    /// Features switched on and off.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    /// Where `/healthz` is served; empty for nowhere.
    pub healthz_bind_address: String,
    /// The node's name, if it is not the host's.
    pub hostname_override: String,
    /// What concerns the iptables mode.
    pub iptables: Iptables,
    /// Another mode's section, kept as it is.
    pub ipvs: Map<String, Value>,
    /// How to log.
    pub logging: Logging,
    /// Where metrics are served; empty for nowhere.
    pub metrics_bind_address: String,
    /// The mode: `iptables` or `nftables`.
    pub mode: String,
    /// What concerns the nftables mode.
    pub nftables: Nftables,
    /// On which addresses NodePorts answer: networks, or `primary` alone. All if not set.
    pub node_port_addresses: Option<Vec<String>>,
    /// How willingly the kernel ends this process for want of memory.
    pub oom_score_adj: i32,
    /// Unused.
    pub port_range: String,
    /// A release whose hidden metrics are to be shown. We hide none.
    pub show_hidden_metrics_for_version: String,
    /// For Windows.
    #[serde(skip_serializing_if = "is_false")]
    pub windows_run_as_service: bool,
    /// Another mode's section, kept as it is.
    pub winkernel: Map<String, Value>,
}

/// How to talk to the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientConnection {
    /// Content types that may be answered with.
    pub accept_content_types: String,
    /// Requests at once, beyond the rate below.
    pub burst: i32,
    /// Content type of requests.
    pub content_type: String,
    /// The kubeconfig file; empty inside a cluster.
    pub kubeconfig: String,
    /// Requests in a second.
    pub qps: f32,
}

/// Limits of connection tracking. Zero leaves the kernel's value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conntrack {
    /// Entries for each processor.
    pub max_per_core: i32,
    /// Entries at least.
    pub min: i32,
    /// Whether segments out of window are let through.
    pub tcp_be_liberal: bool,
    /// How long a half-closed connection is remembered.
    pub tcp_close_wait_timeout: GoDuration,
    /// How long a silent connection is remembered.
    pub tcp_established_timeout: GoDuration,
    /// How long a UDP flow with answers is remembered.
    pub udp_stream_timeout: GoDuration,
    /// How long a UDP flow without answers is remembered.
    pub udp_timeout: GoDuration,
}

/// Names for two of the ways to tell local traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DetectLocalNames {
    /// The bridge of mode `BridgeInterface`.
    pub bridge_interface: String,
    /// The beginning of names in mode `InterfaceNamePrefix`.
    pub interface_name_prefix: String,
}

/// What concerns the iptables mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Iptables {
    /// Whether NodePorts answer on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// Whether all traffic to ClusterIPs is masqueraded.
    pub masquerade_all: bool,
    /// The bit of the packet mark that asks for masquerading.
    pub masquerade_bit: i32,
    /// The least time between two syncs.
    pub min_sync_period: GoDuration,
    /// The time after which a failed sync is tried again.
    pub sync_period: GoDuration,
}

/// What concerns the nftables mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nftables {
    /// Whether all traffic to ClusterIPs is masqueraded.
    pub masquerade_all: bool,
    /// The bit of the packet mark that asks for masquerading.
    pub masquerade_bit: i32,
    /// The least time between two syncs.
    pub min_sync_period: GoDuration,
    /// The time after which a failed sync is tried again; zero is 30 s.
    pub sync_period: GoDuration,
}

/// How to log. Of this we use format and verbosity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Logging {
    /// How long lines may stay in a buffer; ours do not.
    pub flush_frequency: Value,
    /// `text` or `json`.
    pub format: String,
    /// Options of the formats, kept as they are.
    pub options: Value,
    /// How much to log, as in `-v`.
    pub verbosity: u32,
    /// How much to log for files of kube-proxy's source.
    #[serde(skip_serializing_if = "is_empty_list")]
    pub vmodule: Value,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

fn is_empty_list(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

impl Default for KubeProxyConfiguration {
    fn default() -> Self {
        Self {
            bind_address: "0.0.0.0".to_owned(),
            bind_address_hard_fail: false,
            client_connection: ClientConnection::default(),
            cluster_cidr: String::new(),
            config_sync_period: GoDuration::from_seconds(15 * 60),
            conntrack: Conntrack::default(),
            detect_local: DetectLocalNames::default(),
            detect_local_mode: "ClusterCIDR".to_owned(),
            enable_profiling: false,
            feature_gates: BTreeMap::new(),
            healthz_bind_address: format!("0.0.0.0:{HEALTHZ_PORT}"),
            hostname_override: String::new(),
            iptables: Iptables::default(),
            ipvs: section(json!({
                "excludeCIDRs": null,
                "minSyncPeriod": "0s",
                "scheduler": "",
                "strictARP": false,
                "syncPeriod": "0s",
                "tcpFinTimeout": "0s",
                "tcpTimeout": "0s",
                "udpTimeout": "0s",
            })),
            logging: Logging::default(),
            metrics_bind_address: format!("127.0.0.1:{METRICS_PORT}"),
            mode: "iptables".to_owned(),
            nftables: Nftables::default(),
            node_port_addresses: None,
            oom_score_adj: -999,
            port_range: String::new(),
            show_hidden_metrics_for_version: String::new(),
            windows_run_as_service: false,
            winkernel: section(json!({
                "enableDSR": false,
                "forwardHealthCheckVip": false,
                "networkName": "",
                "rootHnsEndpointName": "",
                "sourceVip": "",
            })),
        }
    }
}

fn section(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

impl Default for ClientConnection {
    fn default() -> Self {
        Self {
            accept_content_types: String::new(),
            burst: 10,
            content_type: "application/vnd.kubernetes.protobuf".to_owned(),
            kubeconfig: String::new(),
            qps: 5.0,
        }
    }
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max_per_core: 32 * 1024,
            min: 128 * 1024,
            tcp_be_liberal: false,
            tcp_close_wait_timeout: GoDuration::from_seconds(60 * 60),
            tcp_established_timeout: GoDuration::from_seconds(24 * 60 * 60),
            udp_stream_timeout: GoDuration::ZERO,
            udp_timeout: GoDuration::ZERO,
        }
    }
}

impl Default for Iptables {
    fn default() -> Self {
        Self {
            localhost_node_ports: true,
            masquerade_all: false,
            masquerade_bit: 14,
            min_sync_period: GoDuration::from_seconds(1),
            sync_period: GoDuration::from_seconds(30),
        }
    }
}

impl Default for Nftables {
    fn default() -> Self {
        Self {
            masquerade_all: false,
            masquerade_bit: 14,
            min_sync_period: GoDuration::ZERO,
            sync_period: GoDuration::ZERO,
        }
    }
}

impl Default for Logging {
    fn default() -> Self {
        let unbuffered = json!({ "infoBufferSize": "0" });
        Self {
            flush_frequency: json!("5s"),
            format: "text".to_owned(),
            options: json!({ "json": unbuffered, "text": unbuffered }),
            verbosity: 0,
            vmodule: json!([]),
        }
    }
}
