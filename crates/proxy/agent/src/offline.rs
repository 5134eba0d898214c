//! Derives the proxy's state from given objects, for tools that write nothing.

use std::net::IpAddr;

use ipnet::IpNet;
use kube::{
    Client,
    api::{Api, ListParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::Value;
use weft_model::{IpFamily, SharedStr};
use weft_proxy::{
    Desired, Model, NodeFacts, Problem, Settings,
    config::{Mode, NodeNetwork, ProxyConfig},
    objects::{DecodeError, Object},
    service_networks,
};
use weft_runtime::Failure;

use crate::watcher::node_ip;

/// The objects of a cluster at one time.
#[derive(Debug, Default)]
pub struct Snapshot(Vec<Object>);

/// The state that a proxy would program for a snapshot, for one family.
#[derive(Debug)]
pub struct FamilyState {
    /// The Services.
    pub desired: Desired,
    /// Everything but Services.
    pub settings: Settings,
    /// Invalid values in the objects.
    pub problems: Vec<Problem>,
}

impl Snapshot {
    /// Adds an object or a list of them; other kinds are ignored.
    pub fn add(&mut self, object: &Value) -> Result<(), DecodeError> {
        if let Some(items) = object["items"].as_array() {
            return items.iter().try_for_each(|item| self.add(item));
        }
        self.0.extend(Object::decode(object)?);
        Ok(())
    }

    /// Lists a cluster's objects.
    pub async fn read(client: &Client) -> Result<Self, Failure> {
        let mut snapshot = Self::default();
        for (group, version, kind) in [
            ("", "v1", "Service"),
            ("discovery.k8s.io", "v1", "EndpointSlice"),
            ("", "v1", "Node"),
            ("networking.k8s.io", "v1", "ServiceCIDR"),
        ] {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            let listed = match api.list(&ListParams::default()).await {
                // An API server may not serve them, or not to this account.
                Err(kube::Error::Api(status)) if kind == "ServiceCIDR" => {
                    tracing::warn!(error = status.message, "cannot list ServiceCIDRs");
                    continue;
                }
                listed => listed?,
            };
            for object in listed {
                let mut object = serde_json::to_value(object)?;
                object["kind"] = kind.into();
                snapshot.add(&object)?;
            }
        }
        Ok(snapshot)
    }

    /// The state that the proxy of a node would program.
    pub fn family_state(
        &self,
        config: &ProxyConfig,
        family: IpFamily,
        node: &str,
        host_addresses: Vec<IpAddr>,
    ) -> FamilyState {
        let facts = NodeFacts {
            name: SharedStr::new(node),
            zone: None,
        };
        let mut model = Model::new(family, facts);
        let problems = self.0.iter().flat_map(|object| model.set(object));
        let problems = problems.collect();
        let (addresses, pod_networks) = self.node(node);
        let network = NodeNetwork {
            node_ip: node_ip(config, family, &addresses),
            pod_networks,
            addresses: host_addresses,
        };
        let changes = model.take_changes().into_iter();
        FamilyState {
            desired: changes
                .filter_map(|(key, service)| Some((key, service?)))
                .collect(),
            settings: Settings {
                service_networks: self.service_networks(config.mode, family),
                ..config.settings(family, &network)
            },
            problems,
        }
    }

    fn service_networks(&self, mode: Mode, family: IpFamily) -> Vec<IpNet> {
        let texts = self.0.iter().flat_map(|object| match object {
            Object::ServiceCidr(spec) if mode == Mode::Nftables => &*spec.cidrs,
            _ => &[],
        });
        service_networks(texts.map(|text| &**text), family)
    }

    fn node(&self, wanted: &str) -> (Vec<IpAddr>, Vec<IpNet>) {
        let found = self.0.iter().find_map(|object| match object {
            Object::Node {
                name,
                addresses,
                pod_cidrs,
                ..
            } if **name == *wanted => Some((addresses, pod_cidrs)),
            _ => None,
        });
        let (addresses, networks) = found.unzip();
        let networks = networks.into_iter().flat_map(|networks| networks.iter());
        (
            addresses.map_or_else(Vec::new, |addresses| addresses.to_vec()),
            networks
                .filter_map(|network| network.parse().ok())
                .collect(),
        )
    }
}
