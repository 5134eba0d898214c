//! The allocator on a whole API server.

mod cluster;
mod objects;
