//! The service proxy of a node: watches Services, EndpointSlices, ServiceCIDRs and the Node, and keeps
//! the kernel's rules in step with them.
//!
//! The `watcher` feeds one model per address family. Each family's loop (`family`) takes the
//! changes, syncs them through a [`Backend`](weft_proxy::Backend), and audits the rules when
//! nothing changed; a [schedule](weft_proxy::schedule) decides when. [`process`] puts a whole process together.
//!
//! The rest reports on it: [`health`] tracks how syncs go and [`service_health`] how many endpoints
//! each Service has on this node; both are served over HTTP. [`metrics`] has the figures, [`pages`]
//! the diagnostic pages, on addresses that [`listen`] binds. [`config_file`] notices a new
//! configuration.

mod agent;
pub mod config_file;
mod family;
mod first_sync;
pub mod health;
pub mod host;
mod inbox;
pub mod listen;
mod localhost;
pub mod metrics;
mod nftables;
pub mod offline;
pub mod pages;
pub mod process;
pub mod service_health;
mod sync_state;
pub mod syncs;
mod views;
mod watcher;

pub use agent::{FamilyKernel, PrepareRun, Proxy, ProxyParts, RunSetup};
pub use sync_state::Flows;
pub use watcher::HostAddresses;
