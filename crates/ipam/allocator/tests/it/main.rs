//! The allocator on a whole API server.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod failing;
mod lossy;
mod objects;
mod pod_cidrs;
mod poison;
mod rights;
mod scale;
mod scarcity;
mod serving;
mod upheaval;
mod world;
