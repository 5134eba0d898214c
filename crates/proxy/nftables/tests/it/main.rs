//! Integration tests of the nftables backend: a simulated kernel, the real one, and real packets.

mod kernel;
mod packets;
mod world;
