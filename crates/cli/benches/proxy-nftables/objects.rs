//! The objects of the cluster: Services with five endpoints each, and DNS.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

/// Namespace of all Services but DNS.
pub(crate) const NAMESPACE: &str = "bench";
pub(crate) const NODE: &str = "node-0";
pub(crate) const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Of the Service `kubernetes`, the first of the range.
pub(crate) const KUBERNETES: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 1), 443);
pub(crate) const DNS: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 10), 53);
/// Port of every endpoint.
pub(crate) const TARGET: u16 = 8080;
const PORT: u16 = 80;
const ENDPOINTS: usize = 5;
/// Number of the Service with many endpoints, beyond all others.
pub(crate) const LARGE: usize = 60_000;

/// An address that only one change has: by it the change is found in what the API server sends and
/// in what the kernel reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mark(pub(crate) [u8; 4]);

impl Mark {
    /// First of the networks that no other endpoint is in.
    const FIRST: u8 = 192;

    pub(crate) fn number(number: u32) -> Self {
        let [_, high, middle, low] = number.to_be_bytes();
        Self([10, Self::FIRST + high, middle, low])
    }

    pub(crate) fn read(bytes: [u8; 4]) -> Option<Self> {
        (bytes[0] == 10 && bytes[1] >= Self::FIRST).then_some(Self(bytes))
    }

    pub(crate) fn address(self) -> Ipv4Addr {
        self.0.into()
    }
}

fn low_bytes(index: usize) -> [u8; 2] {
    let [.., high, low] = index.to_be_bytes();
    [high, low]
}

/// Address and port that clients of a Service use.
pub(crate) fn front(index: usize) -> SocketAddr {
    let [high, low] = low_bytes(index);
    (Ipv4Addr::new(10, 97, high, low), PORT).into()
}

fn endpoint(index: usize, number: usize) -> Ipv4Addr {
    let [high, low] = low_bytes(index);
    let [.., number] = number.to_be_bytes();
    Ipv4Addr::new(10, 128 + number, high, low)
}

pub(crate) fn name(index: usize) -> String {
    format!("service-{index}")
}

pub(crate) fn service(index: usize) -> Value {
    let ports = json!([{"name": "http", "port": PORT, "protocol": "TCP"}]);
    service_of(
        NAMESPACE,
        &name(index),
        &front(index).ip().to_string(),
        &ports,
    )
}

fn service_of(namespace: &str, name: &str, ip: &str, ports: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip],
                 "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "ports": ports}})
}

/// The slice of a Service; a mark takes the place of the first endpoint.
pub(crate) fn slice(index: usize, mark: Option<Mark>) -> Value {
    let addresses = (0..ENDPOINTS).map(|number| match (number, mark) {
        (0, Some(mark)) => mark.address(),
        _ => endpoint(index, number),
    });
    let ports = json!([{"name": "http", "port": TARGET, "protocol": "TCP"}]);
    slice_of(NAMESPACE, &name(index), 0, addresses, &ports)
}

/// One slice of a Service with many endpoints, a hundred in each.
pub(crate) fn large_slice(number: usize, mark: Option<Mark>) -> Value {
    let endpoint = |place: usize| {
        let [high, low] = low_bytes(number * 100 + place);
        Ipv4Addr::new(10, 140, high, low)
    };
    let addresses = (0..100).map(|place| match (place, mark) {
        (0, Some(mark)) => mark.address(),
        _ => endpoint(place),
    });
    let ports = json!([{"name": "http", "port": TARGET, "protocol": "TCP"}]);
    slice_of(NAMESPACE, &name(LARGE), number, addresses, &ports)
}

/// Name of a slice.
pub(crate) fn slice_name(service: &str, number: usize) -> String {
    format!("{service}-{number}")
}

fn slice_of(
    namespace: &str,
    service: &str,
    number: usize,
    addresses: impl Iterator<Item = Ipv4Addr>,
    ports: &Value,
) -> Value {
    let endpoint = |(number, address): (usize, Ipv4Addr)| {
        json!({"addresses": [address], "nodeName": format!("node-{}", number + 1),
               "conditions": {"ready": true, "serving": true, "terminating": false}})
    };
    let endpoints: Vec<Value> = addresses.enumerate().map(endpoint).collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": namespace, "name": slice_name(service, number),
                     "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": ports})
}

/// DNS over TCP, which the same listener answers as all endpoints.
pub(crate) fn dns() -> [Value; 2] {
    let port = |number: u16| json!([{"name": "dns-tcp", "port": number, "protocol": "TCP"}]);
    let (address, number) = DNS;
    let service = service_of(
        "kube-system",
        "kube-dns",
        &address.to_string(),
        &port(number),
    );
    let endpoints = [Ipv4Addr::new(10, 139, 0, 53)].into_iter();
    let slice = slice_of("kube-system", "kube-dns", 0, endpoints, &port(TARGET));
    [service, slice]
}
