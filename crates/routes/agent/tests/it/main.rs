//! The route controller on an embedded API server: in paused time, and on real kernels.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod blocks;
mod failure;
mod joining;
mod kernel;
mod leading;
mod observing;
mod rights;
mod switching;
mod world;
