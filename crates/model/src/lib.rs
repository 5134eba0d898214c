//! The words of the domain, shared by every crate: object keys, shared strings, selectors,
//! address families and protocols.
//!
//! Pure data: no I/O, no clock, no Kubernetes client.

mod key;
mod network;
pub mod selector;
mod shared;

pub use key::ObjectKey;
pub use network::{IpFamily, Protocol};
pub use selector::{FieldSelector, LabelSelector};
pub use shared::SharedStr;
