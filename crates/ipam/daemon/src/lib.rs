//! The address daemon of a node: assigns addresses to pods and requests them from the cluster.
//!
//! Decisions are made in `weft-ipam`. Here one actor owns the pool, makes its records durable in
//! groups, sends replies afterwards, and watches the cluster.

mod actor;
mod announce;
mod daemon;
mod disk;
mod feeds;
mod handle;
mod machine;
pub mod metrics;
mod outbox;
mod process;
mod replay;
pub mod report;
mod rest;
mod settings;
pub mod store;
mod views;
mod writer;

pub use daemon::{Daemon, DaemonParts, DaemonStartError, IpamComponent, IpamSetup, Listeners};
pub use handle::{DaemonHandle, Snapshot, Startup, Stopping};
pub use machine::{Clock, IdentityError, identity};
pub use metrics::IpamMetrics;
pub use process::IpamProcess;
pub use replay::{ReplayError, Replayed, replay};
pub use rest::RestApi;
pub use settings::IpamSettings;
pub use weft_runtime::{SocketError, socket_get};
pub use writer::ATTEMPT_ANNOTATION;
