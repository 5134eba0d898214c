//! The route controller's decisions: which routes the nodes of a cluster need, what has to change
//! at the provider, and when.
//!
//! Nothing here acts. Time comes in as a [`Moment`], chance as a [`Random`] with a seed, and the
//! provider's answers as values; so a day of a cluster's life runs in a test within a second.

mod backoff;
mod budget;
mod cidr;
mod engine;
mod error;
mod lane;
mod node;
mod plan;
mod policy;
mod polling;
mod route;
mod schedule;
mod shadow;
#[cfg(feature = "simulation")]
pub mod simulation;
mod watch;

pub use backoff::Backoff;
pub use budget::{Budget, LONGEST_PAUSE, Priority, RateLimit};
pub use cidr::{Cidr, CidrError};
pub use engine::{Command, Controller, Engine, Notice};
pub use error::ProviderError;
pub use lane::{Lane, Offer, Ticket};
pub use node::{AddressKind, Blocks, Condition, Node, NodeAddress, NodeList};
pub use plan::{
    Action, ConditionChange, CreateReason, DeleteReason, Forecast, Left, LeftReason, Reason,
    Refusal, RefusalReason, ReplaceReason, RoutePlan, Step, Verdict, Wanted, Withheld,
    WithheldReason, plan,
};
pub use policy::{ConditionPolicy, DeleteCap, NextHopKind, Policy, Semantics, Unmarked};
pub use polling::{Clockwork, Reconciler, Ticker};
pub use route::{Mark, NextHop, Route, Target};
pub use schedule::{Schedule, Timing, Trigger};
pub use shadow::{Drift, Shadow};
pub use watch::NodeWatch;
pub use weft_model::{Moment, Random};
