//! The service proxy of a node: what it tells about itself.
//!
//! [`health`] knows how well the syncs go and [`service_health`] how many endpoints each Service
//! has here; both are asked over HTTP. [`metrics`] holds the figures, [`pages`] shows them, on
//! addresses that [`listen`] waits for, and [`config_file`] notices a new configuration.

mod agent;
pub mod config_file;
mod family;
mod first_sync;
pub mod health;
pub mod host;
mod inbox;
pub mod listen;
pub mod metrics;
mod nftables;
pub mod offline;
pub mod pages;
pub mod process;
mod schedule;
pub mod service_health;
pub mod syncs;
mod views;
mod watcher;

pub use agent::{Begin, Beginning, FamilyKernel, Proxy, ProxyParts};
pub use family::Flows;
pub use watcher::HostAddresses;
