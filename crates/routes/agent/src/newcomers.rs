//! How far nodes are: who waits for us, and for whom we wait.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use weft_model::SharedStr;
use weft_routes::{Cidr, Moment, NextHopKind, Node, Policy, Refusal, RoutePlan, Step};

/// How long a joining node may take until its address and machine are known.
const JOINING: Duration = Duration::from_secs(60);

/// What is known about the beginning of nodes.
#[derive(Debug)]
pub(crate) struct Newcomers {
    needs_address: bool,
    needs_machine: bool,
    nodes: HashMap<SharedStr, Newcomer>,
    /// Ranges that have had their route, so that repairs are no first waits.
    routed: BTreeSet<(SharedStr, Cidr)>,
    /// What was said about nodes that never became ready.
    said: BTreeSet<(SharedStr, &'static str)>,
}

#[derive(Debug)]
struct Newcomer {
    uid: SharedStr,
    stage: Stage,
    /// Blocks come and go with pods, and are nothing that a joining node waits for.
    pod_cidrs: Vec<Cidr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has a range and nothing to send packets to; that is normal until then.
    Joining(Moment),
    /// It should have been ready by now.
    Late,
    /// Its range and where to send packets are known since then.
    Ready(Moment),
}

impl Newcomers {
    /// By what the rules need of a node.
    pub(crate) fn new(policy: &Policy) -> Self {
        let by_machine = policy.next_hop == NextHopKind::Instance;
        Self {
            needs_address: !by_machine,
            needs_machine: by_machine || policy.needs_machine,
            nodes: HashMap::new(),
            routed: BTreeSet::new(),
            said: BTreeSet::new(),
        }
    }

    /// A node was seen.
    pub(crate) fn seen(&mut self, node: &Node, now: Moment) {
        // Another node of the same name begins anew.
        let known = self.nodes.get(&node.name);
        if known.is_some_and(|known| known.uid != node.uid) {
            self.forget(&node.name);
        }
        if node.excluded || node.ranges().next().is_none() {
            self.nodes.remove(&node.name);
            return;
        }
        let begun = if self.is_ready(node) {
            Stage::Ready(now)
        } else {
            Stage::Joining(now + JOINING)
        };
        let newcomer = self.nodes.entry(node.name.clone());
        let newcomer = newcomer.or_insert_with(|| Newcomer {
            uid: node.uid.clone(),
            stage: begun,
            pod_cidrs: Vec::new(),
        });
        newcomer.pod_cidrs.clone_from(&node.pod_cidrs);
        if matches!(begun, Stage::Ready(_)) && !matches!(newcomer.stage, Stage::Ready(_)) {
            newcomer.stage = begun;
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
    pub(crate) fn forget(&mut self, name: &str) {
        self.nodes.remove(name);
        self.routed.retain(|(node, _)| **node != *name);
        self.said.retain(|(node, _)| **node != *name);
    }

    /// Whether somebody became late: a pass can say about them what there is to say.
    pub(crate) fn became_late(&mut self, now: Moment) -> bool {
        let mut any = false;
        for newcomer in self.nodes.values_mut() {
            if matches!(newcomer.stage, Stage::Joining(until) if until <= now) {
                newcomer.stage = Stage::Late;
                any = true;
            }
        }
        any
    }

    /// When the next one will be late.
    pub(crate) fn wake(&self) -> Option<Moment> {
        let joining = self
            .nodes
            .values()
            .filter_map(|newcomer| match newcomer.stage {
                Stage::Joining(until) => Some(until),
                Stage::Late | Stage::Ready(_) => None,
            });
        joining.min()
    }

    /// A pass was planned. Returns what is to be said about late nodes: the rules keep it to
    /// themselves while a node joins.
    pub(crate) fn planned(&mut self, plan: &RoutePlan) -> Vec<Refusal> {
        for route in &plan.kept {
            if let Some(node) = route.target.node() {
                let key = (node.clone(), route.destination.clone());
                self.routed.insert(key);
            }
        }
        let mut news = Vec::new();
        for refusal in &plan.refusals {
            let newcomer = self.nodes.get(&refusal.node);
            let joining = newcomer.is_some_and(|one| matches!(one.stage, Stage::Joining(_)));
            let quiet = refusal.reason.is_waiting() && refusal.reason.blocks();
            let key = (refusal.node.clone(), refusal.reason.label());
            if quiet && !joining && self.said.insert(key) {
                news.push(refusal.clone());
            }
        }
        news
    }

    /// A route was made. Returns how long its node waited, if it is the first for its range.
    pub(crate) fn routed(&mut self, step: &Step, now: Moment) -> Option<Duration> {
        let node = step.node()?;
        let first = self
            .routed
            .insert((node.clone(), step.destination().clone()));
        let newcomer = self.nodes.get(node)?;
        let destination = step.destination().net().ok()?;
        let mut own = newcomer.pod_cidrs.iter().filter_map(|cidr| cidr.net().ok());
        match newcomer.stage {
            Stage::Ready(since) if first && own.any(|net| net == destination) => {
                Some(now.since(since))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_routes::{NodeAddress, NodeList, plan};

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
        let mut newcomers = Newcomers::new(&policy());
        newcomers.seen(&node(None), Moment::seconds(1));
        newcomers.seen(&node(Some("10.0.0.1")), Moment::seconds(5));
        // What else changes about the node does not begin it anew.
        newcomers.seen(&node(Some("10.0.0.1")), Moment::seconds(7));
        let step = planned(node(Some("10.0.0.1"))).steps.remove(0);
        let waited = newcomers.routed(&step, Moment::seconds(8));
        assert_eq!(waited, Some(Duration::from_secs(3)));
        assert_eq!(newcomers.routed(&step, Moment::seconds(900)), None);
        let another = Node {
            uid: "uid-2".into(),
            ..node(Some("10.0.0.1"))
        };
        newcomers.seen(&another, Moment::seconds(901));
        let waited = newcomers.routed(&step, Moment::seconds(902));
        assert_eq!(waited, Some(Duration::from_secs(1)), "another node");
    }

    #[test]
    fn whoever_is_late_is_named_once_and_heartbeats_do_not_put_it_off() {
        let mut newcomers = Newcomers::new(&policy());
        newcomers.seen(&node(None), Moment::START);
        assert_eq!(newcomers.wake(), Some(Moment::seconds(60)));
        assert_eq!(newcomers.planned(&planned(node(None))), []);
        assert!(!newcomers.became_late(Moment::seconds(59)));
        newcomers.seen(&node(None), Moment::seconds(59));
        assert!(newcomers.became_late(Moment::seconds(60)));
        assert_eq!(newcomers.planned(&planned(node(None))).len(), 1);
        newcomers.seen(&node(None), Moment::seconds(70));
        assert_eq!(newcomers.wake(), None);
        assert_eq!(newcomers.planned(&planned(node(None))), []);
    }

    #[test]
    fn where_machines_are_checked_a_node_without_one_is_still_joining() {
        let mut checked = policy();
        checked.needs_machine = true;
        let mut newcomers = Newcomers::new(&checked);
        newcomers.seen(&node(Some("10.0.0.1")), Moment::START);
        assert_eq!(newcomers.wake(), Some(Moment::seconds(60)));
    }
}
