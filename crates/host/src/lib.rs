//! The only door to the kernel: iptables programs, netlink, sysctls, addresses.
//!
//! Everything here blocks the calling thread and acts in that thread's network namespace. Nothing
//! here decides: callers say what to read or write, and learn which call failed and what it said.
//!
//! Start reading at [`iptables`]; `raw.rs` holds the unsafe calls.

pub mod addresses;
pub mod command;
pub mod iptables;
pub mod netfilter;
mod netlink;
mod raw;

pub use netlink::NetlinkError;
