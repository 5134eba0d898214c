//! Oracle of a simulation: the routes that the cluster needs, compared with what controllers do.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weft_model::SharedStr;

use super::report::Report;
use crate::{Cidr, ConditionChange, Moment, NextHop, Node, Route, RouteAction, Step};

/// A route that the cluster needs.
#[derive(Clone, Debug)]
struct Need {
    node: SharedStr,
    next_hop: NextHop,
    since: Moment,
    met: bool,
}

/// Tracks nodes and needed routes, and fills the report.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    nodes: BTreeMap<SharedStr, Node>,
    needs: BTreeMap<Cidr, Need>,
    stale: BTreeMap<Cidr, Moment>,
    foreign: BTreeSet<Cidr>,
    creating: BTreeMap<Cidr, u32>,
    pub(super) report: Report,
}

impl Oracle {
    pub(super) fn nodes(&self) -> Vec<Node> {
        self.nodes.values().cloned().collect()
    }

    pub(super) fn foreign(&mut self, route: &Route) {
        self.foreign.insert(route.destination.clone());
    }

    /// A route was deleted from outside; the wait for it starts again.
    pub(super) fn lost(&mut self, destination: &Cidr, now: Moment) {
        if let Some(need) = self.needs.get_mut(destination) {
            need.met = false;
            need.since = now;
        }
    }

    /// Writes a condition and returns the node as the watch delivers it.
    pub(super) fn write(&mut self, change: &ConditionChange) -> Option<Node> {
        self.report.conditions += 1;
        let node = self.nodes.get_mut(&change.node)?;
        node.network_unavailable = Some(change.reason.to_condition());
        Some(node.clone())
    }

    /// A node changed. Returns it with the condition that was written about it.
    pub(super) fn apply(&mut self, node: &Node, now: Moment) -> Node {
        let before = self.nodes.remove(&node.name);
        let same = before.as_ref().filter(|before| before.uid == node.uid);
        let node = &Node {
            network_unavailable: same.and_then(|node| node.network_unavailable.clone()),
            ..node.clone()
        };
        self.nodes.insert(node.name.clone(), node.clone());
        let kept: BTreeSet<&Cidr> = node.pod_cidrs.iter().collect();
        for cidr in before.iter().flat_map(|before| &before.pod_cidrs) {
            if !kept.contains(cidr) {
                self.release(cidr, &node.name, now);
            }
        }
        for cidr in &node.pod_cidrs {
            let Some(address) = cidr.family().and_then(|family| node.internal_ip(family)) else {
                continue;
            };
            let next_hop = NextHop::Address(address);
            let known = self.needs.get(cidr);
            if known.is_some_and(|need| need.next_hop == next_hop && need.node == node.name) {
                continue;
            }
            self.stale.remove(cidr);
            self.report.needs += 1;
            let need = Need {
                node: node.name.clone(),
                next_hop,
                since: now,
                met: false,
            };
            self.needs.insert(cidr.clone(), need);
        }
        node.clone()
    }

    pub(super) fn delete(&mut self, name: &str, now: Moment) {
        if let Some(node) = self.nodes.remove(name) {
            for cidr in &node.pod_cidrs {
                self.release(cidr, name, now);
            }
        }
    }

    fn release(&mut self, cidr: &Cidr, node: &str, now: Moment) {
        if self.needs.get(cidr).is_some_and(|need| *need.node == *node) {
            self.needs.remove(cidr);
            self.stale.insert(cidr.clone(), now);
            self.report.releases += 1;
        }
    }

    /// A mutation was begun.
    pub(super) fn begun(&mut self, step: &Step, table: &BTreeMap<Cidr, Route>) {
        if let RouteAction::Create { new, .. } = &step.action {
            let open = self.creating.entry(new.destination.clone()).or_default();
            *open += 1;
            let there = table.get(&new.destination);
            let same = there.is_some_and(|route| new.next_hop == route.next_hop);
            if *open > 1 || same {
                self.report.double_creates += 1;
            }
        }
    }

    /// A mutation ended; these are the route before and after at its destination.
    pub(super) fn ended(
        &mut self,
        step: &Step,
        before: Option<&Route>,
        after: Option<&Route>,
        now: Moment,
    ) {
        if let RouteAction::Create { new, .. } = &step.action
            && let Some(open) = self.creating.get_mut(&new.destination)
        {
            *open -= 1;
        }
        if before == after {
            return;
        }
        let destination = step.destination();
        let need = self.needs.get(destination);
        let leads = |route: Option<&Route>| {
            let hop = route.and_then(|route| route.next_hop.as_ref());
            need.is_some_and(|need| hop == Some(&need.next_hop))
        };
        let harmful = self.foreign.contains(destination) || leads(before);
        if harmful && !leads(after) {
            self.report.wrong_deletes += 1;
        }
        if leads(after) {
            self.meet(destination, now);
        } else if after.is_none()
            && let Some(since) = self.stale.remove(destination)
        {
            self.report.stale.push(now.since(since));
        }
    }

    fn meet(&mut self, destination: &Cidr, now: Moment) {
        if let Some(need) = self.needs.get_mut(destination)
            && !need.met
        {
            need.met = true;
            self.report.waits.push(now.since(need.since));
        }
    }

    /// Returns the routes of the initial nodes, which count as met at no cost.
    pub(super) fn start(&mut self, nodes: &[Node]) -> Vec<Route> {
        for node in nodes {
            self.apply(node, Moment::START);
        }
        let mut routes = Vec::new();
        for (destination, need) in &mut self.needs {
            need.met = true;
            routes.push(Route {
                next_hop: Some(need.next_hop.clone()),
                ..Route::to_node(destination.clone(), &need.node)
            });
        }
        self.report.needs = 0;
        routes
    }

    /// Ends the run: counts missing and superfluous routes.
    pub(super) fn close(&mut self, table: &BTreeMap<Cidr, Route>, length: Duration) {
        self.report.length = length;
        self.report.unmet = self.needs.values().filter(|need| !need.met).count();
        self.report.left_over = table
            .keys()
            .filter(|cidr| !self.needs.contains_key(*cidr) && !self.foreign.contains(*cidr))
            .count();
    }
}
