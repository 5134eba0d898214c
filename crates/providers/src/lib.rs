//! Where routes are: one trait, and one module for each kind of route table.
//!
//! A provider does what it is told and says how it went; when to call it, what for and how often
//! is decided in `weft-routes`. `docs/providers.md` says how to add one.

mod calls;
mod memory;
pub mod netlink;
mod provider;

pub use calls::{CallOutcome, Calls};
pub use memory::MemoryProvider;
pub use netlink::NetlinkProvider;
pub use provider::{Answer, Capabilities, InstanceAddresses, Provider, SharedProvider};
