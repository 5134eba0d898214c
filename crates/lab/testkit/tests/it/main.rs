//! Integration tests of the lab.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod isolation;
mod outcome;
mod traffic;
