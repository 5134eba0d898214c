//! EndpointSlices of a random cluster.

use serde_json::{Value, json};

use super::{Edit, NODE, OTHER_NODES, ObjectName, RandomCluster, ZONES};

impl RandomCluster {
    /// Adds a slice to a Service.
    pub(super) fn put_slice(&mut self, service: &str) -> Edit {
        self.next_name += 1;
        let family = *self
            .rng
            .choice(&[
                "IPv4", "IPv4", "IPv4", "IPv4", "IPv6", "IPv6", "IPv6", "FQDN",
            ])
            .unwrap_or(&"IPv4");
        let name = self.named("EndpointSlice", &format!("{service}-{}", self.next_name));
        self.write_slice(name, service, family)
    }

    /// Replaces the ports and endpoints of a slice. Its address type and Service stay: the first is
    /// immutable, and the second does not change in a real cluster.
    pub(super) fn replace_slice(&mut self, name: &ObjectName) -> Edit {
        let known = &self.objects[name];
        let labels = &known["metadata"]["labels"];
        let service = labels["kubernetes.io/service-name"].as_str().unwrap_or("");
        let family = known["addressType"].as_str().unwrap_or("IPv4");
        let (service, family) = (service.to_owned(), family.to_owned());
        self.write_slice(name.clone(), &service, &family)
    }

    fn write_slice(&mut self, name: ObjectName, service: &str, family: &str) -> Edit {
        let ports = self.slice_ports(service);
        let number = name.name.rsplit('-').next().and_then(|n| n.parse().ok());
        let endpoints = self.endpoints(family, number.unwrap_or_default());
        let object = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name.name, "namespace": name.namespace,
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": family, "endpoints": endpoints, "ports": ports,
        });
        self.put(name, object)
    }

    /// Ports named as the Service's; sometimes one is missing.
    fn slice_ports(&mut self, service: &str) -> Value {
        let name = self.named("Service", service);
        let Some(object) = self.objects.get(&name) else {
            return json!([]);
        };
        let ports = object["spec"]["ports"].as_array().cloned();
        let ports = ports.unwrap_or_default().into_iter().filter_map(|port| {
            (self.rng.u8(0..8) != 0).then(|| {
                json!({
                    "name": port.get("name").cloned().unwrap_or_else(|| "".into()),
                    "protocol": port["protocol"],
                    "port": 8080 + self.rng.u16(0..3),
                })
            })
        });
        ports.collect()
    }

    fn endpoints(&mut self, family: &str, slice: u32) -> Value {
        let hints = self.rng.u8(0..5);
        let count = self.rng.usize(0..7);
        let endpoints = (0..count).map(|_| {
            if self.rng.u8(0..6) == 0 {
                return self.shared_endpoint(family);
            }
            let address = address(family, 1 + slice % 200, self.rng.u8(1..40));
            let node = match self.rng.u8(0..4) {
                0 => Some(NODE),
                1 => Some(OTHER_NODES[0]),
                2 => Some(OTHER_NODES[1]),
                _ => None,
            };
            let mut endpoint = json!({"addresses": [address], "conditions": self.conditions()});
            if let Some(node) = node {
                endpoint["nodeName"] = node.into();
            }
            let complete = self.rng.u8(0..10) != 0;
            if hints == 1 && complete {
                let zone = self.rng.choice(ZONES).unwrap_or(ZONES[0]);
                endpoint["hints"] = json!({"forZones": [{"name": zone}]});
            } else if hints == 2 && complete {
                let node = self.rng.choice([NODE, OTHER_NODES[0]]).unwrap_or(NODE);
                endpoint["hints"] = json!({
                    "forZones": [{"name": ZONES[0]}], "forNodes": [{"name": node}],
                });
            }
            endpoint
        });
        // The API server refuses a slice with a duplicate address.
        let mut seen = std::collections::BTreeSet::new();
        endpoints
            .filter(|endpoint| seen.insert(endpoint["addresses"].to_string()))
            .collect()
    }

    /// An address that may be in several slices at once, as when a pod's address is reused. Such
    /// entries differ only in whether they are terminating: with any other difference it is
    /// undefined which entry counts.
    fn shared_endpoint(&mut self, family: &str) -> Value {
        let number = self.rng.u8(1..5);
        let leaving = self.rng.u8(0..3) == 0;
        json!({
            "addresses": [address(family, 0, number)],
            "conditions": {"ready": !leaving, "serving": true, "terminating": leaving},
            "nodeName": if number.is_multiple_of(2) { NODE } else { OTHER_NODES[0] },
        })
    }

    fn conditions(&mut self) -> Value {
        match self.rng.u8(0..8) {
            0 => json!({"ready": false, "serving": true, "terminating": true}),
            1 => json!({"ready": false, "serving": false, "terminating": false}),
            2 => json!({"ready": false, "serving": false, "terminating": true}),
            3 => json!({}),
            _ => json!({"ready": true, "serving": true, "terminating": false}),
        }
    }
}

fn address(family: &str, slice: u32, number: u8) -> String {
    match family {
        "IPv4" => format!("10.244.{slice}.{number}"),
        "IPv6" => format!("fd00:10:244:{slice:x}::{number:x}"),
        _ => format!("host-{slice}-{number}.example.com"),
    }
}
