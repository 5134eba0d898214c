//! Network namespaces as files, in the way of `ip netns`.

use std::{fs::File, io, os::fd::AsFd as _, panic, path::Path, thread};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Runs work on a thread of its own inside the network namespace that a file refers to.
///
/// Sockets opened there stay in the namespace wherever they are used afterwards.
pub fn within<T: Send>(file: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let namespace = File::open(file)?;
    let inside = || -> io::Result<T> {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(work())
    };
    // A network namespace belongs to a thread: on a new one the caller's does not change.
    match thread::scope(|scope| scope.spawn(inside).join()) {
        Ok(result) => result,
        Err(panic) => panic::resume_unwind(panic),
    }
}
