//! The route controller's decisions: which routes the nodes of a cluster need, what has to change
//! at the provider, and when.
//!
//! Nothing here acts. Time comes in as a [`Moment`], chance as a [`Random`] with a seed, and the
//! provider's answers as values; so a day of a cluster's life runs in a test within a second.

mod cidr;
mod error;
mod moment;
mod node;
mod plan;
mod policy;
mod random;
mod route;

pub use cidr::{Cidr, CidrError};
pub use error::ProviderError;
pub use moment::Moment;
pub use node::{AddressKind, Condition, Node, NodeAddress, NodeList};
pub use plan::{
    Action, ConditionChange, CreateReason, DeleteReason, Forecast, Left, LeftReason, Reason,
    Refusal, RefusalReason, ReplaceReason, RoutePlan, Step, Verdict, Wanted, Withheld,
    WithheldReason, plan,
};
pub use policy::{ConditionPolicy, DeleteCap, NextHopKind, Policy, Semantics, Unmarked};
pub use random::Random;
pub use route::{Mark, NextHop, Route, Target};
