//! The private network: one segment, a namespace for each machine on it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use thiserror::Error;
use weft_host::namespace;

use crate::program::{ProgramError, ip};

/// The segment's bridge, in the world's own namespace.
const SEGMENT: &str = "segment";

/// The network could not be made.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// `ip` failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A setting of the kernel could not be changed.
    #[error("set {setting}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The addresses of a machine on the segment, by its number: of both families.
pub(crate) fn addresses(number: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(172, 30, 0, number).into(),
        Ipv6Addr::new(0xfd00, 0x172, 0x30, 0, 0, 0, 0, number.into()).into(),
    ]
}

/// The number of the world itself, where the API server is.
pub(crate) const WORLD: u8 = 1;

/// The file of a namespace.
pub(crate) fn file(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// Makes the segment; the world itself is on it.
pub(crate) fn make_segment() -> Result<(), NetworkError> {
    ip("link set lo up")?;
    ip(&format!("link add {SEGMENT} type bridge"))?;
    // Packets between machines are the machines' business.
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

/// Makes a machine on the segment.
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

/// Makes a namespace with its loopback up.
pub(crate) fn make_namespace(name: &str) -> Result<(), NetworkError> {
    ip(&format!("netns add {name}"))?;
    ip(&format!("-n {name} link set lo up"))?;
    // Nobody else is here: looking for duplicates would only delay addresses.
    for setting in [
        "net/ipv6/conf/default/accept_dad",
        "net/ipv6/conf/all/accept_dad",
    ] {
        set(name, setting, "0")?;
    }
    Ok(())
}

/// Makes a machine pass packets on, as every node of a cluster does. Says whether packets between
/// pods on a bridge go through its rules, without which a bridge cannot serve Services.
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

/// Removes a namespace; whoever is in it loses its network.
pub(crate) fn remove(name: &str) -> Result<(), NetworkError> {
    Ok(ip(&format!("netns delete {name}"))?)
}

fn set(name: &str, setting: &'static str, value: &str) -> Result<(), NetworkError> {
    let path = Path::new("/proc/sys").join(setting);
    namespace::within(&file(name), || fs::write(&path, value))
        .flatten()
        .map_err(|source| NetworkError::Setting { setting, source })
}
