//! House rules that no compiler checks.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod alerts;
mod crates;
mod documents;
mod exports;
mod figures;
mod modules;
mod task;
mod text;
mod tree;
mod unsafe_code;
mod words;
