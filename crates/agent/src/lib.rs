//! The long-running loops of a node.

pub mod proxy;
pub mod routes;
