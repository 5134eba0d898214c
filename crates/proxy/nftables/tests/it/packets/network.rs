//! A proxy of the nftables mode on the node of a small network.

use std::{net::SocketAddr, ops::Deref};

use serde_json::Value;
use weft_model::{IpFamily, Protocol};
use weft_nftables::{HostKernel, Packet, Watch};
use weft_proxy::SyncReport;
use weft_testkit::{
    exchange::{PATIENCE, Reply, SILENCE},
    lab::Lab,
    service_network::{Sender, ServiceNetwork, at},
};

use crate::world::World;

/// The namespaces, with a proxy of one family on the node.
pub(crate) struct Network {
    pub(crate) machines: ServiceNetwork,
    pub(crate) world: World,
}

impl Deref for Network {
    type Target = ServiceNetwork;

    fn deref(&self) -> &ServiceNetwork {
        &self.machines
    }
}

impl Network {
    pub(crate) fn new(lab: &Lab, family: IpFamily) -> Self {
        let machines = ServiceNetwork::new(lab, family, "");
        let mut world = machines.node.run(|| World::real(family));
        world.settings.node_ip = at(family, "node");
        Self { machines, world }
    }

    /// The first packet of a sender.
    pub(crate) fn packet(&self, sender: Sender, target: SocketAddr, protocol: Protocol) -> Packet {
        Packet {
            source: self.source(sender, target),
            destination: target,
            protocol,
            device: sender.device().map(str::to_owned),
            local_addresses: self.own_addresses(),
        }
    }

    /// Takes in objects and programs them.
    pub(crate) fn program(&mut self, objects: &[Value]) -> SyncReport {
        for object in objects {
            self.world.put(object);
        }
        self.sync()
    }

    pub(crate) fn sync(&mut self) -> SyncReport {
        let world = &mut self.world;
        self.machines.node.run(|| world.sync())
    }

    /// The proxy ends and starts again.
    pub(crate) fn restart(&mut self) -> SyncReport {
        let (family, world) = (self.machines.family, &mut self.world);
        self.machines
            .node
            .run(|| world.restart(HostKernel::new(family, Watch::new())))
    }

    /// Asks and expects an answer or a refusal.
    pub(crate) fn ask(&self, sender: Sender, target: SocketAddr, protocol: Protocol) -> Reply {
        self.request(sender, target, protocol, PATIENCE)
    }

    /// Asks and expects nothing.
    pub(crate) fn is_silent(&self, sender: Sender, target: SocketAddr, protocol: Protocol) -> bool {
        self.request(sender, target, protocol, SILENCE) == Reply::Silence
    }
}
