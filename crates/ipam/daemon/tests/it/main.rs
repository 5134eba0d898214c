//! Integration tests of the address daemon against the embedded API server, by the plugins' API.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod answering;
mod damaging;
mod failing;
mod modes;
mod poison;
mod replaying;
mod restarting;
mod scaling;
mod storing;
mod world;
