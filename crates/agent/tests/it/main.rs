//! The agents from the outside: what they answer and expose.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may unwrap as tests do"
)]

mod allocator;
mod ipam;
mod listening;
mod metrics;
mod pages;
mod routes;
mod service_health;
mod web;
