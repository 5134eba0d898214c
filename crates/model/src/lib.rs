//! The words of the domain, shared by every crate: object keys, shared strings and selectors.
//!
//! Pure data: no I/O, no clock, no Kubernetes client.

mod key;
pub mod selector;
mod shared;

pub use key::ObjectKey;
pub use selector::{FieldSelector, LabelSelector};
pub use shared::SharedStr;
