//! The network of the playground: one bridge, and a namespace for each machine on it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use thiserror::Error;
use weft_host::namespace;

use crate::program::{ProgramError, ip};

/// Name of the bridge, in the world's own namespace.
const SEGMENT: &str = "segment";

/// The network could not be created.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// `ip` failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A sysctl could not be changed.
    #[error("cannot set sysctl {setting}")]
    Setting {
        /// Path under `/proc/sys`.
        setting: &'static str,
        /// Error of the write.
        source: std::io::Error,
    },
}

/// IPv4 and IPv6 address of a machine on the segment, by its number.
pub(crate) fn addresses(number: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(172, 30, 0, number).into(),
        Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, number.into()).into(),
    ]
}

/// Number of the world itself, where the API server listens.
pub(crate) const WORLD: u8 = 1;

/// Path of a namespace's file.
pub(crate) fn file(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// Creates the segment and connects the world itself to it.
pub(crate) fn make_segment() -> Result<(), NetworkError> {
    ip("link set lo up")?;
    ip(&format!("link add {SEGMENT} type bridge"))?;
    // Packets between machines must not pass the rules of the world.
    let through = Path::new("/proc/sys/net/bridge");
    for setting in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
        if through.join(setting).exists() {
            let _ = fs::write(through.join(setting), "0");
        }
    }
    ip(&format!("link set {SEGMENT} up"))?;
    for (address, length) in addresses(WORLD).into_iter().zip([24, 64]) {
        let flags = if length == 64 { "nodad" } else { "" };
        ip(&format!(
            "address add {address}/{length} dev {SEGMENT} {flags}"
        ))?;
    }
    Ok(())
}

/// Creates a machine on the segment.
pub(crate) fn make_machine(name: &str, number: u8) -> Result<(), NetworkError> {
    make_namespace(name)?;
    let port = format!("port-{number}");
    ip(&format!(
        "link add {port} master {SEGMENT} type veth peer name eth0 netns {name}"
    ))?;
    ip(&format!("link set {port} up"))?;
    ip(&format!("-n {name} link set eth0 up"))?;
    for (address, length) in addresses(number).into_iter().zip([24, 64]) {
        let flags = if length == 64 { "nodad" } else { "" };
        ip(&format!(
            "-n {name} address add {address}/{length} dev eth0 {flags}"
        ))?;
    }
    Ok(())
}

/// Creates a namespace with its loopback up.
pub(crate) fn make_namespace(name: &str) -> Result<(), NetworkError> {
    ip(&format!("netns add {name}"))?;
    ip(&format!("-n {name} link set lo up"))?;
    // There are no other hosts: duplicate detection would only delay addresses.
    for setting in [
        "net/ipv6/conf/default/accept_dad",
        "net/ipv6/conf/all/accept_dad",
    ] {
        set(name, setting, "0")?;
    }
    Ok(())
}

/// Enables forwarding on a machine, as every node of a cluster has it. Returns true if bridged packets
/// pass iptables (`br_netfilter`), without which Services do not work between pods on one bridge.
pub(crate) fn make_router(name: &str) -> Result<bool, NetworkError> {
    set(name, "net/ipv4/ip_forward", "1")?;
    set(name, "net/ipv6/conf/all/forwarding", "1")?;
    let through = [
        "net/bridge/bridge-nf-call-iptables",
        "net/bridge/bridge-nf-call-ip6tables",
    ];
    Ok(through
        .into_iter()
        .all(|setting| set(name, setting, "1").is_ok()))
}

/// Removes the name of a namespace; processes in it keep running.
pub(crate) fn remove(name: &str) -> Result<(), NetworkError> {
    Ok(ip(&format!("netns delete {name}"))?)
}

fn set(name: &str, setting: &'static str, value: &str) -> Result<(), NetworkError> {
    let path = Path::new("/proc/sys").join(setting);
    namespace::within(&file(name), || fs::write(&path, value))
        .flatten()
        .map_err(|source| NetworkError::Setting { setting, source })
}
