//! Simulation of controllers on a virtual clock: to compare them with each other, and to show that
//! none does harm.
//!
//! A [`Scenario`] is the input, an [`Arm`] selects the controller, [`run`] plays the scenario
//! against a provider in memory, and a [`Report`] holds the result. The same seed gives the same
//! report.

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
