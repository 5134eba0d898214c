//! Integration tests of the proxy agent: its listeners, pages and metrics.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod listening;
mod metrics;
mod pages;
mod service_health;
mod web;
