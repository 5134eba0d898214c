//! The allocator on a whole API server.

pub(crate) mod cluster;
mod objects;
