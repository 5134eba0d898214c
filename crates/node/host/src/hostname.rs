//! What this machine is called.

use std::{fs, io};

/// The host's name as Kubernetes has it for a node, unless a flag says otherwise: in lower case.
pub fn node_name() -> io::Result<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname")?;
    Ok(name.trim().to_lowercase())
}
