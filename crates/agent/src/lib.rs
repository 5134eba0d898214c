//! The long-running loops of a node.

pub mod allocator;
pub mod client;
pub mod dashboard;
pub mod ipam;
pub mod manager;
pub mod node;
mod own_node;
mod process;
pub mod proxy;
pub mod routes;
