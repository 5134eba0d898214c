use serde::{Deserialize, Serialize};

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether its kubelet says that it is ready.
    pub ready: bool,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// The ranges that its pods get their addresses from.
    pub pod_ranges: Vec<String>,
    /// The condition of that name, if somebody wrote it.
    pub network_unavailable: Option<bool>,
    /// Its pool of addresses, if it has one.
    pub pool: Option<Pool>,
    /// Its pods.
    pub pods: Vec<Pod>,
    /// Its ways to other nodes' pods.
    pub routes: Vec<Route>,
}

/// Addresses of a node. What is not known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// In use by pods.
    pub assigned: Option<u64>,
    /// There for the next pods.
    pub free: Option<u64>,
    /// On their way to the node or back.
    pub pending: Option<u64>,
    /// Given back by a pod, and not yet given to another.
    pub cooling: Option<u64>,
    /// What the node asks for in all.
    pub requested: Option<u64>,
    /// What its pods need.
    pub demand: Option<u64>,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it belongs to; pods of the same have the same colour.
    pub app: Option<String>,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Its phase.
    pub phase: String,
    /// Whether it takes traffic.
    pub ready: bool,
}

/// A way to other nodes' pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The range it leads to.
    pub destination: String,
    /// The next hop.
    pub via: String,
    /// The node that the next hop is, if it is one.
    pub node: Option<String>,
}

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    pub kind: String,
    /// Its addresses; none if it is headless.
    pub addresses: Vec<String>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Who answers.
    pub endpoints: Vec<Endpoint>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its name, where there are several.
    pub name: Option<String>,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Its number.
    pub port: u16,
    /// Its number on every node.
    pub node_port: Option<u16>,
}

/// An address that answers for a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The address.
    pub address: String,
    /// The pod behind it, in the Service's namespace.
    pub pod: Option<String>,
    /// The node it is on.
    pub node: Option<String>,
    /// Whether it takes traffic.
    pub ready: bool,
}
