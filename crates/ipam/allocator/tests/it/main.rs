//! Integration tests of the allocator against the embedded API server.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod disruption;
mod failing;
mod lossy;
mod objects;
mod pod_cidrs;
mod poison;
mod rights;
mod scale;
mod scarcity;
mod serving;
mod world;
