//! The words of the domain, shared by every crate: object keys and shared strings.
//!
//! Pure data: no I/O, no clock, no Kubernetes client.

mod key;
mod shared;

pub use key::ObjectKey;
pub use shared::SharedStr;
