//! Limit of the process's open file descriptors.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The soft limit of open file descriptors.
pub fn descriptor_limit() -> u64 {
    // `None` means unlimited.
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft limit of open file descriptors to the hard one, as Go programs do at start, and
/// returns the new one.
///
/// The soft limit is 1,024 by default for the sake of programs that use select(2), which this one
/// does not.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised)?;
    Ok(descriptor_limit())
}
