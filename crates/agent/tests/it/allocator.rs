//! The allocator on a whole API server.

pub(crate) mod cluster;
mod failing;
mod lossy;
mod objects;
mod pod_cidrs;
mod poison;
pub(crate) mod rights;
mod scale;
mod scarcity;
mod serving;
mod upheaval;
mod world;
