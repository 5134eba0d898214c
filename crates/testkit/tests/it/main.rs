//! The lab and the allocator, tried out in earnest.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod isolation;
mod memory;
mod outcome;
mod traffic;
