//! `weft-cni`: an IPAM plugin for CNI. It turns environment and configuration into one request to
//! the address daemon of this node, and the response into a CNI result.
//!
//! It decides nothing about addresses and keeps no state but the [queue](Queue) of releases that
//! could not be delivered to the daemon. It creates no interface: `bridge`, `ptp` and similar
//! plugins do that and call this one for addresses.
//!
//! A process serves one call and delays the start of a pod: so it has no async runtime, no threads
//! and few dependencies. [`call`] is the entry point; start reading there.

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
mod served;
mod verbs;
mod version;

pub use arguments::{Command, Invocation};
pub use call::{INPUT_LIMIT, Limits, Output, call};
pub use config::{ConfiguredRoute, Ipam, NetworkConfig};
pub use daemon::{DaemonError, status, status_for_installer};
pub use fault::{Code, Fault};
pub use http::HttpError;
pub use names::{is_identifier, is_interface};
pub use queue::{Drained, Queue, QueueError, QueueGuard, QueuedRelease, Unreadable, Waiting};
pub use regular::open as open_regular;
pub use served::TOLERANCE as STATUS_TOLERANCE;
pub use version::SpecVersion;

/// Default path of the daemon's socket.
pub const DEFAULT_SOCKET: &str = "/run/weft/ipam.sock";
/// Default directory of the release queue.
pub const DEFAULT_QUEUE: &str = "/var/lib/weft/cni-queue";
/// The plugin's name in a network configuration, and the name of its program.
pub const PLUGIN: &str = "weft-cni";
