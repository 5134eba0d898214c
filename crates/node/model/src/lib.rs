//! The words of the domain, shared by every crate: object keys, shared strings, selectors,
//! address families and protocols, moments and chance.
//!
//! Pure data: no I/O, no clock, no Kubernetes client.

mod key;
mod moment;
mod network;
mod random;
pub mod selector;
mod shared;

pub use key::ObjectKey;
pub use moment::Moment;
pub use network::{IpFamily, Protocol};
pub use random::Random;
pub use selector::{FieldSelector, LabelSelector};
pub use shared::SharedStr;
