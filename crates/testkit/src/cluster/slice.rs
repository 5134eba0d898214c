//! EndpointSlices of a random cluster.

use serde_json::{Value, json};

use super::{Edit, NODE, OTHER_NODES, ObjectName, RandomCluster, ZONES};

impl RandomCluster {
    /// Adds a slice to a Service.
    pub(super) fn put_slice(&mut self, service: &str) -> Edit {
        self.next_name += 1;
        let family = *self
            .rng
            .choice(&["IPv4", "IPv4", "IPv6", "IPv6", "FQDN"])
            .unwrap_or(&"IPv4");
        let name = self.named("EndpointSlice", &format!("{service}-{}", self.next_name));
        self.write_slice(name, service, family)
    }

    /// Fills a slice anew. Family and Service stay: the first cannot be changed, and the second
    /// does not change in a real cluster.
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
        let endpoints = self.endpoints(family);
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

    /// Ports named as the Service's; at times one is missing.
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

    fn endpoints(&mut self, family: &str) -> Value {
        let hints = self.rng.u8(0..5);
        let count = self.rng.usize(0..7);
        let endpoints = (0..count).map(|_| {
            let number = self.rng.u8(1..40);
            let address = match family {
                "IPv4" => format!("10.244.0.{number}"),
                "IPv6" => format!("fd00:10:244::{number:x}"),
                _ => format!("host-{number}.example.com"),
            };
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
        // An API server takes no address twice in one slice.
        let mut seen = std::collections::BTreeSet::new();
        endpoints
            .filter(|endpoint| seen.insert(endpoint["addresses"].to_string()))
            .collect()
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
