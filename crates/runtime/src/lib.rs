//! Shared informers, workqueue and controllers whose parts can be started, stopped and removed.

mod kind;
mod metadata;
mod object;
mod wire;

pub use kind::Kind;
pub use metadata::{Annotations, Labels, Metadata, MetadataOnly, OwnerReference, Skipped};
pub use object::{Kinded, Object, Owner, Pairs, ResourceVersion};
pub use wire::WatchError;
