//! The route controller in watch mode, as a state machine without I/O.
//!
//! Node events and provider answers go in, [`RouteCommand`]s come out. Node events cost mutations only;
//! the table is read at the start, after uncertain answers and outside changes, and to verify.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ipnet::IpNet;
use weft_model::SharedStr;

use crate::{
    Backoff, Budget, CallPriority, Cidr, ConditionChange, Drift, Moment, MutationQueue, NextHop,
    Node, Offer, Policy, ProviderError, Random, RateLimit, Reason, Refusal, Route, RoutePlan,
    Schedule, Step, TableCache, Ticket, Timing, Trigger, backoff::wait, plan, watch::NodeWatch,
};

/// A request of a [`RouteController`] to its driver, which reports the result back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteCommand {
    /// Read the table and report it with [`RouteController::listed`].
    List,
    /// Change a route and report the end with [`RouteController::mutated`].
    Mutate(Ticket, Step),
    /// Write a node's condition.
    Write(ConditionChange),
    /// Log, count or publish it; nothing has to be reported back.
    Notify(Notice),
}

/// An occurrence for logs, events, metrics and the status page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A pass was planned: its trigger and its plan.
    Pass(Trigger, Box<RoutePlan>),
    /// A list differed from the cached table.
    Drifted(Drift),
    /// A node is refused a route, and was not in the pass before.
    Refused(Refusal),
    /// A mutation failed; it is tried again at that time.
    Failed(Box<Step>, ProviderError, Moment),
    /// The table could not be read.
    ListFailed(ProviderError),
}

/// Decides what to do and when. Its driver passes in events and answers with the time at which they
/// came, executes the commands of [`RouteController::poll`], and polls again at [`RouteController::wake`] if
/// nothing happens before.
pub trait RouteController {
    /// A node was added or changed.
    fn node_applied(&mut self, node: Node, now: Moment);
    /// A node was deleted.
    fn node_deleted(&mut self, name: &str, now: Moment);
    /// All nodes were listed, the first time or again after a broken watch.
    fn nodes_listed(&mut self, nodes: Vec<Node>, now: Moment);
    /// This many nodes cannot be read: nothing is known of their ranges.
    fn unreadable_nodes(&mut self, _count: usize, _now: Moment) {}
    /// The table was read, or could not be.
    fn listed(&mut self, result: Result<Vec<Route>, ProviderError>, now: Moment);
    /// A mutation ended. A replacement that failed half-way ends as
    /// [`ProviderError::Uncertain`].
    fn mutated(&mut self, ticket: Ticket, result: Result<(), ProviderError>, now: Moment);
    /// Something outside changed the table: it has to be read again soon.
    fn table_changed(&mut self, _now: Moment) {}
    /// A pass is needed although no node changed.
    fn replan(&mut self, _now: Moment) {}
    /// The provider rate-limited a call that this controller did not ask for.
    fn rate_limited(&mut self, _after: Option<Duration>, _now: Moment) {}
    /// A response said how many calls are left.
    fn rate_observed(&mut self, _rate: RateLimit, _now: Moment) {}
    /// The routes owned by this cluster, to be kept for the next process where routes carry no
    /// marks.
    fn record(&self) -> Vec<(IpNet, NextHop)> {
        Vec::new()
    }
    /// The commands to execute now; each is returned once.
    fn poll(&mut self, now: Moment) -> Vec<RouteCommand>;
    /// Time at which to poll again if nothing happens before; `None` to wait for an event.
    fn wake(&self, now: Moment) -> Option<Moment>;
}

/// The controller in watch mode: every route is retried with a backoff of its own.
#[derive(Debug)]
pub struct Engine {
    policy: Policy,
    watch: NodeWatch,
    cache: TableCache,
    schedule: Schedule,
    queue: MutationQueue,
    backoff: Backoff,
    budget: Budget,
    random: Random,
    asked: Moment,
    trigger: Trigger,
    listed: bool,
    list_failures: u32,
    queue_wake: Option<Moment>,
    missing: BTreeMap<SharedStr, BTreeSet<Cidr>>,
    blocked: BTreeSet<SharedStr>,
    refused: Vec<Refusal>,
    out: Vec<RouteCommand>,
}

impl Engine {
    /// Runs at most `parallel` mutations at the same time. The seed is for jitter.
    pub fn new(policy: Policy, timing: Timing, parallel: usize, seed: u64) -> Self {
        Self {
            policy,
            watch: NodeWatch::default(),
            cache: TableCache::new(timing.settle),
            schedule: Schedule::new(timing),
            queue: MutationQueue::new(parallel),
            backoff: Backoff::default(),
            budget: Budget::default(),
            random: Random::new(seed),
            asked: Moment::START,
            trigger: Trigger::Start,
            listed: false,
            list_failures: 0,
            queue_wake: None,
            missing: BTreeMap::new(),
            blocked: BTreeSet::new(),
            refused: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Starts with routes that an earlier process recorded as ours.
    #[must_use]
    pub fn with_record(mut self, record: impl IntoIterator<Item = (IpNet, NextHop)>) -> Self {
        self.cache = self.cache.with_record(record);
        self
    }

    /// The cached table of the provider.
    pub fn cache(&self) -> &TableCache {
        &self.cache
    }

    /// The destinations that wait for a retry, with their last errors.
    pub fn backoff(&self) -> &Backoff {
        &self.backoff
    }

    /// The calls that the provider still allows.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    fn pass(&mut self, trigger: Trigger, now: Moment) {
        self.schedule.passed(now);
        let plan = plan(self.watch.list(), self.cache.routes(), &self.policy);
        self.cache.adopt(&plan.kept);
        self.queue.submit(plan.executable());
        let planned: BTreeSet<&Cidr> = plan.steps.iter().map(Step::destination).collect();
        self.backoff
            .retain(|destination| planned.contains(destination));
        self.notify_refusals(&plan);
        self.write_conditions(&plan);
        self.notify(Notice::Pass(trigger, Box::new(plan)));
    }

    fn notify(&mut self, notice: Notice) {
        self.out.push(RouteCommand::Notify(notice));
    }

    fn notify_refusals(&mut self, plan: &RoutePlan) {
        let fresh: Vec<Refusal> = plan
            .refusals
            .iter()
            .filter(|refusal| !refusal.reason.is_waiting() && !self.refused.contains(refusal))
            .cloned()
            .collect();
        for refusal in fresh {
            self.notify(Notice::Refused(refusal));
        }
        self.refused.clone_from(&plan.refusals);
    }

    /// Writes the conditions of nodes whose state is final in this plan. A node whose routes are
    /// being created is not marked unavailable first: it would be tainted for a second for nothing.
    fn write_conditions(&mut self, plan: &RoutePlan) {
        self.missing.clear();
        self.blocked.clear();
        if plan.observe_only || !self.watch.list().complete {
            return;
        }
        let mut said = Vec::new();
        for (name, verdict) in &plan.verdicts {
            if verdict.blocked {
                self.blocked.insert(name.clone());
            }
            if !verdict.open.is_empty() {
                let open = verdict.open.keys().cloned().collect();
                self.missing.insert(name.clone(), open);
            }
            if let Some(node) = self.watch.list().get(name)
                && (verdict.open.is_empty() || verdict.blocked)
                && let Some(reason) = verdict.reason(node, |_| false)
            {
                said.push((name.clone(), reason));
            }
        }
        for (name, reason) in said {
            self.write_condition(&name, reason);
        }
    }

    fn write_condition(&mut self, name: &SharedStr, reason: Reason) {
        let conditions = self.policy.conditions;
        let Some(node) = self.watch.get_mut(name) else {
            return;
        };
        if reason.needs_write(node.network_unavailable.as_ref(), conditions) {
            // Our own write counts before the watch brings it back.
            node.network_unavailable = Some(reason.to_condition());
            let node = name.clone();
            self.out
                .push(RouteCommand::Write(ConditionChange { node, reason }));
        }
    }

    fn succeeded(&mut self, step: &Step, now: Moment) {
        self.cache.applied(step, now);
        self.backoff.succeeded(step);
        let Some(node) = step.node() else {
            return;
        };
        let Some(missing) = self.missing.get_mut(node) else {
            return;
        };
        missing.remove(step.destination());
        if missing.is_empty() {
            self.missing.remove(node);
            if !self.blocked.contains(node) {
                self.write_condition(node, Reason::RouteCreated);
            }
        }
    }

    fn failed(&mut self, step: Step, error: ProviderError, outdated: bool, now: Moment) {
        if let ProviderError::RateLimited { after } = error {
            self.budget.limited(after, now);
        }
        if error.needs_list() {
            self.cache.doubt(&step, now);
        }
        let again = self.backoff.failed(&step, &error, now, &mut self.random);
        if self.cache.has_doubts() {
            self.schedule.list_by(again, Trigger::Doubt);
        }
        let held_back = matches!(error, ProviderError::RateLimited { .. });
        if let Some(node) = step.node()
            && self.missing.contains_key(node)
            && !held_back
        {
            self.write_condition(&node.clone(), Reason::NoRouteCreated);
        }
        self.notify(Notice::Failed(Box::new(step.clone()), error, again));
        if outdated {
            self.schedule.replan(now);
        } else {
            self.queue.put_back(step);
        }
    }

    fn list_if_due(&mut self, now: Moment) {
        let Some((at, trigger)) = self.schedule.next_list() else {
            return;
        };
        if at > now || self.budget.ready_at(purpose(trigger), now) > now {
            return;
        }
        self.schedule.list_started(trigger);
        self.budget.spend();
        self.asked = now;
        self.trigger = trigger;
        self.out.push(RouteCommand::List);
    }

    fn mutate(&mut self, now: Moment) {
        self.queue_wake = None;
        if !self.listed {
            return;
        }
        loop {
            let offer = self
                .queue
                .offer(&self.backoff, &self.budget, &self.cache, now);
            match offer {
                Offer::Go(ticket, step) => {
                    self.budget.spend();
                    self.out.push(RouteCommand::Mutate(ticket, *step));
                }
                Offer::Later(at) => {
                    self.queue_wake = Some(at);
                    return;
                }
                Offer::Nothing => return,
            }
        }
    }
}

/// Lists that nodes wait for may use the calls that verification has to leave.
fn purpose(trigger: Trigger) -> CallPriority {
    match trigger {
        Trigger::Start | Trigger::Doubt | Trigger::NodeChange => CallPriority::Create,
        Trigger::Periodic => CallPriority::Verify,
    }
}

impl RouteController for Engine {
    fn node_applied(&mut self, node: Node, now: Moment) {
        let name = node.name.clone();
        if self.watch.apply(node, &self.policy) {
            self.backoff.node_changed(&name);
            self.schedule.node_changed(now);
        }
    }

    fn node_deleted(&mut self, name: &str, now: Moment) {
        if self.watch.delete(name) {
            self.schedule.node_changed(now);
        }
    }

    fn nodes_listed(&mut self, nodes: Vec<Node>, now: Moment) {
        if self.watch.relist(nodes, &self.policy) {
            self.schedule.node_changed(now);
        }
    }

    fn unreadable_nodes(&mut self, count: usize, now: Moment) {
        if self.watch.set_unreadable(count) {
            self.replan(now);
        }
    }

    fn listed(&mut self, result: Result<Vec<Route>, ProviderError>, now: Moment) {
        match result {
            Ok(mut routes) => {
                self.watch.list().resolve(&mut routes);
                self.budget.answered();
                self.list_failures = 0;
                self.listed = true;
                let drift = self
                    .cache
                    .listed(routes, self.asked, self.queue.under_way())
                    .without_own(self.watch.list());
                self.schedule.listed(now);
                if !drift.is_empty() {
                    self.notify(Notice::Drifted(drift));
                }
                if self.cache.has_doubts() {
                    self.schedule.list_by(now, Trigger::Doubt);
                }
                self.pass(self.trigger, now);
            }
            Err(error) => {
                if let ProviderError::RateLimited { after } = error {
                    self.budget.limited(after, now);
                }
                self.list_failures = self.list_failures.saturating_add(1);
                let wait = wait(&error, self.list_failures, &mut self.random);
                self.schedule.list_failed(now + wait);
                self.notify(Notice::ListFailed(error));
            }
        }
    }

    fn mutated(&mut self, ticket: Ticket, result: Result<(), ProviderError>, now: Moment) {
        let Some((step, outdated)) = self.queue.ended(ticket) else {
            return;
        };
        let deleted = step.wanted().is_none();
        match result {
            Err(ProviderError::Gone) if deleted => self.succeeded(&step, now),
            Ok(()) => {
                self.budget.answered();
                self.succeeded(&step, now);
            }
            Err(error) => return self.failed(step, error, outdated, now),
        }
        if outdated {
            self.schedule.replan(now);
        }
    }

    fn table_changed(&mut self, now: Moment) {
        self.backoff.table_changed();
        self.schedule.table_changed(now);
    }

    fn replan(&mut self, now: Moment) {
        self.schedule.replan(now);
    }

    fn rate_limited(&mut self, after: Option<Duration>, now: Moment) {
        self.budget.limited(after, now);
    }

    fn record(&self) -> Vec<(IpNet, NextHop)> {
        self.cache.record().cloned().collect()
    }

    fn rate_observed(&mut self, rate: RateLimit, now: Moment) {
        self.budget.observe(rate, now);
    }

    fn poll(&mut self, now: Moment) -> Vec<RouteCommand> {
        self.list_if_due(now);
        if self.schedule.next_pass().is_some_and(|at| at <= now) {
            self.pass(Trigger::NodeChange, now);
        }
        self.mutate(now);
        std::mem::take(&mut self.out)
    }

    fn wake(&self, now: Moment) -> Option<Moment> {
        let list = self
            .schedule
            .next_list()
            .map(|(at, trigger)| at.max(self.budget.ready_at(purpose(trigger), now)));
        let waits = [list, self.schedule.next_pass(), self.queue_wake];
        waits.into_iter().flatten().min()
    }
}
