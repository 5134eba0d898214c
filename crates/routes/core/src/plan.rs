//! What has to change at the provider, as a value: ordered, countable, printable.
//!
//! [`plan`] compares nodes with routes and decides; nobody acts here. Start reading in `own.rs`
//! for our rules and in `upstream.rs` for those of cloud-provider 1.36.

use std::collections::BTreeMap;

use weft_model::SharedStr;

use crate::{NodeList, Policy, Route, Semantics};

mod claims;
mod display;
mod guard;
mod own;
mod refusal;
mod step;
mod upstream;
mod verdict;

pub use refusal::{Refusal, RefusalReason};
pub use step::{Action, CreateReason, DeleteReason, ReplaceReason, Step, Wanted};
pub use verdict::{ConditionChange, Reason, Verdict};

/// Decides what a pass has to do.
pub fn plan(nodes: &NodeList, routes: &[Route], policy: &Policy) -> RoutePlan {
    let mut plan = match policy.semantics {
        Semantics::Upstream => upstream::plan(nodes, routes, policy),
        Semantics::Own => own::plan(nodes, routes, policy),
    };
    plan.forecast = Forecast::of(&plan, routes.len(), policy.quota);
    plan.observe_only = policy.observe_only;
    plan
}

/// The difference between the routes that nodes need and those there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutePlan {
    /// What to do, in this order where destinations overlap.
    pub steps: Vec<Step>,
    /// Whether every delete has to be done before the first create (upstream, for providers that
    /// record addresses). Otherwise only overlapping destinations keep their order.
    pub deletes_first: bool,
    /// Routes that are right as they are.
    pub kept: Vec<Route>,
    /// Routes that look as if they were not needed, and are left alone.
    pub left: Vec<LeftAlone>,
    /// Steps that would be right but are not believed.
    pub withheld: Vec<Withheld>,
    /// What nodes ask for and cannot get.
    pub refusals: Vec<Refusal>,
    /// How each node stands, by name; nodes that are none of our business are absent.
    pub verdicts: BTreeMap<SharedStr, Verdict>,
    /// How full the table will be.
    pub forecast: Forecast,
    /// Whether this is for reading only.
    pub observe_only: bool,
}

impl RoutePlan {
    /// Whether nothing has to be done.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// What may really be done: nothing when only observing.
    pub fn executable(&self) -> &[Step] {
        if self.observe_only { &[] } else { &self.steps }
    }

    /// How many routes are created, replaced and deleted.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |wanted: fn(&Action) -> bool| {
            let actions = self.steps.iter().map(|step| &step.action);
            actions.filter(|action| wanted(action)).count()
        };
        (
            count(|action| matches!(action, Action::Create { .. })),
            count(|action| matches!(action, Action::Replace { .. })),
            count(|action| matches!(action, Action::Delete { .. })),
        )
    }
}

/// A route that nobody asked for and that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftAlone {
    /// The route.
    pub route: Route,
    /// Why it stays.
    pub reason: LeftReason,
}

/// Why a route that no node needs as it is stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftReason {
    /// Not in the cluster's range.
    OutOfRange,
    /// Somebody else's, or possibly so.
    NotOurs,
    /// Its destination cannot be understood.
    Unreadable,
    /// A node claims the destination but cannot be routed to right now; the old way is better
    /// than none.
    StillClaimed,
    /// It leads to a node of which nobody can say at the moment which blocks it holds.
    BlocksUnknown,
}

/// A step that is not believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// The step.
    pub step: Step,
    /// Why it is not done.
    pub reason: WithheldReason,
}

/// Why a step is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithheldReason {
    /// Not all nodes are known, so absence proves nothing.
    IncompleteNodes,
    /// More deletes than a pass is believed to mean.
    TooManyDeletes,
}

/// How full the provider's table will be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Routes in the table now, everybody's.
    pub present: usize,
    /// Routes in the table when the plan is done.
    pub after: usize,
    /// How many it can hold, if known.
    pub quota: Option<usize>,
}

impl Forecast {
    fn of(plan: &RoutePlan, present: usize, quota: Option<usize>) -> Self {
        let (creates, _, deletes) = plan.counts();
        Self {
            present,
            after: (present + creates).saturating_sub(deletes),
            quota,
        }
    }

    /// How many routes of the plan will not fit.
    pub fn missing(&self) -> usize {
        self.quota
            .map_or(0, |quota| self.after.saturating_sub(quota))
    }

    /// Whether the table is, or is about to be, fuller than nine tenths.
    pub fn is_tight(&self) -> bool {
        self.quota
            .is_some_and(|quota| self.after.max(self.present) * 10 > quota * 9)
    }
}
