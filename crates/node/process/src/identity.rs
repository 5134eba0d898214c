//! Identity of this process in leases, events and the annotation of its writes.

use weft_host::hostname;

/// Host name and a UUID, in the format of Kubernetes' controllers.
pub fn identity() -> String {
    let host = hostname::node_name();
    let host = host.as_deref().unwrap_or("unknown");
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
    let id = id.map_or_else(
        |_| std::process::id().to_string(),
        |id| id.trim().to_owned(),
    );
    format!("{host}_{id}")
}
