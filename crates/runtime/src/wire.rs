//! The list/watch protocol on the wire: requests, frames, decoding and errors.
//!
//! Knows nothing of caches. kube's own watcher is not used: it clones every object, buffers whole
//! lists, gives up the identity of an object that does not decode and repeats a dead version for
//! ever on an HTTP 410 (ADR 0004).

mod decode;
mod error;
mod frames;
mod list;
mod request;

pub(crate) use decode::{Decoded, WatchEvent, decode_event};
pub(crate) use error::Verdict;
pub use error::WatchError;
pub(crate) use frames::Lines;
pub(crate) use list::ListReader;
pub(crate) use request::{Collection, ListStart, open};
