//! Integration tests of the nftables backend: a simulated kernel, the real one, and real packets.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod faults;
mod intermediate;
mod kernel;
mod ownership;
mod packets;
mod simulated;
mod world;
