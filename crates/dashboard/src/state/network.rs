//! Nodes, pods, pools, routes and Services as the page shows them.

use serde::{Deserialize, Serialize};

/// A node with its pods, pool and routes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Name of the Node object.
    pub name: String,
    /// Condition `Ready` is true.
    pub ready: bool,
    /// Internal addresses.
    pub addresses: Vec<String>,
    /// Pod CIDRs.
    pub pod_ranges: Vec<String>,
    /// Condition `NetworkUnavailable`; `None` if it is absent.
    pub network_unavailable: Option<bool>,
    /// Address pool, if the node has one.
    pub pool: Option<Pool>,
    /// Pods on this node that hold an address.
    pub pods: Vec<Pod>,
    /// Routes to other nodes' pods.
    pub routes: Vec<Route>,
}

/// Addresses of a node by state. Unknown counts are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Assigned to pods.
    pub assigned: Option<u64>,
    /// Free for the next pods.
    pub free: Option<u64>,
    /// On their way to the node or back to the cluster's pool.
    pub pending: Option<u64>,
    /// Released by a pod, not yet available to another.
    pub cooling: Option<u64>,
    /// Number that the node requests in all.
    pub requested: Option<u64>,
    /// Number that the pods need.
    pub demand: Option<u64>,
}

/// A pod on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Application; pods of the same one have the same colour.
    pub app: Option<String>,
    /// Pod IPs.
    pub addresses: Vec<String>,
    /// `status.phase`, or `Terminating`.
    pub phase: String,
    /// Ready for traffic.
    pub ready: bool,
}

/// A route to another node's pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination CIDR.
    pub destination: String,
    /// Address of the next hop.
    pub via: String,
    /// The node of the next hop, if it is one.
    pub node: Option<String>,
}

/// A Service with its endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    pub kind: String,
    /// Cluster IPs; none if it is headless.
    pub addresses: Vec<String>,
    /// Service ports.
    pub ports: Vec<Port>,
    /// Endpoints of all its EndpointSlices.
    pub endpoints: Vec<Endpoint>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Port name, where there are several.
    pub name: Option<String>,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Service port.
    pub port: u16,
    /// Port on every node, for types NodePort and LoadBalancer.
    pub node_port: Option<u16>,
}

/// An endpoint of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// IP address.
    pub address: String,
    /// Name of its pod, in the Service's namespace.
    pub pod: Option<String>,
    /// Name of its node.
    pub node: Option<String>,
    /// Ready for traffic.
    pub ready: bool,
}
