//! A Service that shows which changes a proxy has processed.

use std::net::{IpAddr, SocketAddr};

use serde_json::json;
use weft_testkit::{
    cluster::{Edit, ObjectName},
    packets::{Location, Probe, Site, Transport},
};

/// Addresses of the Service and its endpoint in each family.
const ADDRESSES: [(&str, &str, &str); 2] = [
    ("IPv4", "10.96.250.1", "10.244.250.1"),
    ("IPv6", "fd00:10:96::fa01", "fd00:10:244:250::1"),
];

/// A Service and its endpoints, with ports that no other mark has. A proxy that serves it has
/// processed everything that was written earlier to the same kinds of objects.
#[derive(Debug)]
pub(super) struct Mark {
    port: u16,
    target: u16,
}

impl Mark {
    pub(super) fn of(number: u16) -> Self {
        Self {
            port: 20_000 + number,
            target: 40_000 + number,
        }
    }

    pub(super) fn edits(&self) -> Vec<Edit> {
        let name = |kind, name: &str| ObjectName {
            kind,
            namespace: "default".to_owned(),
            name: name.to_owned(),
        };
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "mark", "namespace": "default"},
            "spec": {"ipFamilyPolicy": "RequireDualStack",
                "clusterIP": ADDRESSES[0].1, "clusterIPs": ADDRESSES.map(|address| address.1),
                "ipFamilies": ADDRESSES.map(|address| address.0),
                "ports": [{"port": self.port, "protocol": "TCP"}]},
        });
        let mut edits = vec![Edit::Put(name("Service", "mark"), service)];
        edits.extend(ADDRESSES.map(|(family, _, address)| {
            let slice = format!("mark-{family}").to_lowercase();
            let object = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": slice, "namespace": "default",
                    "labels": {"kubernetes.io/service-name": "mark"}},
                "addressType": family,
                "endpoints": [{"addresses": [address]}],
                "ports": [{"port": self.target, "protocol": "TCP"}],
            });
            Edit::Put(name("EndpointSlice", &slice), object)
        }));
        edits
    }

    /// True if both families of a site's proxy serve it.
    pub(super) fn shows(&self, site: &mut Site) -> bool {
        let probes = ADDRESSES.map(|(_, front, _)| {
            let front: IpAddr = front.parse().unwrap();
            Probe {
                from: Location::Outside,
                source: Location::Outside.source(self.port, front.is_ipv6()),
                transport: Transport::Tcp,
                target: SocketAddr::new(front, self.port),
            }
        });
        let fates = site.send(&probes);
        fates.iter().zip(ADDRESSES).all(|(fate, (_, _, endpoint))| {
            let endpoint = SocketAddr::new(endpoint.parse().unwrap(), self.target);
            fate.arrived.is_some_and(|(arrived, _)| arrived == endpoint)
        })
    }
}
