//! Shared parts of Weft's long-running processes: configuration of the API client, identity in
//! leases and events, the watch of the own Node, and the run of a manager.

pub mod client;
mod identity;
pub mod own_node;
mod run;

pub use identity::identity;
pub use run::{run_until, serve_control_socket};
