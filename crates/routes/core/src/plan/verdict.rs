//! State of nodes in a plan, and the `NetworkUnavailable` conditions that follow from it.

use std::collections::BTreeMap;

use weft_model::SharedStr;

use super::RoutePlan;
use crate::{Cidr, ConditionPolicy, Node, NodeCondition, NodeList, Policy};

/// State of a node in a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The node cannot get all its routes, even if all steps succeed.
    pub blocked: bool,
    /// The node is excluded from routes.
    pub excluded: bool,
    /// The steps that the node waits for: indices into the plan's steps, by destination. Upstream's
    /// rules create a repeated range twice; one success is enough then.
    pub open: BTreeMap<Cidr, Vec<usize>>,
}

/// A `NetworkUnavailable` condition to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionChange {
    /// Name of the node.
    pub node: SharedStr,
    /// The new reason, which implies status and message.
    pub reason: Reason,
}

/// Reasons of `NetworkUnavailable` that this controller writes; upstream's where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// All routes are there.
    RouteCreated,
    /// A route is missing.
    NoRouteCreated,
    /// The node is excluded from routes; written only to replace an earlier `NoRouteCreated`.
    RouteNotWanted,
}

impl Reason {
    /// The `reason` field.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RouteCreated => "RouteCreated",
            Self::NoRouteCreated => "NoRouteCreated",
            Self::RouteNotWanted => "RouteNotWanted",
        }
    }

    /// The `message` field.
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
    pub fn to_condition(self) -> NodeCondition {
        NodeCondition {
            status: self.status(),
            reason: SharedStr::interned(self.as_str()),
        }
    }

    /// True if the condition has to be written over `present`.
    pub fn needs_write(self, present: Option<&NodeCondition>, policy: ConditionPolicy) -> bool {
        let says_it = |present: &NodeCondition| {
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
    /// The condition of the node after the steps for which `done` is true. `None`: write nothing.
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
