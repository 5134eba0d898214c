//! The node name derived from the host name.

use std::{fs, io};

/// The host name in lower case: Kubernetes' default for the name of a node.
pub fn node_name() -> io::Result<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname")?;
    Ok(name.trim().to_lowercase())
}
