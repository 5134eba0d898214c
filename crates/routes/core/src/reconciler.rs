//! The reconciler of cloud-provider 1.36, used with the feature gate off: list, change everything,
//! wait, write conditions.
//!
//! It keeps no cache, and within a pass it retries only creates that end in a conflict; its
//! planning rules are in `plan/upstream.rs`.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use ipnet::IpNet;

use crate::{
    Moment, NextHop, Node, NodeList, Notice, Policy, ProviderError, Random, Route, RouteAction,
    RouteCommand, RouteController, RoutePlan, Ticket, Trigger, plan,
};

/// Mutations of one pass that upstream lets run at once.
const PARALLEL: usize = 200;
/// Attempts of a create that ends in a conflict.
const ATTEMPTS: u32 = 5;

/// Decides when upstream's reconciler runs its next pass.
pub trait PassTimer {
    /// A node was added (`old` absent), changed, or deleted (`new` absent).
    fn node_changed(&mut self, old: Option<&Node>, new: Option<&Node>, now: Moment);
    /// Time of the next pass; `None` if none is due.
    fn due(&self) -> Option<Moment>;
    /// A pass begins.
    fn started(&mut self, now: Moment);
    /// A pass ended.
    fn ended(&mut self, end: PassEnd, now: Moment);
}

/// End of a pass of upstream's reconciler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassEnd {
    /// All steps were tried.
    Completed,
    /// The table could not be read, so there was no plan.
    ListFailed,
}

/// Starts a pass every period, measured from start to start, without jitter; a pass that takes
/// longer delays the next. Node events are ignored.
#[derive(Clone, Debug)]
pub struct Ticker {
    period: Duration,
    next: Moment,
}

impl Ticker {
    /// The first pass runs at once.
    pub const fn new(period: Duration) -> Self {
        Self {
            period,
            next: Moment::START,
        }
    }
}

impl PassTimer for Ticker {
    fn node_changed(&mut self, _: Option<&Node>, _: Option<&Node>, _: Moment) {}

    fn due(&self) -> Option<Moment> {
        Some(self.next)
    }

    fn started(&mut self, now: Moment) {
        self.next = now + self.period;
    }

    fn ended(&mut self, _: PassEnd, _: Moment) {}
}

/// Reads the table, starts all changes at once, waits for all of them, writes conditions. Changes
/// that failed are left to the next pass.
#[derive(Debug)]
pub struct RouteReconciler<C> {
    policy: Policy,
    timer: C,
    nodes: NodeList,
    random: Random,
    phase: Phase,
    tickets: u64,
    out: Vec<RouteCommand>,
    record: Vec<(IpNet, NextHop)>,
}

#[derive(Debug)]
enum Phase {
    Idle,
    Listing,
    Working(Box<Work>),
}

#[derive(Debug, Default)]
struct Work {
    plan: RoutePlan,
    waiting: VecDeque<usize>,
    later: BTreeSet<(Moment, usize)>,
    running: BTreeMap<Ticket, usize>,
    attempts: BTreeMap<usize, u32>,
    done: BTreeSet<usize>,
    deletes_open: usize,
}

impl<C: PassTimer> RouteReconciler<C> {
    /// Runs a pass whenever the timer says so. The seed is for jitter.
    pub fn new(policy: Policy, timer: C, seed: u64) -> Self {
        Self {
            policy,
            timer,
            nodes: NodeList::default(),
            random: Random::new(seed),
            phase: Phase::Idle,
            tickets: 0,
            out: Vec::new(),
            record: Vec::new(),
        }
    }

    fn replace(&mut self, name: &str, new: Option<Node>, now: Moment) {
        let old = self.nodes.nodes.remove(name);
        self.timer.node_changed(old.as_ref(), new.as_ref(), now);
        if let Some(new) = new {
            self.nodes.nodes.insert(new.name.clone(), new);
        }
    }

    fn advance(&mut self, now: Moment) {
        let Phase::Working(work) = &mut self.phase else {
            return;
        };
        while let Some(&(at, step)) = work.later.first()
            && at <= now
        {
            work.later.pop_first();
            work.waiting.push_back(step);
        }
        while work.running.len() < PARALLEL
            && let Some(step) = work.next()
        {
            let ticket = Ticket(self.tickets);
            self.tickets += 1;
            work.running.insert(ticket, step);
            let step = work.plan.steps[step].clone();
            self.out.push(RouteCommand::Mutate(ticket, step));
        }
        if work.running.is_empty() && work.waiting.is_empty() && work.later.is_empty() {
            self.finish(now);
        }
    }

    fn finish(&mut self, now: Moment) {
        if let Phase::Working(work) = std::mem::replace(&mut self.phase, Phase::Idle) {
            let done = |step| work.done.contains(&step);
            for change in work.plan.conditions(&self.nodes, &self.policy, done) {
                if let Some(node) = self.nodes.nodes.get_mut(&change.node) {
                    node.network_unavailable = Some(change.reason.to_condition());
                }
                self.out.push(RouteCommand::Write(change));
            }
        }
        self.timer.ended(PassEnd::Completed, now);
    }
}

impl Work {
    fn new(plan: RoutePlan) -> Self {
        let is_delete = |step: &&crate::Step| matches!(step.action, RouteAction::Delete { .. });
        Self {
            waiting: (0..plan.executable().len()).collect(),
            deletes_open: plan.executable().iter().filter(is_delete).count(),
            plan,
            ..Self::default()
        }
    }

    /// The next step; creates wait for deletes where the plan says so. Deletes come first in it.
    fn next(&mut self) -> Option<usize> {
        let step = *self.waiting.front()?;
        let creates = self.plan.steps[step].wanted().is_some();
        if creates && self.plan.deletes_first && self.deletes_open > 0 {
            return None;
        }
        self.waiting.pop_front()
    }

    /// A step ended; returns whether to try it again within this pass.
    fn ended(&mut self, step: usize, result: &Result<(), ProviderError>) -> bool {
        let creates = self.plan.steps[step].wanted().is_some();
        if !creates {
            self.deletes_open -= 1;
        }
        let attempts = self.attempts.entry(step).or_default();
        *attempts += 1;
        match result {
            Ok(()) => {
                self.done.insert(step);
                false
            }
            Err(ProviderError::Conflict) => creates && *attempts < ATTEMPTS,
            Err(_) => false,
        }
    }
}

impl<C: PassTimer> RouteController for RouteReconciler<C> {
    fn node_applied(&mut self, node: Node, now: Moment) {
        let name = node.name.clone();
        self.replace(&name, Some(node), now);
    }

    fn node_deleted(&mut self, name: &str, now: Moment) {
        if self.nodes.get(name).is_some() {
            self.replace(name, None, now);
        }
    }

    fn unreadable_nodes(&mut self, count: usize, _now: Moment) {
        self.nodes.unreadable = count > 0;
    }

    fn nodes_listed(&mut self, nodes: Vec<Node>, now: Moment) {
        let fresh = NodeList::complete(nodes);
        let gone: Vec<_> = self
            .nodes
            .nodes
            .keys()
            .filter(|name| fresh.get(name).is_none())
            .cloned()
            .collect();
        for name in gone {
            self.replace(&name, None, now);
        }
        for (name, node) in fresh.nodes {
            // A relist does not deliver what did not change.
            if self.nodes.get(&name) != Some(&node) {
                self.replace(&name, Some(node), now);
            }
        }
        self.nodes.complete = true;
    }

    fn listed(&mut self, result: Result<Vec<Route>, ProviderError>, now: Moment) {
        if !matches!(self.phase, Phase::Listing) {
            return;
        }
        match result {
            Ok(mut routes) => {
                self.nodes.resolve(&mut routes);
                let plan = plan(&self.nodes, &routes, &self.policy);
                self.record = plan.kept.iter().filter_map(Route::key).collect();
                self.record.sort_unstable();
                let notice = Notice::Pass(Trigger::Periodic, Box::new(plan.clone()));
                self.out.push(RouteCommand::Notify(notice));
                self.phase = Phase::Working(Box::new(Work::new(plan)));
            }
            Err(error) => {
                self.out
                    .push(RouteCommand::Notify(Notice::ListFailed(error)));
                self.phase = Phase::Idle;
                self.timer.ended(PassEnd::ListFailed, now);
            }
        }
    }

    fn mutated(&mut self, ticket: Ticket, result: Result<(), ProviderError>, now: Moment) {
        let Phase::Working(work) = &mut self.phase else {
            return;
        };
        let Some(step) = work.running.remove(&ticket) else {
            return;
        };
        let again = work.ended(step, &result);
        let pause = self
            .random
            .between(Duration::from_millis(100), Duration::from_millis(200));
        if again {
            work.later.insert((now + pause, step));
        }
        if let Err(error) = result {
            let step = Box::new(work.plan.steps[step].clone());
            self.out.push(RouteCommand::Notify(Notice::Failed(
                step,
                error,
                now + pause,
            )));
        }
    }

    /// Upstream keeps no record; this one is for [`Engine`](crate::Engine), should the gate be
    /// switched on.
    fn record(&self) -> Vec<(IpNet, NextHop)> {
        self.record.clone()
    }

    fn poll(&mut self, now: Moment) -> Vec<RouteCommand> {
        self.advance(now);
        let due = self.timer.due().is_some_and(|at| at <= now);
        if due && self.nodes.complete && matches!(self.phase, Phase::Idle) {
            self.timer.started(now);
            self.phase = Phase::Listing;
            self.out.push(RouteCommand::List);
        }
        std::mem::take(&mut self.out)
    }

    fn wake(&self, _: Moment) -> Option<Moment> {
        match &self.phase {
            Phase::Idle if self.nodes.complete => self.timer.due(),
            Phase::Idle | Phase::Listing => None,
            Phase::Working(work) => work.later.first().map(|(at, _)| *at),
        }
    }
}
