//! A network namespace of a lab, and commands and threads that run in it.

use std::{
    fs::File, net::IpAddr, os::fd::AsFd as _, panic, path::PathBuf, process::Command, thread,
};

use ipnet::IpNet;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::lab::{Bridge, program};

/// A network namespace inside a lab: a node, a pod, a client.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates one with its loopback up. For programs that are not tests and have a private `/run`,
    /// where the name is kept; a test uses [`Lab::namespace`](super::Lab::namespace).
    pub fn create(name: &str) -> Self {
        program::ip(&format!("netns add {name}"));
        program::ip(&format!("-n {name} link set lo up"));
        Self {
            name: name.to_owned(),
        }
    }

    /// The name under which `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file under `/run/netns` that CNI plugins and `setns` take.
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// Gives an address to one of its devices.
    pub fn address(&self, device: &str, address: IpNet) {
        let name = &self.name;
        // No other host is on these links: duplicate detection would only delay the address.
        let flags = if address.addr().is_ipv6() {
            "nodad"
        } else {
            ""
        };
        program::ip(&format!(
            "-n {name} address add {address} dev {device} {flags}"
        ));
    }

    /// Plugs it into a bridge through a veth pair and gives its end a name and an address.
    pub fn attach(&self, bridge: &Bridge, device: &str, address: IpNet) {
        let port = bridge.plug(&self.name, device);
        program::ip(&format!("link set {port} up"));
        program::ip(&format!("-n {} link set {device} up", self.name));
        self.address(device, address);
    }

    /// Adds a default route through a gateway.
    pub fn default_route(&self, gateway: IpAddr) {
        program::ip(&format!("-n {} route add default via {gateway}", self.name));
    }

    /// Runs a closure on a thread of this namespace and returns its result.
    ///
    /// Sockets opened there stay in the namespace wherever they are used afterwards.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let path = self.path();
        let inside = move || {
            let namespace = File::open(&path).expect("the namespace exists as long as the lab");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("the lab's process may enter its own namespaces");
            work()
        };
        // A namespace belongs to a thread: a new one keeps the caller where it is.
        match thread::scope(|scope| scope.spawn(inside).join()) {
            Ok(result) => result,
            Err(panic) => panic::resume_unwind(panic),
        }
    }

    /// A command that runs in this namespace when it is started.
    pub fn command(&self, program: &str) -> Command {
        let mut command = program::command("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs a program in this namespace and returns what it wrote to stdout.
    ///
    /// # Panics
    /// When it cannot be started or exits with anything but 0.
    pub fn program(&self, program: &str, arguments: &[&str]) -> String {
        program::output(self.command(program).args(arguments))
    }
}
