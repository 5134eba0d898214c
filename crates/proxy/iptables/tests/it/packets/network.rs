//! A proxy of the iptables mode on the node of a small network.

use std::{
    net::{IpAddr, SocketAddr},
    ops::Deref,
};

use serde_json::Value;
use weft_host::iptables::Variant;
use weft_iptables::HostKernel;
use weft_model::{IpFamily, Protocol};
use weft_ruleset::trace::{Entry, Packet, Verdict};
use weft_testkit::{
    exchange::{PATIENCE, Reply, SILENCE},
    lab::Lab,
    service_network::{Sender, ServiceNetwork, at},
};

use crate::{
    host::{kernel, world},
    world::{OPTIONS, World},
};

/// The namespaces, with a proxy of one family and variant on the node.
pub(crate) struct Network {
    pub(crate) machines: ServiceNetwork,
    pub(crate) variant: Variant,
    pub(crate) world: World<HostKernel>,
}

impl Deref for Network {
    type Target = ServiceNetwork;

    fn deref(&self) -> &ServiceNetwork {
        &self.machines
    }
}

impl Network {
    pub(crate) fn new(lab: &Lab, family: IpFamily, variant: Variant) -> Self {
        let machines = ServiceNetwork::new(lab, family, &variant.to_string());
        machines
            .node
            .sysctl("net/ipv4/conf/all/route_localnet", "1");
        let mut world = machines.node.run(|| world(family, variant, OPTIONS));
        world.settings.node_ip = at(family, "node");
        Self {
            machines,
            variant,
            world,
        }
    }

    /// Takes in objects and programs them.
    pub(crate) fn program(&mut self, objects: &[Value]) {
        for object in objects {
            self.world.put(object);
        }
        let world = &mut self.world;
        self.machines.node.run(|| world.sync());
    }

    /// The proxy ends and starts again with other options. Returns the bytes of its first sync.
    pub(crate) fn restart(&mut self, options: weft_iptables::Options) -> usize {
        let (family, variant, world) = (self.machines.family, self.variant, &mut self.world);
        self.machines.node.run(|| {
            world.restart(kernel(family, variant), options);
            world.full_sync().bytes
        })
    }

    /// Sends a request and compares the outcome with a trace through the rules.
    pub(crate) fn ask(&mut self, sender: Sender, target: SocketAddr, protocol: Protocol) -> Reply {
        let source = self.source(sender, target);
        let promised = self.promised(sender, source, target, protocol);
        let silent = promised
            .iter()
            .all(|(verdict, _)| *verdict == Verdict::Dropped);
        let patience = if silent { SILENCE } else { PATIENCE };
        let reply = self.request(sender, target, protocol, patience);
        let kept = promised
            .iter()
            .any(|promise| self.keeps(source, promise, &reply));
        let about = (self.family, self.variant, sender, target, protocol);
        assert!(kept, "{about:?}: {reply:?}, but the rules say {promised:?}");
        reply
    }

    fn promised(
        &mut self,
        sender: Sender,
        source: IpAddr,
        target: SocketAddr,
        protocol: Protocol,
    ) -> Vec<(Verdict, bool)> {
        let packet = Packet {
            source,
            destination: target.ip(),
            protocol,
            destination_port: target.port(),
            entry: sender
                .device()
                .map_or(Entry::Sent, |device| Entry::Arriving {
                    device: Some(device.to_owned()),
                }),
            mark: 0,
            local_addresses: self.own_addresses(),
            affinity: None,
        };
        let world = &mut self.world;
        let rules = self.machines.node.run(|| world.rules());
        let outcomes = rules.trace(&packet).into_iter();
        outcomes
            .map(|outcome| (outcome.verdict, outcome.masqueraded))
            .collect()
    }

    fn keeps(
        &self,
        source: IpAddr,
        (verdict, masqueraded): &(Verdict, bool),
        reply: &Reply,
    ) -> bool {
        match (verdict, reply) {
            (Verdict::Dnat(endpoint), Reply::From { server, seen }) => {
                let right_source = if *masqueraded {
                    self.own_addresses().contains(seen)
                } else {
                    *seen == source
                };
                endpoint.ip() == at(self.family, server) && right_source
            }
            // Traffic that is accepted for the node itself finds no listener.
            (Verdict::Rejected | Verdict::Accepted, Reply::Refused)
            | (Verdict::Dropped, Reply::Silence) => true,
            _ => false,
        }
    }
}
