//! The processes that run several agents: `weft controller` and `weft node`.

pub(crate) mod controller;
pub(crate) mod dashboard;
pub(crate) mod node;
