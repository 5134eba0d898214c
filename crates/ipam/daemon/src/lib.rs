//! Keeps the addresses of a node: which pod has which, and how many the node asks for.
//!
//! What to do is decided in `weft-ipam`. Here is what lies between: one actor owns the pool, makes
//! its records durable in groups, lets answers out afterwards, and follows the cluster.

mod actor;
mod daemon;
mod desk;
mod disk;
mod feeds;
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

pub use daemon::{Daemon, DaemonError, DaemonParts, Doors, IpamComponent, IpamSetup};
pub use desk::{Desk, Picture, Stopping};
pub use machine::{Clock, IdentityError, identity};
pub use metrics::IpamMetrics;
pub use process::IpamProcess;
pub use replay::{ReplayError, Replayed, replay};
pub use rest::Rest;
pub use settings::IpamSettings;
pub use weft_runtime::{AskError, ask};
pub use writer::ATTEMPT_ANNOTATION;
