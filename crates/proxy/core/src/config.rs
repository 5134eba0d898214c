//! kube-proxy's configuration, `kubeproxy.config.k8s.io/v1alpha1`.
//!
//! A [`KubeProxyConfiguration`] holds a file or flags in the file's own notation, so that it can be
//! printed again. [`check`](KubeProxyConfiguration::check) turns it into a typed [`ProxyConfig`],
//! or reports all errors at once.

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
    ClientConfig, ConntrackLimits, DetectLocal, Mode, NodeNetwork, NodePortRange, ProxyConfig,
    address_with_port,
};
pub use decode::{DecodeError, Decoded, decode};
pub use duration::{DurationError, GoDuration};

/// Feature gate that switches off rules for external IPs of Services.
pub const EXTERNAL_IPS_GATE: &str = "AllowServiceExternalIPs";

/// Gate, off by default: in the nftables mode NodePorts on loopback addresses are served by TCP
/// listeners of this process, or rejected and counted.
pub const LOCALHOST_GATE: &str = "KubeProxyNFTablesLocalhostNodePorts";
/// Group and version of the configuration.
pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// Kind of the configuration.
pub const KIND: &str = "KubeProxyConfiguration";
/// Default port of `/healthz`.
pub const HEALTHZ_PORT: u16 = 10256;
/// Default port of metrics.
pub const METRICS_PORT: u16 = 10249;

/// The whole configuration, with defaults filled in. Fields are in the order in which kube-proxy
/// prints them: alphabetical.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeProxyConfiguration {
    /// The node's primary address; unspecified takes it from the Node. Nothing binds to it.
    pub bind_address: String,
    /// Exit if a port cannot be bound.
    pub bind_address_hard_fail: bool,
    /// Connection to the API server.
    pub client_connection: ClientConnection,
    /// The pods' networks, at most one for each family, separated by a comma.
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    /// Period of a full resync of watched objects. Accepted for compatibility and not used.
    pub config_sync_period: GoDuration,
    /// Limits of connection tracking.
    pub conntrack: Conntrack,
    /// Names for two of the modes below.
    pub detect_local: DetectLocalNames,
    /// The way to recognise traffic from pods of this node: `ClusterCIDR`, `NodeCIDR`,
    /// `BridgeInterface` or `InterfaceNamePrefix`.
    pub detect_local_mode: String,
    /// Profiling endpoints of kube-proxy. Accepted with a warning: there are none here.
    pub enable_profiling: bool,
    /// Features switched on and off.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    /// IP:port of `/healthz`; empty disables it.
    pub healthz_bind_address: String,
    /// The node's name; empty takes the host's.
    pub hostname_override: String,
    /// Options of the iptables mode.
    pub iptables: Iptables,
    /// Options of another mode, kept as they are.
    pub ipvs: Map<String, Value>,
    /// Log options.
    pub logging: Logging,
    /// IP:port of metrics; empty disables them.
    pub metrics_bind_address: String,
    /// The mode: `iptables` or `nftables`; empty means the first, until Kubernetes 1.40.
    pub mode: String,
    /// Options of the nftables mode.
    pub nftables: Nftables,
    /// Networks of node addresses on which NodePorts answer, or `primary` alone. All if unset.
    pub node_port_addresses: Option<Vec<String>>,
    /// oom_score_adj of this process, -1000 to 1000.
    pub oom_score_adj: i32,
    /// Deprecated in kube-proxy; not used.
    pub port_range: String,
    /// A release whose hidden metrics are to be shown. There are no hidden metrics here.
    pub show_hidden_metrics_for_version: String,
    /// Windows only.
    #[serde(skip_serializing_if = "is_false")]
    pub windows_run_as_service: bool,
    /// Options of another mode, kept as they are.
    pub winkernel: Map<String, Value>,
}

/// Connection to the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientConnection {
    /// Content types accepted in responses.
    pub accept_content_types: String,
    /// Requests that may exceed `qps` for a moment.
    pub burst: i32,
    /// Content type of requests.
    pub content_type: String,
    /// The kubeconfig file; empty inside a cluster.
    pub kubeconfig: String,
    /// Limit of requests per second.
    pub qps: f32,
}

/// Limits of connection tracking. Zero leaves the kernel's value unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conntrack {
    /// Maximum number of entries per CPU core.
    pub max_per_core: i32,
    /// Minimum number of entries, for any number of cores.
    pub min: i32,
    /// Accept TCP segments outside the window.
    pub tcp_be_liberal: bool,
    /// Timeout of entries in state CLOSE_WAIT.
    pub tcp_close_wait_timeout: GoDuration,
    /// Timeout of idle established TCP connections.
    pub tcp_established_timeout: GoDuration,
    /// Timeout of UDP flows with replies.
    pub udp_stream_timeout: GoDuration,
    /// Timeout of UDP flows without replies.
    pub udp_timeout: GoDuration,
}

/// Interface names for two of the values of `detectLocalMode`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DetectLocalNames {
    /// Name of the bridge in mode `BridgeInterface`.
    pub bridge_interface: String,
    /// Prefix of interface names in mode `InterfaceNamePrefix`.
    pub interface_name_prefix: String,
}

/// Options of the iptables mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Iptables {
    /// Serve NodePorts on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// Masquerade all traffic to ClusterIPs.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading.
    pub masquerade_bit: i32,
    /// Minimum time between two syncs.
    pub min_sync_period: GoDuration,
    /// Time after which a failed sync is retried.
    pub sync_period: GoDuration,
}

/// Options of the nftables mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nftables {
    /// Masquerade all traffic to ClusterIPs.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading.
    pub masquerade_bit: i32,
    /// Minimum time between two syncs.
    pub min_sync_period: GoDuration,
    /// Time after which a failed sync is retried; zero is 30 s.
    pub sync_period: GoDuration,
}

/// Log options. Only format and verbosity are used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Logging {
    /// Longest time between two flushes of the log. Not used: log lines are not buffered.
    pub flush_frequency: Value,
    /// `text` or `json`.
    pub format: String,
    /// Options of the formats, kept as they are.
    pub options: Value,
    /// Log level, as in `-v`.
    pub verbosity: u32,
    /// Log level per source file of kube-proxy. Not used.
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
            mode: String::new(),
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
