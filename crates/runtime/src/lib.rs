//! Shared informers, workqueue and controllers whose parts can be started, stopped and removed.

mod backoff;
mod cache;
mod informer;
mod kind;
mod metadata;
mod object;
mod queue;
mod wire;

pub use cache::{Cache, CacheBuilder};
pub use informer::{
    Change, Index, Informer, InformerInfo, InformerKey, InformerState, InformerStopped, ListMode,
    Lister, SelectorError, StopReason, Subscription, UndecodableObject, WaitReason, WatchSpec,
};
pub use kind::Kind;
pub use metadata::{Annotations, Labels, Metadata, MetadataOnly, OwnerReference, Skipped};
pub use object::{Kinded, Object, Owner, Pairs, ResourceVersion};
pub use queue::{
    AddOptions, Bucket, Capped, Exponential, FastSlow, Lease, MaxOf, Priority, QueueKey,
    RateLimiter, WithJitter, Workqueue, WorkqueueBuilder, WorkqueueMetrics,
};
pub use wire::WatchError;
