//! The fields of Kubernetes objects that the proxy uses; all others are skipped when decoding.

use serde::Deserialize;
use weft_model::{SharedStr, null_is_default};

mod decoded;
mod first_address;

pub use decoded::{DecodeError, Object};
pub use first_address::FirstAddress;

/// Label whose presence says that another proxy serves the Service.
pub const OTHER_PROXY_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// Label of slices that belong to a headless Service.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// Label that names the Service of a slice.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Annotation of a slice: time of the change that led to this version of it.
pub const TRIGGER_TIME_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// `spec` of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`; empty means the first.
    pub r#type: SharedStr,
    /// The first address, empty, or `None`.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Box<str>,
    /// One address for each of `ip_families`.
    #[serde(rename = "clusterIPs", deserialize_with = "null_is_default")]
    pub cluster_ips: Box<[Box<str>]>,
    /// `IPv4`, `IPv6`.
    #[serde(deserialize_with = "null_is_default")]
    pub ip_families: Box<[SharedStr]>,
    /// The ports.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Box<[ServicePortSpec]>,
    /// Addresses that are routed to the nodes by other means than Kubernetes.
    #[serde(rename = "externalIPs", deserialize_with = "null_is_default")]
    pub external_ips: Box<[Box<str>]>,
    /// `ClientIP` or `None`.
    pub session_affinity: SharedStr,
    /// Options of `session_affinity`.
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// `Local` or `Cluster`.
    pub external_traffic_policy: SharedStr,
    /// `Local` or `Cluster`.
    pub internal_traffic_policy: SharedStr,
    /// Port for health checks of load balancers; 0 if unset.
    pub health_check_node_port: i32,
    /// Networks that may use the load balancer's addresses.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer_source_ranges: Box<[Box<str>]>,
}

/// One of `spec.ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePortSpec {
    /// Empty if the Service has one port only.
    pub name: SharedStr,
    /// `TCP`, `UDP` or `SCTP`; empty means the first.
    pub protocol: SharedStr,
    /// The port of the Service.
    pub port: i32,
    /// The port on every node, or 0.
    pub node_port: i32,
}

/// Options of session affinity, `spec.sessionAffinityConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionAffinityConfig {
    /// Options of the only kind of affinity, by client address.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

/// Options of affinity by client address, `spec.sessionAffinityConfig.clientIP`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    /// Duration of affinity in seconds. Wider than the API's int32, so that a value out of range
    /// does not make the whole Service undecodable.
    pub timeout_seconds: Option<i64>,
}

/// `status` of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// Status of the load balancer.
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer: LoadBalancerStatus,
}

/// The state of a load balancer, `status.loadBalancer`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// Its addresses.
    #[serde(deserialize_with = "null_is_default")]
    pub ingress: Box<[LoadBalancerIngress]>,
}

/// One of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerIngress {
    /// Empty where the load balancer has a host name.
    pub ip: Box<str>,
    /// `VIP` or `Proxy`; absent means the first.
    pub ip_mode: Option<SharedStr>,
}

/// One of an EndpointSlice's `endpoints`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceEndpoint {
    /// The first of `addresses`; the others are not used.
    #[serde(rename = "addresses", deserialize_with = "null_is_default")]
    pub address: FirstAddress,
    /// Readiness and termination.
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Conditions,
    /// The node that it runs on.
    pub node_name: Option<SharedStr>,
    /// Zones and nodes that should use it. Few endpoints have any.
    pub hints: Option<Box<Hints>>,
}

/// `conditions` of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// Absent means true.
    pub ready: Option<bool>,
    /// Absent means true.
    pub serving: Option<bool>,
    /// Absent means false.
    pub terminating: Option<bool>,
}

/// `hints` of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hints {
    /// Zones that should use the endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub for_zones: Box<[Hint]>,
    /// Nodes that should use the endpoint.
    #[serde(deserialize_with = "null_is_default")]
    pub for_nodes: Box<[Hint]>,
}

/// One hint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Hint {
    /// Name of the zone or node.
    pub name: SharedStr,
}

/// One of an EndpointSlice's `ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SlicePortSpec {
    /// Matches it to the Service port of that name. Absent: it matches none.
    pub name: Option<SharedStr>,
    /// `TCP`, `UDP` or `SCTP`; absent means the first.
    pub protocol: Option<SharedStr>,
    /// Absent means all ports, which a Service cannot use.
    pub port: Option<i32>,
}

/// `spec` of a ServiceCIDR.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// Networks that ClusterIPs are taken from, of either family.
    #[serde(deserialize_with = "null_is_default")]
    pub cidrs: Box<[Box<str>]>,
}

/// A borrowed EndpointSlice: the name of its Service and the fields that matter.
#[derive(Clone, Copy, Debug)]
pub struct SliceView<'a> {
    /// The Service it belongs to.
    pub service: &'a str,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: &'a str,
    /// Its endpoints.
    pub endpoints: &'a [SliceEndpoint],
    /// Their ports.
    pub ports: &'a [SlicePortSpec],
}
