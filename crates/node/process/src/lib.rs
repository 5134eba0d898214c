//! What every long-running process of Weft shares: the configuration of its API client, its identity
//! in leases and events, the watch of its own Node, and the run of a manager.

pub mod client;
mod identity;
pub mod own_node;
mod run;

pub use identity::identity;
pub use run::{run_until, serve_control_socket};
