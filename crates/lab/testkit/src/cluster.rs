//! Random clusters: Services, EndpointSlices and Nodes with every feature that a service proxy
//! supports, and random edits of them.
//!
//! Objects are JSON as the API server returns it, so the same cluster can be given to a model, to an
//! API server or to kube-proxy. The same seed gives the same objects and the same edits on every
//! machine.

use std::collections::BTreeMap;

use fastrand::Rng;
use serde_json::Value;

mod script;
mod service;
mod slice;

pub use script::minimal;

/// The node on which the proxy under test runs.
pub const NODE: &str = "node-0";

/// The other nodes.
const OTHER_NODES: [&str; 2] = ["node-1", "node-2"];

/// The zones in which nodes can be.
const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];

/// Kind, namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName {
    /// `Service`, `EndpointSlice` or `Node`.
    pub kind: &'static str,
    /// Empty for nodes.
    pub namespace: String,
    /// Name, unique per kind and namespace.
    pub name: String,
}

/// A change of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Edit {
    /// An object is created or replaced.
    Put(ObjectName, Value),
    /// An object is deleted.
    Delete(ObjectName),
}

/// A cluster that changes at random.
#[derive(Clone, Debug)]
pub struct RandomCluster {
    rng: Rng,
    namespace: String,
    objects: BTreeMap<ObjectName, Value>,
    /// Cluster IPs and NodePorts are never reused.
    next_address: u32,
    next_node_port: u16,
    next_name: u32,
    fronts: Fronts,
}

/// The external addresses of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fronts {
    /// Several Services may claim one address and port; which one gets it is a proxy's choice.
    Contested,
    /// No two Services have the same.
    Distinct,
}

impl RandomCluster {
    /// A cluster with three nodes and nothing else.
    pub fn new(seed: u64) -> Self {
        let mut cluster = Self {
            rng: Rng::with_seed(seed),
            namespace: format!("c{seed}"),
            objects: BTreeMap::new(),
            next_address: 10,
            next_node_port: 30_000,
            next_name: 0,
            fronts: Fronts::Contested,
        };
        for node in [NODE, OTHER_NODES[0], OTHER_NODES[1]] {
            cluster.put_node(node);
        }
        cluster
    }

    /// A cluster in which no two Services claim the same external address.
    pub fn with_distinct_fronts(seed: u64) -> Self {
        Self {
            fronts: Fronts::Distinct,
            ..Self::new(seed)
        }
    }

    /// The namespace of all Services and EndpointSlices.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// All objects as they are now.
    pub fn objects(&self) -> impl Iterator<Item = (&ObjectName, &Value)> {
        self.objects.iter()
    }

    /// Number of Services.
    pub fn services(&self) -> usize {
        self.names("Service").len()
    }

    /// Adds a Service with slices.
    pub fn add_service(&mut self) -> Vec<Edit> {
        self.next_name += 1;
        let name = format!("s{}", self.next_name);
        let mut edits = vec![self.put_service(&name)];
        for _ in 0..self.rng.usize(0..6) {
            edits.push(self.put_slice(&name));
        }
        edits
    }

    /// Makes one random change and returns its edits.
    pub fn edit(&mut self) -> Vec<Edit> {
        match self.rng.u8(0..20) {
            0..4 => self.add_service(),
            4..8 => self.change_service(),
            8..9 => self.delete("Service"),
            9..16 => self.change_slice(),
            16..18 => self.delete("EndpointSlice"),
            18 => vec![self.put_node(NODE)],
            _ => self.annotate_slice(),
        }
    }

    fn change_service(&mut self) -> Vec<Edit> {
        match self.any("Service") {
            Some(name) => vec![self.put_service(&name.name)],
            None => self.add_service(),
        }
    }

    fn change_slice(&mut self) -> Vec<Edit> {
        let Some(service) = self.any("Service") else {
            return self.add_service();
        };
        let own = self.slices_of(&service.name);
        match self.rng.choice(own) {
            Some(slice) if self.rng.u8(0..4) != 0 => vec![self.replace_slice(&slice)],
            _ => vec![self.put_slice(&service.name)],
        }
    }

    /// Changes an annotation only: a proxy must not write anything.
    fn annotate_slice(&mut self) -> Vec<Edit> {
        let Some(name) = self.any("EndpointSlice") else {
            return self.add_service();
        };
        let mut object = self.objects[&name].clone();
        object["metadata"]["annotations"]["weft.dev/round"] = self.rng.u32(..).to_string().into();
        vec![self.put(name, object)]
    }

    fn delete(&mut self, kind: &'static str) -> Vec<Edit> {
        let Some(name) = self.any(kind) else {
            return self.add_service();
        };
        // Slices of a deleted Service stay behind at times, as they do in a real cluster.
        let mut gone = vec![name.clone()];
        if kind == "Service" && self.rng.bool() {
            gone.extend(self.slices_of(&name.name));
        }
        for name in &gone {
            self.objects.remove(name);
        }
        gone.into_iter().map(Edit::Delete).collect()
    }

    fn put_node(&mut self, name: &str) -> Edit {
        let mut labels = serde_json::json!({"kubernetes.io/hostname": name});
        if let Some(zone) = self.rng.choice(ZONES).filter(|_| self.rng.u8(0..5) != 0) {
            labels["topology.kubernetes.io/zone"] = zone.into();
        }
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]},
        });
        let name = ObjectName {
            kind: "Node",
            namespace: String::new(),
            name: name.to_owned(),
        };
        self.put(name, object)
    }

    fn put(&mut self, name: ObjectName, object: Value) -> Edit {
        self.objects.insert(name.clone(), object.clone());
        Edit::Put(name, object)
    }

    fn named(&self, kind: &'static str, name: &str) -> ObjectName {
        ObjectName {
            kind,
            namespace: self.namespace.clone(),
            name: name.to_owned(),
        }
    }

    fn names(&self, kind: &str) -> Vec<ObjectName> {
        let of_kind = self.objects.keys().filter(|name| name.kind == kind);
        of_kind.cloned().collect()
    }

    fn any(&mut self, kind: &str) -> Option<ObjectName> {
        let names = self.names(kind);
        self.rng.choice(names)
    }

    fn slices_of(&self, service: &str) -> Vec<ObjectName> {
        let belongs = |object: &Value| {
            object["metadata"]["labels"]["kubernetes.io/service-name"].as_str() == Some(service)
        };
        let slices = self.objects.iter();
        slices
            .filter(|(name, object)| name.kind == "EndpointSlice" && belongs(object))
            .map(|(name, _)| name.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64) -> Vec<Edit> {
        let mut cluster = RandomCluster::new(seed);
        (0..200).flat_map(|_| cluster.edit()).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_edits() {
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn every_feature_occurs() {
        let text = format!("{:?}", (0..20).flat_map(run).collect::<Vec<_>>());
        let features = [
            "NodePort",
            "LoadBalancer",
            "ExternalName",
            "externalIPs",
            "ClientIP",
            "\"externalTrafficPolicy\": String(\"Local\")",
            "\"internalTrafficPolicy\": String(\"Local\")",
            "healthCheckNodePort",
            "loadBalancerSourceRanges",
            "Proxy",
            "forZones",
            "forNodes",
            "\"terminating\": Bool(true)",
            "\"ready\": Bool(false)",
            "SCTP",
            "UDP",
            "IPv6",
            "FQDN",
            "service-proxy-name",
            "Delete",
        ];
        for feature in features {
            assert!(text.contains(feature), "{feature}");
        }
    }
}
