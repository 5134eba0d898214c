//! Values that every crate uses: object keys, shared strings, selectors, resource versions, IP families and
//! protocols, points in time, delays of a back-off, seeded random numbers, decoding helpers, and
//! errors as text.
//!
//! Pure data: no I/O, no clock, no Kubernetes client.

mod address;
mod decode;
mod delay;
mod error_text;
mod key;
mod labels;
mod moment;
mod network;
mod random;
mod resource_version;
pub mod selector;
mod shared;

pub use address::parse_sloppy;
pub use decode::null_is_default;
pub use delay::ExponentialDelay;
pub use error_text::error_text;
pub use key::ObjectKey;
pub use labels::ZONE_LABEL;
pub use moment::Moment;
pub use network::{IpFamily, Protocol};
pub use random::Random;
pub use resource_version::{ResourceVersion, is_older_version};
pub use selector::{FieldSelector, LabelSelector};
pub use shared::SharedStr;
