//! `weft-cni`: the IPAM half of a CNI plugin. It turns environment and configuration into one
//! question to the address daemon of this node, and the answer into a CNI result.
//!
//! It decides nothing about addresses and keeps no state but the [queue](Queue) of releases that
//! the daemon was not there to hear. It makes no interface: `bridge`, `ptp` and their like do that
//! and call this for the addresses.
//!
//! A process of it lives for one call, within the start of every pod: so it has no runtime, no
//! threads and few dependencies. [`call`] is the whole of it; start reading there.

mod arguments;
mod call;
mod config;
mod daemon;
mod deadline;
mod fault;
mod http;
mod logfile;
mod names;
mod outcome;
mod queue;
mod regular;
mod verbs;
mod version;

pub use arguments::{Command, Invocation};
pub use call::{INPUT_LIMIT, Limits, Output, call};
pub use config::{ConfiguredRoute, Ipam, NetworkConfig};
pub use daemon::{DaemonError, status};
pub use fault::{Code, Fault};
pub use http::HttpError;
pub use names::{is_identifier, is_interface};
pub use queue::{Drained, Queue, QueueError, QueueGuard, QueuedRelease, Unreadable, Waiting};
pub use regular::open as open_regular;
pub use version::SpecVersion;

/// Where the daemon listens unless the configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/weft/ipam.sock";
/// Where releases wait for the daemon unless the configuration says otherwise.
pub const DEFAULT_QUEUE: &str = "/var/lib/weft/cni-queue";
/// What a network configuration calls this plugin, and the name of its program.
pub const PLUGIN: &str = "weft-cni";
