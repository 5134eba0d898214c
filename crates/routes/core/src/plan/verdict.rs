use std::collections::BTreeMap;

use weft_model::SharedStr;

use super::RoutePlan;
use crate::{Cidr, Condition, ConditionPolicy, Node, NodeList, Policy};

/// How a node stands when the plan is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// It cannot have all its routes, whatever the provider does.
    pub blocked: bool,
    /// It wants no routes.
    pub excluded: bool,
    /// Steps of the plan, by number, that it waits for, by destination. Upstream creates a
    /// repeated range twice; one success is enough then.
    pub open: BTreeMap<Cidr, Vec<usize>>,
}

/// A condition to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionChange {
    /// The node.
    pub node: SharedStr,
    /// What it says.
    pub reason: Reason,
}

/// What `NetworkUnavailable` can say by us; upstream's words where it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// All routes are there.
    RouteCreated,
    /// A route is missing.
    NoRouteCreated,
    /// The node wants no routes; written only to take back an earlier `NoRouteCreated`.
    RouteNotWanted,
}

impl Reason {
    /// `reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RouteCreated => "RouteCreated",
            Self::NoRouteCreated => "NoRouteCreated",
            Self::RouteNotWanted => "RouteNotWanted",
        }
    }

    /// `message`.
    pub fn message(self) -> &'static str {
        match self {
            Self::RouteCreated => "RouteController created a route",
            Self::NoRouteCreated => "RouteController failed to create a route",
            Self::RouteNotWanted => "Node is excluded from routes",
        }
    }

    /// `status`: whether the network is unavailable.
    pub fn status(self) -> bool {
        matches!(self, Self::NoRouteCreated)
    }

    fn is_ours(text: &str) -> bool {
        [
            Self::RouteCreated,
            Self::NoRouteCreated,
            Self::RouteNotWanted,
        ]
        .iter()
        .any(|reason| reason.as_str() == text)
    }

    /// The condition as a node holds it.
    pub fn to_condition(self) -> Condition {
        Condition {
            status: self.status(),
            reason: SharedStr::interned(self.as_str()),
        }
    }

    /// Whether a node that says `present` has to be told.
    pub fn needs_write(self, present: Option<&Condition>, policy: ConditionPolicy) -> bool {
        let says_it = |present: &Condition| {
            present.status == self.status() && *present.reason == *self.as_str()
        };
        match policy {
            ConditionPolicy::Off => false,
            ConditionPolicy::Own => !present.is_some_and(says_it),
            ConditionPolicy::RespectCni => match present {
                Some(present) => Self::is_ours(&present.reason) && !says_it(present),
                None => true,
            },
        }
    }
}

impl Verdict {
    /// What to say about a node of which some open steps succeeded. `None`: nothing.
    pub fn reason(&self, node: &Node, done: impl Fn(usize) -> bool) -> Option<Reason> {
        if self.excluded {
            let ours = node.network_unavailable.as_ref().is_some_and(|present| {
                present.status && *present.reason == *Reason::NoRouteCreated.as_str()
            });
            return ours.then_some(Reason::RouteNotWanted);
        }
        let missing = self.blocked
            || !self
                .open
                .values()
                .all(|steps| steps.iter().any(|step| done(*step)));
        Some(if missing {
            Reason::NoRouteCreated
        } else {
            Reason::RouteCreated
        })
    }
}

impl RoutePlan {
    /// The conditions to write when the pass is over, given which steps succeeded.
    pub fn conditions(
        &self,
        nodes: &NodeList,
        policy: &Policy,
        done: impl Fn(usize) -> bool,
    ) -> Vec<ConditionChange> {
        if self.observe_only {
            return Vec::new();
        }
        let known = self.verdicts.iter().filter_map(|(name, verdict)| {
            let node = nodes.get(name)?;
            let reason = verdict.reason(node, &done)?;
            reason
                .needs_write(node.network_unavailable.as_ref(), policy.conditions)
                .then(|| ConditionChange {
                    node: name.clone(),
                    reason,
                })
        });
        known.collect()
    }
}
