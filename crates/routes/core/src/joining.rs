//! Tracks joining nodes: waiting for an address, overdue, or waiting for a route.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use crate::{Cidr, Moment, NextHopKind, Node, Policy, Refusal, RoutePlan, Step};
use weft_model::SharedStr;

/// Time in which a joining node should report its address and machine.
const JOINING: Duration = Duration::from_secs(60);

/// The progress of every node with a range towards its first route.
#[derive(Debug)]
pub struct JoiningNodes {
    needs_address: bool,
    needs_machine: bool,
    nodes: HashMap<SharedStr, JoiningNode>,
    /// The joining nodes by deadline.
    deadlines: BTreeSet<(Moment, SharedStr)>,
    /// Ranges that had a route before, so that a repair is not measured as a first wait.
    routed: BTreeSet<(SharedStr, Cidr)>,
    /// Node and reason of refusals that were reported.
    reported: BTreeSet<(SharedStr, &'static str)>,
}

#[derive(Debug)]
struct JoiningNode {
    uid: SharedStr,
    stage: Stage,
    /// Blocks come and go with pods; a joining node does not wait for them.
    pod_cidrs: Vec<Cidr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Range known, next hop not; normal until this time.
    Joining(Moment),
    /// Next hop still not known after the time allowed.
    Overdue,
    /// Range and next hop known since this time.
    Ready(Moment),
}

impl JoiningNodes {
    /// Takes from the policy what a node needs to be routed to.
    pub fn new(policy: &Policy) -> Self {
        let by_machine = policy.next_hop == NextHopKind::Instance;
        Self {
            needs_address: !by_machine,
            needs_machine: by_machine || policy.needs_machine,
            nodes: HashMap::new(),
            deadlines: BTreeSet::new(),
            routed: BTreeSet::new(),
            reported: BTreeSet::new(),
        }
    }

    /// A node was added or changed.
    pub fn seen(&mut self, node: &Node, now: Moment) {
        // Another node of the same name starts again.
        let known = self.nodes.get(&node.name);
        if known.is_some_and(|known| known.uid != node.uid) {
            self.forget(&node.name);
        }
        if node.excluded || node.ranges().next().is_none() {
            self.remove(&node.name);
            return;
        }
        let begun = if self.is_ready(node) {
            Stage::Ready(now)
        } else {
            Stage::Joining(now + JOINING)
        };
        let deadlines = &mut self.deadlines;
        let entry = self.nodes.entry(node.name.clone());
        let entry = entry.or_insert_with(|| {
            if let Stage::Joining(until) = begun {
                deadlines.insert((until, node.name.clone()));
            }
            JoiningNode {
                uid: node.uid.clone(),
                stage: begun,
                pod_cidrs: Vec::new(),
            }
        });
        entry.pod_cidrs.clone_from(&node.pod_cidrs);
        if matches!(begun, Stage::Ready(_)) && !matches!(entry.stage, Stage::Ready(_)) {
            if let Stage::Joining(until) = entry.stage {
                deadlines.remove(&(until, node.name.clone()));
            }
            entry.stage = begun;
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some((name, entry)) = self.nodes.remove_entry(name)
            && let Stage::Joining(until) = entry.stage
        {
            self.deadlines.remove(&(until, name));
        }
    }

    fn is_ready(&self, node: &Node) -> bool {
        let reachable = |cidr: &Cidr| {
            let family = cidr.family();
            family.is_none_or(|family| node.internal_ip(family).is_some())
        };
        (!self.needs_machine || node.provider_id.is_some())
            && (!self.needs_address || node.ranges().any(reachable))
    }

    /// A node is gone.
    pub fn forget(&mut self, name: &str) {
        self.remove(name);
        self.routed.retain(|(node, _)| **node != *name);
        self.reported.retain(|(node, _)| **node != *name);
    }

    /// Marks nodes whose time is over. True if there are any: a pass is needed to report them.
    pub fn became_overdue(&mut self, now: Moment) -> bool {
        let mut any = false;
        while let Some((until, _)) = self.deadlines.first()
            && *until <= now
            && let Some((_, name)) = self.deadlines.pop_first()
        {
            if let Some(entry) = self.nodes.get_mut(&name) {
                entry.stage = Stage::Overdue;
                any = true;
            }
        }
        any
    }

    /// Time at which the next node becomes overdue.
    pub fn wake(&self) -> Option<Moment> {
        self.deadlines.first().map(|(until, _)| *until)
    }

    /// A pass was planned. Returns the refusals of overdue nodes that were not reported yet; the
    /// engine reports none that are normal for a joining node.
    pub fn planned(&mut self, plan: &RoutePlan) -> Vec<Refusal> {
        for route in &plan.kept {
            if let Some(node) = route.target.node() {
                let key = (node.clone(), route.destination.clone());
                self.routed.insert(key);
            }
        }
        let mut news = Vec::new();
        for refusal in &plan.refusals {
            let entry = self.nodes.get(&refusal.node);
            let joining = entry.is_some_and(|one| matches!(one.stage, Stage::Joining(_)));
            let quiet = refusal.reason.is_waiting() && refusal.reason.blocks();
            let key = (refusal.node.clone(), refusal.reason.label());
            if quiet && !joining && self.reported.insert(key) {
                news.push(refusal.clone());
            }
        }
        news
    }

    /// A route was created. Returns how long its node waited, if it is the first route for one of
    /// its pod CIDRs.
    pub fn routed(&mut self, step: &Step, now: Moment) -> Option<Duration> {
        let node = step.node()?;
        let first = self
            .routed
            .insert((node.clone(), step.destination().clone()));
        let entry = self.nodes.get(node)?;
        let destination = step.destination().net().ok()?;
        let mut own = entry.pod_cidrs.iter().filter_map(|cidr| cidr.net().ok());
        match entry.stage {
            Stage::Ready(since) if first && own.any(|net| net == destination) => {
                Some(now.since(since))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{NodeAddress, NodeList, plan};

    use super::*;

    fn policy() -> Policy {
        Policy::new(["10.244.0.0/16".parse().unwrap()])
    }

    fn node(address: Option<&str>) -> Node {
        let addresses = address.map(|ip| NodeAddress::internal(ip.parse().unwrap()));
        Node {
            name: "node-1".into(),
            uid: "uid-1".into(),
            pod_cidrs: vec![Cidr::parse("10.244.1.0/24")],
            addresses: addresses.into_iter().collect(),
            ..Node::default()
        }
    }

    fn planned(node: Node) -> RoutePlan {
        plan(&NodeList::complete([node]), &[], &policy())
    }

    #[test]
    fn a_wait_begins_when_everything_is_known_and_counts_once() {
        let mut joining = JoiningNodes::new(&policy());
        joining.seen(&node(None), Moment::seconds(1));
        joining.seen(&node(Some("10.0.0.1")), Moment::seconds(5));
        // Other changes of the node do not start the wait again.
        joining.seen(&node(Some("10.0.0.1")), Moment::seconds(7));
        let step = planned(node(Some("10.0.0.1"))).steps.remove(0);
        let waited = joining.routed(&step, Moment::seconds(8));
        assert_eq!(waited, Some(Duration::from_secs(3)));
        assert_eq!(joining.routed(&step, Moment::seconds(900)), None);
        let another = Node {
            uid: "uid-2".into(),
            ..node(Some("10.0.0.1"))
        };
        joining.seen(&another, Moment::seconds(901));
        let waited = joining.routed(&step, Moment::seconds(902));
        assert_eq!(waited, Some(Duration::from_secs(1)), "another node");
    }

    #[test]
    fn an_overdue_node_is_reported_once_and_heartbeats_do_not_extend_its_deadline() {
        let mut joining = JoiningNodes::new(&policy());
        joining.seen(&node(None), Moment::START);
        assert_eq!(joining.wake(), Some(Moment::seconds(60)));
        assert_eq!(joining.planned(&planned(node(None))), []);
        assert!(!joining.became_overdue(Moment::seconds(59)));
        joining.seen(&node(None), Moment::seconds(59));
        assert!(joining.became_overdue(Moment::seconds(60)));
        assert_eq!(joining.planned(&planned(node(None))).len(), 1);
        joining.seen(&node(None), Moment::seconds(70));
        assert_eq!(joining.wake(), None);
        assert_eq!(joining.planned(&planned(node(None))), []);
    }

    #[test]
    fn a_node_that_gets_ready_or_goes_has_no_deadline() {
        let mut joining = JoiningNodes::new(&policy());
        joining.seen(&node(None), Moment::START);
        joining.seen(&node(Some("10.0.0.1")), Moment::seconds(5));
        assert_eq!(joining.wake(), None, "ready");
        let other = Node {
            name: "node-2".into(),
            ..node(None)
        };
        joining.seen(&other, Moment::seconds(10));
        assert_eq!(joining.wake(), Some(Moment::seconds(70)));
        joining.forget("node-2");
        assert_eq!(joining.wake(), None, "gone");
        assert!(!joining.became_overdue(Moment::seconds(500)));
    }

    #[test]
    fn where_machines_are_checked_a_node_without_one_is_still_joining() {
        let mut checked = policy();
        checked.needs_machine = true;
        let mut joining = JoiningNodes::new(&checked);
        joining.seen(&node(Some("10.0.0.1")), Moment::START);
        assert_eq!(joining.wake(), Some(Moment::seconds(60)));
    }
}
