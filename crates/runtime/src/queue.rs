//! The workqueue: keys that need work, each handed to one worker at a time.

mod limiter;
mod metrics;
mod schedule;
mod workqueue;

pub use limiter::{Bucket, Capped, Exponential, FastSlow, MaxOf, RateLimiter, WithJitter};
pub(crate) use metrics::QueueStatistics;
pub use metrics::WorkqueueMetrics;
pub use workqueue::{AddOptions, Lease, Priority, QueueKey, Workqueue, WorkqueueBuilder};
