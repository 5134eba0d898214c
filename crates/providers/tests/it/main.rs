//! Providers against doubles of what they talk to.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod memory;
mod netlink;
