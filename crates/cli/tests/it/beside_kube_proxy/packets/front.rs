//! The addresses and ports under which the Services of a cluster can be reached.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use serde_json::Value;
use weft_testkit::{
    cluster::NODE,
    packets::{Site, Transport},
};

use crate::arena::Arena;

/// A port that no Service has.
pub(super) const UNKNOWN_PORT: u16 = 7;

/// An address and port to which clients send.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Front {
    pub(super) target: SocketAddr,
    pub(super) transport: Transport,
    /// Namespace and name of the Service, for messages.
    pub(super) name: String,
    /// True if the Service has session affinity.
    pub(super) has_affinity: bool,
    /// Addresses of the family in the Service's slices.
    pub(super) endpoints: Vec<IpAddr>,
    /// Those of them on this node. Pods of other nodes do not send through it.
    pub(super) local_endpoints: Vec<IpAddr>,
}

impl Front {
    /// True if its address is of the ServiceCIDRs.
    pub(super) fn is_cluster_ip(&self) -> bool {
        let ranges: [IpNet; 2] = Arena::SERVICE_RANGES.map(|range| range.parse().unwrap());
        ranges.iter().any(|range| range.contains(&self.target.ip()))
    }
}

/// All fronts of all Services in the API server.
pub(super) fn fronts(arena: &Arena) -> Vec<Front> {
    let endpoints = endpoints(&arena.list("EndpointSlice"));
    let mut fronts = BTreeSet::new();
    for service in arena.list("Service") {
        let key = key(&service["metadata"], &service["metadata"]["name"]);
        let service = Service {
            endpoints: endpoints.get(&key),
            name: key,
            spec: &service["spec"],
            status: &service["status"],
        };
        service.fronts(&mut fronts);
    }
    fronts.into_iter().collect()
}

fn key(metadata: &Value, name: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&metadata["namespace"]), text(name))
}

/// Endpoints by address, and whether each is on this node.
type Endpoints = BTreeMap<IpAddr, bool>;

fn endpoints(slices: &[Value]) -> BTreeMap<String, Endpoints> {
    let mut found: BTreeMap<String, Endpoints> = BTreeMap::new();
    for slice in slices {
        let metadata = &slice["metadata"];
        let service = key(metadata, &metadata["labels"]["kubernetes.io/service-name"]);
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let address = endpoint["addresses"][0].as_str().unwrap_or_default();
            if let Ok(address) = address.parse() {
                let own = found.entry(service.clone()).or_default();
                own.insert(address, endpoint["nodeName"] == NODE);
            }
        }
    }
    found
}

struct Service<'a> {
    name: String,
    spec: &'a Value,
    status: &'a Value,
    endpoints: Option<&'a Endpoints>,
}

impl Service<'_> {
    fn fronts(&self, fronts: &mut BTreeSet<Front>) {
        let empty = Vec::new();
        let ports = self.spec["ports"].as_array().unwrap_or(&empty);
        for address in self.addresses() {
            for port in ports {
                fronts.extend(self.front(address, number(&port["port"]), port));
                fronts.extend(self.front(address, Some(UNKNOWN_PORT), port));
            }
        }
        let loopback = ["127.0.0.1", "::1"];
        for address in Site::NODE_ADDRESSES.into_iter().chain(loopback) {
            let address = address.parse().unwrap();
            for port in ports {
                fronts.extend(self.front(address, number(&port["nodePort"]), port));
            }
            let health_check = number(&self.spec["healthCheckNodePort"]);
            fronts.extend(self.front(address, health_check, &Value::Null));
        }
    }

    /// ClusterIPs, external addresses and those of load balancers.
    fn addresses(&self) -> BTreeSet<IpAddr> {
        let ingress = self.status["loadBalancer"]["ingress"].as_array();
        let ingress = ingress.into_iter().flatten().map(|ingress| &ingress["ip"]);
        let listed = ["clusterIPs", "externalIPs"].map(|field| self.spec[field].as_array());
        let listed = listed.into_iter().flatten().flatten();
        let texts = listed.chain(ingress).filter_map(Value::as_str);
        texts.filter_map(|text| text.parse().ok()).collect()
    }

    fn front(&self, address: IpAddr, port: Option<u16>, of: &Value) -> Option<Front> {
        let endpoints = self.endpoints.into_iter().flatten();
        let endpoints = endpoints.filter(|(other, _)| other.is_ipv6() == address.is_ipv6());
        let local = endpoints.clone().filter(|(_, is_local)| **is_local);
        Some(Front {
            target: SocketAddr::new(address, port?),
            transport: Transport::named(of["protocol"].as_str().unwrap_or("TCP"))?,
            name: self.name.clone(),
            has_affinity: self.spec["sessionAffinity"] == "ClientIP",
            endpoints: endpoints.map(|(address, _)| *address).collect(),
            local_endpoints: local.map(|(address, _)| *address).collect(),
        })
    }
}

fn number(value: &Value) -> Option<u16> {
    u16::try_from(value.as_u64()?).ok()
}
