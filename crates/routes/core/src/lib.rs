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
mod mutation_queue;
mod node;
mod plan;
mod policy;
mod reconciler;
mod route;
mod schedule;
pub mod simulation;
mod table_cache;
mod watch;

pub use backoff::Backoff;
pub use budget::{Budget, LONGEST_PAUSE, Priority, RateLimit};
pub use cidr::{Cidr, CidrError};
pub use engine::{Command, Controller, Engine, Notice};
pub use error::ProviderError;
pub use mutation_queue::{MutationQueue, Offer, Ticket};
pub use node::{AddressKind, Blocks, Condition, Node, NodeAddress, NodeList};
pub use plan::{
    Action, ConditionChange, CreateReason, DeleteReason, Forecast, LeftAlone, LeftReason, Reason,
    Refusal, RefusalReason, ReplaceReason, RoutePlan, Step, Verdict, Wanted, Withheld,
    WithheldReason, plan,
};
pub use policy::{ConditionPolicy, DeleteCap, NextHopKind, Policy, Semantics, Unmarked};
pub use reconciler::{PassTimer, Reconciler, Ticker};
pub use route::{Mark, NextHop, Route, Target};
pub use schedule::{Schedule, Timing, Trigger};
pub use table_cache::{Drift, TableCache};
pub use watch::NodeWatch;
pub use weft_model::{Moment, Random};
