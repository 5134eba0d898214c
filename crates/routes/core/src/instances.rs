//! Checks node addresses against the provider's view of their instances.
//!
//! A kubelet writes its own addresses, so a compromised one could claim those of another machine or
//! of the gateway, and have a range routed there. Where the provider reports instance addresses, a
//! node is passed on only with the provider's answer about its instance.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weft_model::{ExponentialDelay, IpFamily, SharedStr};

use crate::{Answer, InstanceAddresses, Moment, Node, NodeAddress, ProviderError};

/// Wait after failed calls. One call is for all instances, so that a long outage
/// costs four calls a minute, however many nodes wait for its end.
const RETRY: ExponentialDelay = seconds(2, 15);
/// Wait after invalid answers. It may have taken many calls: a list without end
/// is read up to a bound.
const AFTER_GARBAGE: ExponentialDelay = seconds(2, 300);
/// Wait after a mismatch, or an instance that the provider does not know: it may
/// be attached to the network in a moment.
const RECHECK: ExponentialDelay = seconds(5, 300);

const fn seconds(first: u64, longest: u64) -> ExponentialDelay {
    ExponentialDelay::new(Duration::from_secs(first), Duration::from_secs(longest))
}

/// Known instance addresses, and the nodes that wait for an answer.
#[derive(Debug)]
pub struct Instances {
    families: Vec<IpFamily>,
    known: InstanceAddresses,
    machines: BTreeMap<SharedStr, SharedStr>,
    pending: BTreeMap<SharedStr, Pending>,
    asking: bool,
    failures: u32,
    /// No call is made before its end: a failed call says nothing about the instances in it.
    pause: Option<Pause>,
}

#[derive(Debug)]
struct Pause {
    until: Moment,
    /// The provider rate-limited the call. Any other pause ends as soon as the provider answers any
    /// call.
    limited: bool,
}

#[derive(Debug)]
struct Pending {
    node: Node,
    at: Moment,
    /// Number of answers that did not match. The node is held back until the first.
    mismatches: u32,
}

impl Instances {
    /// Checks addresses of these families only: the provider does not know others.
    pub fn new(families: &[IpFamily]) -> Self {
        Self {
            families: families.to_vec(),
            known: InstanceAddresses::new(),
            machines: BTreeMap::new(),
            pending: BTreeMap::new(),
            asking: false,
            failures: 0,
            pause: None,
        }
    }

    /// A node was added or changed. Returns it with its instance addresses, or holds it back until
    /// the provider was asked.
    pub fn check(&mut self, mut node: Node, now: Moment) -> Option<Node> {
        // Without a provider ID nothing can be asked; planning decides about such a node.
        let Some(id) = node.provider_id.clone() else {
            self.pending.remove(&node.name);
            return Some(node);
        };
        self.machines.insert(node.name.clone(), id.clone());
        if let Some(known) = self.known.get(&id) {
            node.instance_addresses = Some(known.clone());
            if self.fits(&node) {
                self.pending.remove(&node.name);
                return Some(node);
            }
        }
        let same = |pending: &Pending| {
            pending.node.provider_id == node.provider_id && pending.node.addresses == node.addresses
        };
        match self.pending.get_mut(&node.name) {
            Some(pending) if same(pending) => {
                pending.node = node.clone();
                (pending.mismatches > 0).then_some(node)
            }
            _ => {
                let pending = Pending {
                    node,
                    at: now,
                    mismatches: 0,
                };
                self.pending.insert(pending.node.name.clone(), pending);
                None
            }
        }
    }

    /// True if all addresses that the node claims are its instance's. A node without addresses
    /// matches: it may not know its address yet.
    fn fits(&self, node: &Node) -> bool {
        let known = node.instance_addresses.as_deref().unwrap_or_default();
        let claimed = node.addresses.iter().filter_map(NodeAddress::internal_ip);
        claimed
            .filter(|ip| self.families.contains(&IpFamily::of(*ip)))
            .all(|ip| known.contains(&ip))
    }

    /// A node was deleted. If it comes back, the provider is asked again.
    pub fn forget(&mut self, name: &str) {
        self.pending.remove(name);
        if let Some(id) = self.machines.remove(name) {
            self.known.remove(&id);
        }
    }

    /// The instances to ask about now, if any. Report the answer with [`Instances::answered`].
    pub fn ask(&mut self, now: Moment) -> Option<Vec<SharedStr>> {
        if self.pause.as_ref().is_some_and(|pause| pause.until > now) {
            return None;
        }
        let due = self.pending.values().filter(|pending| pending.at <= now);
        let ids: BTreeSet<_> = due.filter_map(|one| one.node.provider_id.clone()).collect();
        if self.asking || ids.is_empty() {
            return None;
        }
        self.asking = true;
        Some(ids.into_iter().collect())
    }

    /// Time of the next call, if a node waits for one.
    pub fn wake(&self) -> Option<Moment> {
        let soonest = self.pending.values().map(|pending| pending.at).min();
        let pause = self.pause.as_ref().map(|pause| pause.until);
        soonest.max(soonest.and(pause)).filter(|_| !self.asking)
    }

    /// The provider answered another call: ends the pause, unless it is due to a rate limit.
    pub fn outage_over(&mut self) {
        self.pause.take_if(|pause| !pause.limited);
    }

    /// The provider answered. Returns the nodes to pass on, with their instance addresses.
    pub fn answered(
        &mut self,
        asked: &[SharedStr],
        answer: Answer<InstanceAddresses>,
        now: Moment,
    ) -> Result<Vec<Node>, ProviderError> {
        self.asking = false;
        let known = answer.result.inspect_err(|error| self.failed(error, now))?;
        (self.failures, self.pause) = (0, None);
        for id in asked {
            // An instance that the provider does not know has no addresses.
            let addresses = known.get(id).cloned().unwrap_or_default();
            self.known.insert(id.clone(), addresses);
        }
        let about = |pending: &Pending| {
            let id = pending.node.provider_id.as_ref();
            id.is_some_and(|id| asked.contains(id))
        };
        let mut checked = Vec::new();
        for name in self.pending.keys().cloned().collect::<Vec<_>>() {
            let Some(pending) = self.pending.get_mut(&name).filter(|one| about(one)) else {
                continue;
            };
            pending.mismatches = pending.mismatches.saturating_add(1);
            pending.at = now + RECHECK.after(pending.mismatches);
            let node = pending.node.clone();
            checked.extend(self.check(node, now));
        }
        Ok(checked)
    }

    fn failed(&mut self, error: &ProviderError, now: Moment) {
        self.failures = self.failures.saturating_add(1);
        let (limited, requested) = match error {
            ProviderError::RateLimited { after } => (true, *after),
            _ => (false, None),
        };
        let waits = match error {
            ProviderError::Garbage(_) => AFTER_GARBAGE,
            _ => RETRY,
        };
        let wait = requested.unwrap_or_else(|| waits.after(self.failures));
        self.pause = Some(Pause {
            until: now + wait,
            limited,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Moment = Moment::seconds(1);

    fn node(address: &str) -> Node {
        Node {
            name: "node-1".into(),
            provider_id: Some("17".into()),
            addresses: vec![NodeAddress::internal(address.parse().unwrap())],
            ..Node::default()
        }
    }

    fn answer(address: &str) -> Answer<InstanceAddresses> {
        Answer::ok([("17".into(), vec![address.parse().unwrap()])].into())
    }

    fn instances() -> Instances {
        Instances::new(&[IpFamily::V4])
    }

    #[test]
    fn a_node_is_held_back_until_the_provider_was_asked() {
        let mut instances = instances();
        assert_eq!(instances.check(node("10.0.0.1"), FIRST), None);
        let asked = instances.ask(FIRST).unwrap();
        assert_eq!(asked, ["17"]);
        assert_eq!(instances.ask(FIRST), None, "one question at a time");
        let checked = instances
            .answered(&asked, answer("10.0.0.1"), FIRST)
            .unwrap();
        assert_eq!(
            checked[0].instance_addresses,
            Some(vec!["10.0.0.1".parse().unwrap()])
        );
        assert_eq!(instances.wake(), None);
    }

    #[test]
    fn a_mismatch_is_passed_on_and_asked_about_again() {
        let mut instances = instances();
        assert_eq!(instances.check(node("10.0.0.1"), FIRST), None);
        let asked = instances.ask(FIRST).unwrap();
        let checked = instances
            .answered(&asked, answer("10.0.0.2"), FIRST)
            .unwrap();
        assert_eq!(checked.len(), 1, "the rules refuse it with a reason");
        assert_eq!(instances.wake(), Some(FIRST + RECHECK.after(1)));
        let later = FIRST + RECHECK.after(1);
        let asked = instances.ask(later).unwrap();
        let checked = instances
            .answered(&asked, answer("10.0.0.1"), later)
            .unwrap();
        assert!(instances.fits(&checked[0]));
        assert_eq!(instances.wake(), None);
    }

    #[test]
    fn a_node_is_kept_while_the_provider_cannot_be_asked() {
        let mut instances = instances();
        assert_eq!(instances.check(node("10.0.0.1"), FIRST), None);
        let asked = instances.ask(FIRST).unwrap();
        let answer = Answer::from(Err(ProviderError::Uncertain));
        assert!(instances.answered(&asked, answer, FIRST).is_err());
        assert_eq!(instances.ask(FIRST), None);
        assert_eq!(instances.wake(), Some(FIRST + RETRY.after(1)));
        assert_eq!(
            instances.ask(FIRST + RETRY.after(1)),
            Some(vec!["17".into()])
        );
    }

    /// Two nodes, the provider having failed when it was asked about the first.
    fn in_an_outage(error: ProviderError) -> Instances {
        let mut instances = instances();
        instances.check(node("10.0.0.1"), FIRST);
        let asked = instances.ask(FIRST).unwrap();
        let answer = Answer::from(Err(error));
        assert!(instances.answered(&asked, answer, FIRST).is_err());
        let other = Node {
            name: "node-2".into(),
            provider_id: Some("18".into()),
            ..node("10.0.0.2")
        };
        instances.check(other, FIRST);
        instances
    }

    #[test]
    fn an_outage_is_waited_for_once_however_many_nodes_come_meanwhile() {
        let mut instances = in_an_outage(ProviderError::Uncertain);
        assert_eq!(
            instances.ask(FIRST),
            None,
            "the second node waits with the first"
        );
        let asked = instances.ask(FIRST + RETRY.after(1)).unwrap();
        assert_eq!(asked, ["17", "18"], "one question for both");
    }

    #[test]
    fn an_outage_ends_for_all_nodes_when_the_provider_answers_any_call() {
        let mut instances = in_an_outage(ProviderError::Uncertain);
        instances.outage_over();
        assert_eq!(instances.ask(FIRST).unwrap(), ["17", "18"]);
        let after = Duration::from_secs(30);
        let mut limited = in_an_outage(ProviderError::RateLimited { after: Some(after) });
        limited.outage_over();
        assert_eq!(limited.ask(FIRST), None, "it wants fewer calls");
        assert_eq!(limited.wake(), Some(FIRST + after));
    }

    #[test]
    fn a_long_outage_is_asked_about_four_times_a_minute() {
        let mut instances = in_an_outage(ProviderError::Uncertain);
        let mut now = FIRST;
        for _ in 0..10 {
            now = instances.wake().unwrap();
            let asked = instances.ask(now).unwrap();
            let answer = Answer::from(Err(ProviderError::Uncertain));
            assert!(instances.answered(&asked, answer, now).is_err());
        }
        assert_eq!(instances.wake(), Some(now + Duration::from_secs(15)));
    }

    #[test]
    fn a_node_with_a_new_address_is_held_back_until_the_provider_was_asked() {
        let mut instances = instances();
        instances.check(node("10.0.0.1"), FIRST);
        let asked = instances.ask(FIRST).unwrap();
        instances
            .answered(&asked, answer("10.0.0.1"), FIRST)
            .unwrap();
        assert!(instances.check(node("10.0.0.1"), FIRST).is_some());
        assert_eq!(instances.check(node("10.0.0.254"), FIRST), None);
        assert!(instances.ask(FIRST).is_some());
    }
}
