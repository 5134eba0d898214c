//! Derives the page's state from Kubernetes objects.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use ipnet::IpNet;
use jiff::Timestamp;
use weft_runtime::{Metadata, Object as _};

use super::{
    Objects, Source, SyncState,
    objects::{self, condition},
};
use crate::state::{
    ClusterState, Endpoint, Mode, Node, Pod, Pool, Port, Route, Service, State, Timeline,
};

/// Nodes with their pods, pools and routes, Services with their endpoints, and one check for each
/// kind of object. Everything else stays empty.
pub fn derive(objects: &Objects) -> State {
    let mut sources = objects.sources.iter();
    State {
        generated: Timestamp::UNIX_EPOCH,
        mode: Mode::Cluster,
        cluster: ClusterState {
            name: String::new(),
            server: String::new(),
            reachable: sources.all(|source| source.sync != SyncState::Unreachable),
            since: Timestamp::UNIX_EPOCH,
        },
        nodes: nodes(objects),
        services: services(objects),
        timeline: Timeline::default(),
        savings: None,
        processes: Vec::new(),
        checks: objects.sources.iter().filter_map(Source::check).collect(),
    }
}

fn nodes(objects: &Objects) -> Vec<Node> {
    let mut pods = pods_by_node(objects);
    let configs: HashMap<&str, &objects::NodeConfig> = objects
        .configs
        .iter()
        .map(|config| (config.name(), &**config))
        .collect();
    let mut nodes: Vec<Node> = objects
        .nodes
        .iter()
        .map(|node| {
            let pods = pods.remove(node.name()).unwrap_or_default();
            let config = configs.get(node.name());
            Node {
                pool: config.map(|config| pool(config, &pods)),
                pods,
                ..plain(node)
            }
        })
        .collect();
    nodes.sort_by(|left, right| left.name.cmp(&right.name));
    let routes: Vec<Vec<Route>> = nodes.iter().map(|node| routes(node, &nodes)).collect();
    for (node, routes) in nodes.iter_mut().zip(routes) {
        node.routes = routes;
    }
    nodes
}

/// A node without pods, pool and routes.
fn plain(node: &objects::Node) -> Node {
    let addresses = node.status.addresses.iter();
    let ranges = node.spec.pod_cidrs.iter();
    Node {
        name: node.name().to_owned(),
        ready: condition(&node.status.conditions, "Ready") == Some(true),
        addresses: addresses
            .filter(|address| &*address.r#type == "InternalIP")
            .map(|address| address.address.to_string())
            .collect(),
        pod_ranges: ranges.map(ToString::to_string).collect(),
        network_unavailable: condition(&node.status.conditions, "NetworkUnavailable"),
        ..Node::default()
    }
}

fn pods_by_node(objects: &Objects) -> HashMap<&str, Vec<Pod>> {
    let mut found: HashMap<&str, Vec<Pod>> = HashMap::new();
    for pod in &objects.pods {
        // A finished pod holds no address.
        let finished = matches!(&*pod.status.phase, "Succeeded" | "Failed");
        if let (Some(node), false) = (&pod.spec.node_name, finished) {
            found.entry(node).or_default().push(to_pod(pod));
        }
    }
    for pods in found.values_mut() {
        pods.sort_by(|left, right| {
            (&left.namespace, &left.name).cmp(&(&right.namespace, &right.name))
        });
    }
    found
}

fn to_pod(pod: &objects::Pod) -> Pod {
    let terminating = pod.is_terminating();
    Pod {
        namespace: pod.namespace().unwrap_or_default().to_owned(),
        name: pod.name().to_owned(),
        app: app(&pod.metadata),
        addresses: pod
            .status
            .pod_ips
            .iter()
            .map(|address| address.ip.to_string())
            .collect(),
        phase: if terminating {
            "Terminating".to_owned()
        } else {
            pod.status.phase.to_string()
        },
        ready: !terminating && condition(&pod.status.conditions, "Ready") == Some(true),
    }
}

/// Labels that name the application, the recommended one first.
const APP_LABELS: [&str; 3] = ["app.kubernetes.io/name", "app", "k8s-app"];

/// The application of a pod: from its labels, or else its managing owner.
fn app(metadata: &Metadata) -> Option<String> {
    let mut labels = APP_LABELS.iter();
    let labelled = labels.find_map(|label| metadata.labels.get(label));
    let mut owners = metadata.owner_references.iter();
    let owner = || {
        let owner = owners.find(|owner| owner.controller)?;
        // A ReplicaSet is named after its Deployment and a hash.
        let deployment = match &*owner.kind {
            "ReplicaSet" => owner
                .name
                .rsplit_once('-')
                .map(|(deployment, _)| deployment),
            _ => None,
        };
        Some(deployment.unwrap_or(&owner.name))
    };
    labelled.or_else(owner).map(str::to_owned)
}

/// A pool as its object and the node's pods show it. Only the node's daemon knows which addresses
/// are pending or cooling; those count as free here.
fn pool(config: &objects::NodeConfig, pods: &[Pod]) -> Pool {
    let status = config.status.to_status();
    let blocks: Vec<IpNet> = status
        .entries()
        .filter_map(|(_, entry)| entry.net().ok())
        .collect();
    // A dual-stack pod has one address of each family, and the counts are of pods.
    let first = blocks.iter().any(|block| block.addr().is_ipv4());
    let blocks: Vec<IpNet> = blocks
        .into_iter()
        .filter(|block| block.addr().is_ipv4() == first)
        .collect();
    let held = pods.iter().flat_map(|pod| &pod.addresses);
    let held = held
        .filter_map(|address| address.parse::<IpAddr>().ok())
        .filter(|address| blocks.iter().any(|block| block.contains(address)));
    let assigned = u64::try_from(held.count()).unwrap_or(u64::MAX);
    let size = blocks.iter().map(size_of).fold(0, u64::saturating_add);
    Pool {
        assigned: Some(assigned),
        free: Some(size.saturating_sub(assigned)),
        pending: None,
        cooling: None,
        requested: u64::try_from(config.spec.requested_ip_count).ok(),
        demand: config
            .spec
            .demand_ip_count
            .and_then(|count| u64::try_from(count).ok()),
    }
}

fn size_of(block: &IpNet) -> u64 {
    let bits = block.max_prefix_len() - block.prefix_len();
    1_u64.checked_shl(bits.into()).unwrap_or(u64::MAX)
}

/// A node's routes to the other nodes: one to each node whose `NetworkUnavailable` is `False`, the
/// condition with which a route controller reports that the route exists.
fn routes(from: &Node, nodes: &[Node]) -> Vec<Route> {
    let others = nodes
        .iter()
        .filter(|node| node.name != from.name && node.network_unavailable == Some(false));
    let ways = others.flat_map(|node| {
        node.pod_ranges.iter().filter_map(|range| {
            let v4 = range.parse::<IpNet>().ok()?.addr().is_ipv4();
            let mut addresses = node.addresses.iter();
            let via = addresses.find(|address| {
                let address = address.parse::<IpAddr>();
                address.is_ok_and(|address| address.is_ipv4() == v4)
            })?;
            Some(Route {
                destination: range.clone(),
                via: via.clone(),
                node: Some(node.name.clone()),
            })
        })
    });
    ways.collect()
}

fn services(objects: &Objects) -> Vec<Service> {
    let mut endpoints: BTreeMap<(&str, &str), Vec<Endpoint>> = BTreeMap::new();
    for slice in &objects.slices {
        let known = endpoints.entry(slice.service()).or_default();
        known.extend(slice.endpoints.iter().filter_map(to_endpoint));
    }
    let mut services: Vec<Service> = objects
        .services
        .iter()
        .map(|service| {
            let namespace = service.namespace().unwrap_or_default();
            let endpoints = endpoints.remove(&(namespace, service.name()));
            to_service(service, namespace, endpoints.unwrap_or_default())
        })
        .collect();
    services
        .sort_by(|left, right| (&left.namespace, &left.name).cmp(&(&right.namespace, &right.name)));
    services
}

fn to_service(
    service: &objects::Service,
    namespace: &str,
    mut endpoints: Vec<Endpoint>,
) -> Service {
    // Slices overlap for a moment when an endpoint moves from one to another.
    endpoints.sort_by(|left, right| {
        (&left.pod, &left.address, !left.ready).cmp(&(&right.pod, &right.address, !right.ready))
    });
    endpoints.dedup_by(|later, first| (&later.pod, &later.address) == (&first.pod, &first.address));
    let spec = &service.spec;
    let addresses: BTreeSet<&str> = spec.external_ips.iter().map(|address| &**address).collect();
    let own = spec.cluster_ips.iter().map(|address| &**address);
    Service {
        namespace: namespace.to_owned(),
        name: service.name().to_owned(),
        kind: match &*spec.r#type {
            "" => "ClusterIP".to_owned(),
            kind => kind.to_owned(),
        },
        addresses: own
            .filter(|address| *address != "None")
            .chain(addresses)
            .map(str::to_owned)
            .collect(),
        ports: spec.ports.iter().filter_map(to_port).collect(),
        endpoints,
    }
}

fn to_port(port: &weft_proxy::objects::ServicePortSpec) -> Option<Port> {
    Some(Port {
        name: (!port.name.is_empty()).then(|| port.name.to_string()),
        protocol: match &*port.protocol {
            "" => "TCP".to_owned(),
            protocol => protocol.to_owned(),
        },
        port: u16::try_from(port.port).ok()?,
        node_port: u16::try_from(port.node_port).ok().filter(|port| *port != 0),
    })
}

fn to_endpoint(endpoint: &objects::SliceEndpoint) -> Option<Endpoint> {
    let target = endpoint.target_ref.as_ref();
    Some(Endpoint {
        address: endpoint.addresses.first()?.to_string(),
        pod: target
            .filter(|target| &*target.kind == "Pod")
            .map(|target| target.name.to_string()),
        node: endpoint.node_name.as_ref().map(ToString::to_string),
        ready: endpoint.conditions.ready.unwrap_or(true),
    })
}
