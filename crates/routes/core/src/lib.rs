//! Decisions of the route controller: the routes that the nodes of a cluster need, the changes to
//! make at the provider, and the time to make them.
//!
//! Nothing here does I/O. Time comes in as a [`Moment`], randomness as a [`Random`] with a seed,
//! and the provider's answers as values; so a simulated day of a cluster runs in a test within a
//! second.

mod answer;
mod backoff;
mod budget;
mod cidr;
mod condition_queue;
mod engine;
mod error;
mod instances;
mod joining;
mod ledger;
mod mutation_queue;
mod node;
mod plan;
mod policy;
mod reconciler;
mod route;
mod schedule;
#[cfg(feature = "simulation")]
pub mod simulation;
mod table_cache;
mod watch;
mod write_outcome;

pub use answer::{Answer, InstanceAddresses};
pub use backoff::Backoff;
pub use budget::{Budget, CallPriority, LONGEST_PAUSE, RateLimit};
pub use cidr::{Cidr, CidrError};
pub use condition_queue::ConditionQueue;
pub use engine::{Engine, Notice, RouteCommand, RouteController};
pub use error::ProviderError;
pub use instances::Instances;
pub use joining::JoiningNodes;
pub use ledger::{Activity, Ledger, LedgerEntry};
pub use mutation_queue::{MutationQueue, Offer, Ticket};
pub use node::{AddressKind, Blocks, Node, NodeAddress, NodeCondition, NodeList};
pub use plan::{
    ConditionChange, CreateReason, DeleteReason, Forecast, LeftAlone, LeftReason, Reason, Refusal,
    RefusalReason, ReplaceReason, RouteAction, RoutePlan, Step, Verdict, Wanted, Withheld,
    WithheldReason, plan,
};
pub use policy::{ConditionPolicy, DeleteCap, NextHopKind, Policy, Semantics, Unmarked};
pub use reconciler::{PassEnd, PassTimer, RouteReconciler, Ticker};
pub use route::{Mark, NextHop, Route, RouteTarget};
pub use schedule::{Schedule, Timing, Trigger};
pub use table_cache::{Drift, TableCache};
pub use watch::NodeWatch;
pub use weft_model::{Moment, Random};
pub use write_outcome::WriteOutcome;
