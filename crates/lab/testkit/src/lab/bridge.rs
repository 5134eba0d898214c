//! A bridge that connects the namespaces of a lab.

use std::sync::atomic::{AtomicU32, Ordering};

use ipnet::IpNet;

use crate::lab::program;

/// A bridge in the lab's own namespace: the switch between its namespaces.
#[derive(Debug)]
pub struct Bridge {
    name: String,
    ports: AtomicU32,
}

impl Bridge {
    pub(crate) fn create(name: &str) -> Self {
        program::ip(&format!("link add {name} type bridge"));
        program::ip(&format!("link set {name} up"));
        Self {
            name: name.to_owned(),
            ports: AtomicU32::new(0),
        }
    }

    /// The bridge's device name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives the bridge an address, so that the lab itself is on the link.
    pub fn address(&self, address: IpNet) {
        let flags = if address.addr().is_ipv6() {
            "nodad"
        } else {
            ""
        };
        program::ip(&format!("address add {address} dev {} {flags}", self.name));
    }

    /// Makes a veth pair from a new port of the bridge into a namespace; returns the port's name.
    pub(crate) fn plug(&self, namespace: &str, device: &str) -> String {
        let port = format!(
            "{}p{}",
            self.name,
            self.ports.fetch_add(1, Ordering::Relaxed)
        );
        program::ip(&format!(
            "link add {port} master {} type veth peer name {device} netns {namespace}",
            self.name
        ));
        port
    }
}
