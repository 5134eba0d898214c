//! Services of a random cluster.

use serde_json::{Value, json};

use super::{Edit, Fronts, RandomCluster};

impl RandomCluster {
    /// Creates or replaces a Service. A replaced one keeps its addresses, which are immutable.
    pub(super) fn put_service(&mut self, name: &str) -> Edit {
        let name = self.named("Service", name);
        let known = self.objects.get(&name);
        let addresses = known.map(|object| {
            let spec = &object["spec"];
            [&spec["clusterIP"], &spec["clusterIPs"], &spec["ipFamilies"]].map(Clone::clone)
        });
        let external_name = addresses.is_none() && self.rng.u8(0..30) == 0;
        let [first, all, families] = match addresses {
            Some(known) => known,
            None if external_name => [Value::Null, Value::Null, Value::Null],
            None => self.cluster_ips(),
        };
        let is_name = external_name || first.is_null();
        let kind = if is_name {
            "ExternalName"
        } else {
            *self
                .rng
                .choice(&["ClusterIP", "ClusterIP", "NodePort", "LoadBalancer"])
                .unwrap_or(&"ClusterIP")
        };
        let mut spec = json!({"type": kind, "ports": self.ports(kind)});
        if is_name {
            spec["externalName"] = "elsewhere.example.com".into();
        } else {
            spec["clusterIP"] = first;
            spec["clusterIPs"] = all;
            spec["ipFamilies"] = families;
            spec["ipFamilyPolicy"] = match spec["clusterIPs"].as_array().map(Vec::len) {
                Some(2) => "RequireDualStack".into(),
                _ => "SingleStack".into(),
            };
            // Immutable once assigned.
            let health_check = self
                .objects
                .get(&name)
                .and_then(|known| known["spec"]["healthCheckNodePort"].as_u64());
            self.policies(kind, health_check, &mut spec);
        }
        let mut object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name.name, "namespace": name.namespace},
            "spec": spec,
        });
        if self.rng.u8(0..30) == 0 {
            object["metadata"]["labels"] =
                json!({"service.kubernetes.io/service-proxy-name": "another"});
        }
        if kind == "LoadBalancer" {
            object["status"] = json!({"loadBalancer": {"ingress": self.ingress()}});
        }
        self.put(name, object)
    }

    fn cluster_ips(&mut self) -> [Value; 3] {
        self.next_address += 1;
        let number = self.next_address;
        let four = json!(format!("10.96.{}.{}", number / 250, number % 250 + 1));
        let six = json!(format!("fd00:10:96::{number:x}"));
        match self.rng.u8(0..6) {
            0 => [six.clone(), json!([six]), json!(["IPv6"])],
            1 => [six.clone(), json!([six, four]), json!(["IPv6", "IPv4"])],
            2..4 => [four.clone(), json!([four, six]), json!(["IPv4", "IPv6"])],
            _ => [four.clone(), json!([four]), json!(["IPv4"])],
        }
    }

    fn ports(&mut self, kind: &str) -> Value {
        let count = self.rng.usize(1..4);
        let ports = (0..count).map(|index| {
            let protocol = *self
                .rng
                .choice(&["TCP", "TCP", "UDP", "SCTP"])
                .unwrap_or(&"TCP");
            let mut port = json!({"protocol": protocol, "port": 80 + index, "targetPort": 8080});
            if count > 1 || self.rng.bool() {
                port["name"] = format!("p{index}").into();
            }
            if kind == "NodePort" || (kind == "LoadBalancer" && self.rng.bool()) {
                self.next_node_port += 1;
                port["nodePort"] = self.next_node_port.into();
            }
            port
        });
        ports.collect()
    }

    fn policies(&mut self, kind: &str, health_check: Option<u64>, spec: &mut Value) {
        if self.rng.u8(0..3) == 0 {
            let addresses = self.external_addresses();
            let count = self.rng.usize(1..4);
            spec["externalIPs"] = json!(addresses[..count]);
        }
        if self.rng.u8(0..4) == 0 {
            let seconds = self.rng.u32(1..86_400);
            spec["sessionAffinity"] = "ClientIP".into();
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
        } else {
            spec["sessionAffinity"] = "None".into();
        }
        let local = self.rng.u8(0..3) == 0;
        spec["internalTrafficPolicy"] = if local { "Local" } else { "Cluster" }.into();
        if kind == "ClusterIP" && spec.get("externalIPs").is_none() {
            return;
        }
        let local = self.rng.bool();
        spec["externalTrafficPolicy"] = if local { "Local" } else { "Cluster" }.into();
        if kind != "LoadBalancer" {
            return;
        }
        spec["allocateLoadBalancerNodePorts"] = false.into();
        if local {
            self.next_node_port += 1;
            let fresh = u64::from(self.next_node_port);
            spec["healthCheckNodePort"] = health_check.unwrap_or(fresh).into();
        }
        if self.rng.u8(0..3) == 0 {
            let ranges = [
                "203.0.113.0/25",
                "127.0.0.0/8",
                "2001:db8:1::/48",
                "0.0.0.0/0",
            ];
            let chosen = ranges.into_iter().filter(|_| self.rng.u8(0..3) == 0);
            spec["loadBalancerSourceRanges"] = chosen.collect();
        }
    }

    fn external_addresses(&mut self) -> [String; 3] {
        let number = match self.fronts {
            Fronts::Contested => 7,
            Fronts::Distinct => {
                // One for each of the two addresses of IPv4.
                self.next_address += 2;
                self.next_address
            }
        };
        let four = |number: u32| format!("198.51.{}.{}", 100 + number / 250, number % 250 + 1);
        [
            four(number - 1),
            format!("2001:db8::{number:x}"),
            four(number),
        ]
    }

    fn ingress(&mut self) -> Value {
        let count = self.rng.usize(0..3);
        let ingress = (0..count).map(|_| {
            self.next_address += 1;
            let number = self.next_address;
            let ip = if self.rng.u8(0..3) == 0 {
                format!("2001:db8:2::{number:x}")
            } else {
                format!("192.0.2.{}", number % 250 + 1)
            };
            let mode = if self.rng.u8(0..4) == 0 {
                "Proxy"
            } else {
                "VIP"
            };
            json!({"ip": ip, "ipMode": mode})
        });
        ingress.collect()
    }
}
