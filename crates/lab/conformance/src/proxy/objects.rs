//! Objects of the compared cluster: Services with five endpoints each.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

/// Namespace of all objects.
pub(crate) const NAMESPACE: &str = "proxy-comparison";

/// Name of the Node on which every proxy runs.
pub(crate) const NODE: &str = "proxy-comparison";

/// Address of that Node.
pub(crate) const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// Port of every Service.
const PORT: u16 = 80;

/// Endpoints of every Service.
const ENDPOINTS: u32 = 5;

/// One of two ports to which the endpoints of a Service can move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    A,
    B,
}

impl Side {
    pub(crate) const ALL: [Self; 2] = [Self::A, Self::B];

    pub(crate) fn port(self) -> u16 {
        match self {
            Self::A => 8080,
            Self::B => 8081,
        }
    }

    /// The byte that its listener sends.
    pub(crate) fn byte(self) -> u8 {
        match self {
            Self::A => b'A',
            Self::B => b'B',
        }
    }
}

/// One of the Services, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Service(pub(crate) u32);

impl Service {
    pub(crate) fn name(self) -> String {
        format!("service-{}", self.0)
    }

    pub(crate) fn slice_name(self) -> String {
        format!("service-{}-x", self.0)
    }

    /// Cluster IP and port.
    pub(crate) fn address(self) -> SocketAddr {
        (self.cluster_ip(), PORT).into()
    }

    fn cluster_ip(self) -> Ipv4Addr {
        let [_, _, high, low] = self.0.to_be_bytes();
        // Kubernetes' own Service has the first address of the range.
        Ipv4Addr::new(10, 96, high + 16, low)
    }

    fn endpoint(self, number: u32) -> Ipv4Addr {
        let [_, _, high, low] = self.0.to_be_bytes();
        let [.., number] = number.to_be_bytes();
        Ipv4Addr::new(10, 130 + number, high, low)
    }

    pub(crate) fn object(self) -> Value {
        let ip = self.cluster_ip();
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": NAMESPACE, "name": self.name()},
            "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip],
                     "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                     "ports": [{"name": "http", "port": PORT, "protocol": "TCP"}]}})
    }

    pub(crate) fn slice(self, side: Side) -> Value {
        let endpoints: Vec<Value> = (0..ENDPOINTS)
            .map(|number| {
                json!({"addresses": [self.endpoint(number)], "nodeName": format!("node-{number}"),
                       "conditions": {"ready": true, "serving": true, "terminating": false}})
            })
            .collect();
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": NAMESPACE, "name": self.slice_name(),
                         "labels": {"kubernetes.io/service-name": self.name()}},
            "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "http", "port": side.port(), "protocol": "TCP"}]})
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::proxy::trial::ADDED;

    #[test]
    fn no_two_services_share_an_address() {
        // Some are added beyond the most that there are from the start.
        let count = ADDED + 400;
        let all = || (0..count).map(Service);
        let services: BTreeSet<SocketAddr> = all().map(Service::address).collect();
        let endpoints: BTreeSet<Ipv4Addr> = all()
            .flat_map(|service| (0..ENDPOINTS).map(move |number| service.endpoint(number)))
            .collect();
        let count = usize::try_from(count).unwrap();
        assert_eq!((services.len(), endpoints.len()), (count, 5 * count));
    }
}
