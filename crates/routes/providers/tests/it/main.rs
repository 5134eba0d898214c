//! Providers against test doubles of their APIs, and against real kernels.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod aws;
mod hcloud;
mod hostile;
mod memory;
mod netlink;
mod open;
mod steps;
