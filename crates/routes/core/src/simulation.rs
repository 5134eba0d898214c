//! A provider in memory, traces of a cluster's life, and a clock that jumps: to measure
//! controllers against each other, and to see that none does harm.
//!
//! A [`Scenario`] says what happens, an [`Arm`] who deals with it, [`run`] plays it, and a
//! [`Report`] tells how it went. The same seed gives the same report.

mod oracle;
mod provider;
mod queue;
mod report;
mod run;
mod scenario;
mod trace;

pub use provider::{Call, CallKind, Fault, FaultKind, Profile, Provider};
pub use queue::TokenQueue;
pub use report::{Calls, Report};
pub use run::{Arm, run};
pub use scenario::Scenario;
pub use trace::{Churn, ClusterEvent, Fleet, Trace};
