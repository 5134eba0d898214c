//! Plan of a pass: the changes to make at the provider, as a value that can be ordered, counted and
//! printed.
//!
//! [`plan`] compares nodes with routes and has no side effects. Start reading in `own.rs` for our
//! rules and in `upstream.rs` for those of cloud-provider 1.36.

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
pub use step::{CreateReason, DeleteReason, ReplaceReason, RouteAction, Step, Wanted};
pub use verdict::{ConditionChange, Reason, Verdict};

/// Plans a pass.
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
    /// The changes, in this order where destinations overlap.
    pub steps: Vec<Step>,
    /// True if every delete has to be done before the first create (upstream, for providers that
    /// record addresses). Otherwise only overlapping destinations keep their order.
    pub deletes_first: bool,
    /// Routes that are right as they are.
    pub kept: Vec<Route>,
    /// Routes that look as if they were not needed, and are left alone.
    pub left: Vec<LeftAlone>,
    /// Steps that are not carried out, because the input may be incomplete or wrong.
    pub withheld: Vec<Withheld>,
    /// Ranges of nodes that get no route.
    pub refusals: Vec<Refusal>,
    /// The state of each node, by name; nodes that have no range and no route are absent.
    pub verdicts: BTreeMap<SharedStr, Verdict>,
    /// Number of routes in the table before and after the plan.
    pub forecast: Forecast,
    /// True if the plan is only shown and not carried out.
    pub observe_only: bool,
}

impl RoutePlan {
    /// True if there are no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The steps to carry out: none in observe mode.
    pub fn executable(&self) -> &[Step] {
        if self.observe_only { &[] } else { &self.steps }
    }

    /// Number of creates, replacements and deletes.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |wanted: fn(&RouteAction) -> bool| {
            let actions = self.steps.iter().map(|step| &step.action);
            actions.filter(|action| wanted(action)).count()
        };
        (
            count(|action| matches!(action, RouteAction::Create { .. })),
            count(|action| matches!(action, RouteAction::Replace { .. })),
            count(|action| matches!(action, RouteAction::Delete { .. })),
        )
    }
}

/// A route that no node needs and that is not deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftAlone {
    /// The route.
    pub route: Route,
    /// The reason not to delete it.
    pub reason: LeftReason,
}

/// Reason not to delete a route that no node needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftReason {
    /// Not in the cluster's range.
    OutOfRange,
    /// Foreign, or of unknown owner.
    NotOurs,
    /// The destination cannot be parsed.
    Unreadable,
    /// A node claims the destination but gets no route for it right now; the old route is better
    /// than none.
    StillClaimed,
    /// It leads to a node whose blocks are not known at the moment.
    BlocksUnknown,
}

/// A step that is not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// The step.
    pub step: Step,
    /// The reason not to carry it out.
    pub reason: WithheldReason,
}

/// Reason not to carry out a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithheldReason {
    /// Not all nodes are known, so the absence of a node proves nothing.
    IncompleteNodes,
    /// More deletes than [`DeleteCap`](crate::DeleteCap) allows.
    TooManyDeletes,
}

/// Number of routes in the provider's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Routes in the table now, foreign ones included.
    pub present: usize,
    /// Routes in the table after the plan.
    pub after: usize,
    /// Capacity of the table, if known.
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

    /// Number of routes of the plan that do not fit.
    pub fn missing(&self) -> usize {
        self.quota
            .map_or(0, |quota| self.after.saturating_sub(quota))
    }

    /// True if the table is, or will be, more than nine tenths full.
    pub fn is_tight(&self) -> bool {
        self.quota
            .is_some_and(|quota| self.after.max(self.present) * 10 > quota * 9)
    }
}
