//! The network segment between nodes: a bridge in the network namespace of the cluster.

use std::{net::IpAddr, path::Path, process::Command};

use super::settings::{Families, prefix_length};
use crate::process;

const BRIDGE: &str = "lan";

/// Makes the segment in this process's network namespace.
pub(super) fn create(families: Families) -> anyhow::Result<()> {
    ip(&["link", "set", "lo", "up"])?;
    ip(&["link", "add", BRIDGE, "type", "bridge"])?;
    // A switch does not filter what it forwards.
    for setting in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
        let path = format!("/proc/sys/net/bridge/{setting}");
        if Path::new(&path).exists() {
            std::fs::write(&path, "0")?;
        }
    }
    ip(&["link", "set", BRIDGE, "up"])?;
    for address in families.addresses(0) {
        add_address(None, BRIDGE, address)?;
    }
    Ok(())
}

/// Connects the network namespace of a process to the segment, with addresses and default routes.
pub(super) fn connect(node: u8, process: u32, families: Families) -> anyhow::Result<()> {
    let (port, process) = (format!("node{node}"), process.to_string());
    ip(&[
        "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &process,
    ])?;
    ip(&["link", "set", &port, "master", BRIDGE, "up"])?;
    let inside = Some(process.as_str());
    run(inside, &["ip", "link", "set", "lo", "up"])?;
    run(inside, &["ip", "link", "set", "eth0", "up"])?;
    for address in families.addresses(node) {
        add_address(inside, "eth0", address)?;
    }
    for gateway in families.addresses(0) {
        let gateway = gateway.to_string();
        run(inside, &["ip", "route", "add", "default", "via", &gateway])?;
    }
    // What install guides ask of a node.
    let forwarding = ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"];
    run(
        inside,
        &["sysctl", "--quiet", "--write", forwarding[0], forwarding[1]],
    )
}

/// Removes the port of a node that has ended, unless the kernel has done so already.
pub(super) fn disconnect(node: u8) {
    let port = format!("node{node}");
    let exists = || process::succeeds(Command::new("ip").args(["link", "show", &port]));
    // The kernel removes it with the node's network, a moment later: both may find it gone.
    while exists() {
        process::succeeds(Command::new("ip").args(["link", "delete", &port]));
    }
}

fn add_address(process: Option<&str>, device: &str, address: IpAddr) -> anyhow::Result<()> {
    let text = format!("{address}/{}", prefix_length(address));
    let mut words = vec!["ip", "address", "add", &text, "dev", device];
    if address.is_ipv6() {
        // Used at once: nothing else on this segment can have it.
        words.push("nodad");
    }
    run(process, &words)
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
    process::output(Command::new("ip").args(words)).map(drop)
}

/// Runs a program in the network namespace of a process, or in this one.
fn run(process: Option<&str>, words: &[&str]) -> anyhow::Result<()> {
    let mut command = match process {
        Some(process) => {
            let mut command = Command::new("nsenter");
            command
                .args(["--target", process, "--net", "--"])
                .arg(words[0]);
            command
        }
        None => Command::new(words[0]),
    };
    process::output(command.args(&words[1..])).map(drop)
}
