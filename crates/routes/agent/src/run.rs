//! One run of the route controller: from its start, or from the start of a leadership term, to its
//! end.
//!
//! No state outlives a run: the next leader, in this process or another, reads the table first.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weft_model::{ObjectKey, SharedStr};
use weft_routes::{
    Activity, Answer, Command, ConditionChange, ConditionQueue, Controller, Entry,
    InstanceAddresses, Instances, JoiningNodes, Ledger, Moment, Node, Notice, ProviderError,
    Refusal, Route, RoutePlan, Step, Ticket, Trigger,
};
use weft_runtime::{Action, Context, InformerStopped, Lister, ReconcileError};

use crate::{
    blocks::{BlockFeed, Holding},
    conditions,
    controller::{Parts, RoutesKey},
    metrics::PassOutcome,
    views::RouteNode,
    write::{self, WriteError},
};

/// State of one run.
pub(super) struct Run {
    parts: Arc<Parts>,
    token: CancellationToken,
    begun: Instant,
    controller: Box<dyn Controller + Send>,
    /// The nodes and their blocks as last passed to the controller.
    fed: HashMap<Box<str>, (Arc<RouteNode>, Holding)>,
    blocks: Option<BlockFeed>,
    complete: bool,
    /// Nodes that exist and cannot be decoded.
    unreadable: BTreeSet<ObjectKey>,
    instances: Option<Instances>,
    conditions: ConditionQueue,
    joining: JoiningNodes,
    asked_for: BTreeSet<String>,
    ledger: Option<Ledger>,
    /// True once the table was read; before that no entry is removed from the record.
    listed: bool,
    tight: bool,
    running: HashMap<Ticket, Step>,
}

/// Result of an operation that was under way.
enum Done {
    Listed(Answer<Vec<Route>>),
    Mutated(Ticket, Duration, Answer<()>),
    Asked(Vec<SharedStr>, Answer<InstanceAddresses>),
    Written(ConditionChange, Result<(), WriteError>),
    Recorded(BTreeSet<Entry>, Result<(), WriteError>),
}

type Work<'a> = FuturesUnordered<BoxFuture<'a, Done>>;

impl Run {
    /// Starts a run with the record of the routes that are ours.
    pub(super) async fn begin(
        parts: Arc<Parts>,
        token: CancellationToken,
    ) -> Result<Self, ReconcileError> {
        let recorded = match &parts.record {
            Some(store) => store.load().await?,
            None => BTreeSet::new(),
        };
        let capabilities = &parts.capabilities;
        let checks = parts.settings.check_addresses && capabilities.knows_instances;
        let writes = parts.record.is_some() && !parts.settings.observe;
        let noticed = parts.clone();
        let blocks = parts.settings.blocks.as_ref();
        let blocks = blocks.map(|objects| {
            BlockFeed::open(&parts.cluster, objects, token.clone(), move || {
                noticed.wake();
            })
        });
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        Ok(Self {
            controller: parts
                .settings
                .controller(capabilities, recorded.clone(), seed),
            instances: checks.then(|| Instances::new(&capabilities.families)),
            token,
            begun: Instant::now(),
            fed: HashMap::new(),
            blocks,
            complete: false,
            unreadable: BTreeSet::new(),
            listed: false,
            conditions: ConditionQueue::default(),
            joining: JoiningNodes::new(&parts.settings.policy(capabilities)),
            asked_for: BTreeSet::new(),
            ledger: writes.then(|| Ledger::new(recorded)),
            tight: false,
            running: HashMap::new(),
            parts,
        })
    }

    /// True if the controller was stopped or lost the lease.
    pub(super) fn is_over(&self) -> bool {
        self.token.is_cancelled()
    }

    fn now(&self) -> Moment {
        Moment::after_start(self.begun.elapsed())
    }

    /// Works until nothing is under way and nothing is due; returns when to be called again.
    pub(super) async fn work(
        &mut self,
        context: &Context<RoutesKey>,
    ) -> Result<Action, ReconcileError> {
        let nodes = context.lister::<RouteNode>()?;
        let parts = self.parts.clone();
        let mut work = Work::new();
        loop {
            let cancelled = context.cancelled().is_cancelled();
            let fed = if cancelled { Ok(()) } else { self.feed(&nodes) };
            if cancelled || fed.is_err() {
                // Calls under way are awaited, within the leadership term.
                while let Some(done) = work.next().await {
                    self.settle(done);
                }
                return Ok(fed.map(|()| Action::await_change())?);
            }
            if parts
                .table_changed
                .swap(false, std::sync::atomic::Ordering::Relaxed)
            {
                self.controller.table_changed(self.now());
            }
            if self.joining.became_overdue(self.now()) {
                self.controller.replan(self.now());
            }
            self.begin_work(&parts, context, &mut work);
            // Entries are removed from the record only when idle.
            let wake = self.wake(work.is_empty());
            if work.is_empty() {
                return Ok(match wake {
                    None => Action::await_change(),
                    Some(at) => Action::requeue(at.since(self.now())),
                });
            }
            let wake = wake.map(|at| self.begun + at.since_start());
            tokio::select! {
                Some(done) = work.next() => self.settle(done),
                () = parts.signal.notified() => {}
                () = context.cancelled().cancelled() => {}
                () = until(wake) => {}
            }
        }
    }

    fn wake(&self, idle: bool) -> Option<Moment> {
        let asks = self.instances.as_ref().and_then(Instances::wake);
        let ledger = self.ledger.as_ref().filter(|_| idle && self.listed);
        let record = ledger.and_then(|ledger| ledger.wake(self.controller.record()));
        // Before all nodes are known the controller is not polled.
        let controller = self.complete.then(|| self.controller.wake(self.now()));
        let waits = [
            controller.flatten(),
            asks,
            record,
            self.conditions.wake(),
            self.joining.wake(),
        ];
        waits.into_iter().flatten().min()
    }

    /// Passes node changes since the last call to the controller.
    fn feed(&mut self, nodes: &Lister<RouteNode>) -> Result<(), InformerStopped> {
        let now = self.now();
        self.note_unreadable(nodes)?;
        let present = nodes.list()?;
        if !self.complete {
            self.feed_first(&present, now);
            return Ok(());
        }
        let mut seen = 0;
        for node in &present {
            let known = self.fed.get(node.name());
            seen += usize::from(known.is_some());
            let holding = self.holding(node);
            if known.is_some_and(|(known, held)| Arc::ptr_eq(known, node) && held.is(&holding)) {
                continue;
            }
            let projected = self.project(node, &holding);
            let name = node.name().into();
            self.fed.insert(name, (node.clone(), holding));
            self.joining.seen(&projected, now);
            if let Some(node) = self.check(projected, now) {
                self.controller.node_applied(node, now);
            }
        }
        if seen < self.fed.len() {
            let names: BTreeSet<&str> = present.iter().map(|node| node.name()).collect();
            let fed = self.fed.keys();
            let gone: Vec<Box<str>> = fed
                .filter(|name| !names.contains(&***name))
                .cloned()
                .collect();
            for name in gone {
                self.remove(&name, now);
            }
        }
        Ok(())
    }

    /// Reports nodes that cannot be decoded: they are missing from the list, so their ranges look
    /// unused.
    fn note_unreadable(&mut self, nodes: &Lister<RouteNode>) -> Result<(), InformerStopped> {
        let unreadable = nodes.unreadable()?;
        for node in &unreadable {
            if !self.unreadable.contains(&node.key) {
                tracing::warn!(
                    node = %node.key, error = %node.error,
                    "cannot read Node; no route is deleted until it can be read or is gone"
                );
            }
        }
        self.unreadable = unreadable.iter().map(|node| node.key.clone()).collect();
        let now = self.now();
        self.controller.unreadable_nodes(unreadable.len(), now);
        Ok(())
    }

    /// Passes the first complete list, once the provider was asked about every node: in a partial
    /// list the others would look deleted.
    fn feed_first(&mut self, present: &[Arc<RouteNode>], now: Moment) {
        let mut checked = Vec::new();
        let mut fed = HashMap::new();
        for node in present {
            let holding = self.holding(node);
            let projected = self.project(node, &holding);
            fed.insert(node.name().into(), (node.clone(), holding));
            self.joining.seen(&projected, now);
            checked.extend(self.check(projected, now));
        }
        if checked.len() < present.len() {
            return;
        }
        self.fed = fed;
        self.controller.nodes_listed(checked, now);
        self.complete = true;
    }

    fn holding(&self, node: &RouteNode) -> Holding {
        let feed = self.blocks.as_ref();
        feed.map(|feed| feed.of(node.name())).unwrap_or_default()
    }

    fn project(&self, node: &RouteNode, holding: &Holding) -> Node {
        let mut projected = node.to_node(&*self.parts.provider, &self.parts.capabilities);
        projected.blocks = holding.blocks(node.uid());
        // In node mode a node gets no route to itself.
        projected.excluded |= self.parts.own_node.as_deref() == Some(node.name());
        projected
    }

    fn check(&mut self, node: Node, now: Moment) -> Option<Node> {
        match &mut self.instances {
            None => Some(node),
            Some(instances) => instances.check(node, now),
        }
    }

    fn remove(&mut self, name: &str, now: Moment) {
        self.fed.remove(name);
        self.joining.forget(name);
        self.conditions.forget(name);
        if let Some(instances) = &mut self.instances {
            instances.forget(name);
        }
        self.controller.node_deleted(name, now);
    }

    fn begin_work<'a>(
        &mut self,
        parts: &'a Arc<Parts>,
        context: &'a Context<RoutesKey>,
        work: &mut Work<'a>,
    ) {
        let now = self.now();
        if let Some(ids) = self.instances.as_mut().and_then(|all| all.ask(now)) {
            work.push(Box::pin(async move {
                let answer = parts.provider.instance_addresses(&ids).await;
                Done::Asked(ids, answer)
            }));
        }
        if !self.complete {
            return;
        }
        for command in self.controller.poll(now) {
            match command {
                Command::List => work.push(Box::pin(async move {
                    Done::Listed(parts.provider.list().await)
                })),
                Command::Mutate(ticket, step) => {
                    self.running.insert(ticket, step.clone());
                    match &mut self.ledger {
                        Some(ledger) => ledger.hold(ticket, step),
                        None => work.push(Box::pin(mutate(parts, context, ticket, step))),
                    }
                }
                Command::Write(change) if !parts.settings.observe => {
                    self.conditions.want(change, now);
                }
                Command::Write(_) => {}
                Command::Notify(notice) => self.notice(&notice),
            }
        }
        while let Some(change) = self.conditions.next(now) {
            work.push(Box::pin(async move {
                let write = conditions::write(parts.client.clone(), &change);
                let written = write::fenced(context, write).await;
                Done::Written(change, written)
            }));
        }
        self.record(parts, context, work);
    }

    fn record<'a>(
        &mut self,
        parts: &'a Arc<Parts>,
        context: &'a Context<RoutesKey>,
        work: &mut Work<'a>,
    ) {
        let now = self.now();
        let (Some(ledger), Some(store)) = (&mut self.ledger, &parts.record) else {
            return;
        };
        for (ticket, step) in ledger.release() {
            work.push(Box::pin(mutate(parts, context, ticket, step)));
        }
        if !self.listed {
            return;
        }
        let ours = self.controller.record();
        let activity = if work.is_empty() {
            Activity::Idle
        } else {
            Activity::Busy
        };
        if let Some(entries) = ledger.save(ours, activity, now) {
            work.push(Box::pin(async move {
                let saved = write::fenced(context, store.save(&entries)).await;
                Done::Recorded(entries, saved)
            }));
        }
    }

    fn settle(&mut self, done: Done) {
        let now = self.now();
        match done {
            Done::Listed(answer) => {
                self.rate(&answer, now);
                if answer.result.is_ok() {
                    self.parts.metrics.listed();
                    self.parts.board.listed();
                    self.listed = true;
                    self.provider_answers();
                }
                self.controller.listed(answer.result, now);
            }
            Done::Mutated(ticket, took, answer) => {
                self.rate(&answer, now);
                self.mutated(ticket, took, answer.result, now);
            }
            Done::Asked(ids, answer) => {
                self.rate(&answer, now);
                self.answered(&ids, answer, now);
            }
            Done::Written(change, result) => {
                let outcome = match &result {
                    Ok(()) => "ok",
                    Err(_) => "error",
                };
                self.parts.metrics.condition_written(outcome);
                if let Err(error) = &result {
                    tracing::warn!(node = %change.node, %error, "cannot write NetworkUnavailable");
                }
                self.conditions.written(&change, (&result).into(), now);
            }
            Done::Recorded(entries, result) => self.recorded(entries, &result, now),
        }
    }

    fn recorded(&mut self, entries: BTreeSet<Entry>, result: &Result<(), WriteError>, now: Moment) {
        if let Err(error) = result {
            tracing::warn!(%error, "cannot write the record of routes");
        }
        let Some(ledger) = &mut self.ledger else {
            return;
        };
        for ticket in ledger.saved(entries, result.into(), now) {
            let error = ProviderError::Retry("cannot write the record of routes".into());
            self.mutated(ticket, Duration::ZERO, Err(error), now);
        }
    }

    fn rate<T>(&mut self, answer: &Answer<T>, now: Moment) {
        if let Some(rate) = answer.rate {
            self.parts.metrics.calls_left(rate.remaining);
            let left = Some(rate.remaining);
            self.parts.board.change(|status| status.calls_left = left);
            self.controller.rate_observed(rate, now);
        }
    }

    /// The provider answered a call: pending instance checks need not wait for the end of an
    /// outage.
    fn provider_answers(&mut self) {
        if let Some(instances) = &mut self.instances {
            instances.outage_over();
        }
    }

    fn answered(&mut self, ids: &[SharedStr], answer: Answer<InstanceAddresses>, now: Moment) {
        let Some(instances) = &mut self.instances else {
            return;
        };
        match instances.answered(ids, answer, now) {
            Ok(nodes) if self.complete => {
                for node in nodes {
                    self.controller.node_applied(node, now);
                }
            }
            // The first list is rebuilt at the next feed.
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot read instance addresses from the provider");
                if let ProviderError::RateLimited { after } = error {
                    self.controller.rate_limited(after, now);
                }
            }
        }
    }

    fn mutated(
        &mut self,
        ticket: Ticket,
        took: Duration,
        result: Result<(), ProviderError>,
        now: Moment,
    ) {
        let parts = &self.parts;
        let Some(step) = self.running.remove(&ticket) else {
            return;
        };
        let gone = step.wanted().is_none() && result == Err(ProviderError::Gone);
        match &result {
            Err(error) if !gone => {
                parts.metrics.stepped(&step, error.label());
                parts.events.failed(&step, error, took);
                tracing::warn!(%step, %error, ?took, "cannot change route");
            }
            _ => {
                parts.metrics.stepped(&step, "ok");
                parts.board.done(&step);
                tracing::info!(%step, ?took, "route changed");
                if let Some(waited) = self.joining.routed(&step, now) {
                    parts.metrics.created_after(waited);
                }
                self.provider_answers();
            }
        }
        self.controller.mutated(ticket, result, now);
    }

    fn notice(&mut self, notice: &Notice) {
        let parts = self.parts.clone();
        parts.board.noticed(notice);
        match notice {
            Notice::Pass(trigger, plan) => self.passed(*trigger, plan),
            Notice::Drifted(drift) => {
                let (appeared, vanished) = (drift.appeared.len(), drift.vanished.len());
                let changed = drift.changed.len();
                parts.metrics.drifted("appeared", appeared);
                parts.metrics.drifted("vanished", vanished);
                parts.metrics.drifted("changed", changed);
                tracing::warn!(
                    appeared,
                    vanished,
                    changed,
                    "route table was changed from outside"
                );
            }
            Notice::Refused(refusal) => self.refused(refusal),
            Notice::Failed(step, error, again) => {
                let wait = again.since(self.now());
                tracing::debug!(%step, %error, ?wait, "retrying route change");
            }
            Notice::ListFailed(error) => {
                parts.metrics.passed(Trigger::Periodic, PassOutcome::Error);
                tracing::error!(%error, "cannot list routes");
            }
        }
    }

    fn passed(&mut self, trigger: Trigger, plan: &RoutePlan) {
        let parts = self.parts.clone();
        let outcome = if plan.is_empty() {
            PassOutcome::Noop
        } else {
            PassOutcome::Changed
        };
        parts.metrics.passed(trigger, outcome);
        parts.metrics.planned(plan);
        let steps: BTreeSet<String> = plan.steps.iter().map(Step::to_string).collect();
        for step in &plan.steps {
            if !self.asked_for.contains(&step.to_string()) {
                parts.metrics.asked_for(step);
                if parts.settings.observe {
                    tracing::info!(%step, "route would change");
                }
            }
        }
        self.asked_for = steps;
        if let Some(ledger) = &mut self.ledger {
            ledger.planned(plan);
        }
        for refusal in self.joining.planned(plan) {
            self.refused(&refusal);
        }
        if plan.forecast.is_tight() && !self.tight {
            parts.events.quota_tight(&plan.forecast);
        }
        self.tight = plan.forecast.is_tight();
        if let Some(first) = plan.withheld.first() {
            let withheld = plan.withheld.len();
            tracing::warn!(withheld, reason = %first.reason, "route changes withheld");
        }
        tracing::debug!(?trigger, %plan, "pass");
    }

    fn refused(&self, refusal: &Refusal) {
        tracing::warn!(%refusal, "node gets no route");
        let known = self.fed.get(&*refusal.node);
        let uid = known.map(|(node, _)| node.uid());
        self.parts.events.refused(refusal, uid);
    }
}

/// Changes a route, within the leadership term and `mutation_limit`.
async fn mutate(parts: &Parts, context: &Context<RoutesKey>, ticket: Ticket, step: Step) -> Done {
    let begun = Instant::now();
    let limited = tokio::time::timeout(parts.settings.mutation_limit, parts.provider.apply(&step));
    let answer = match context.fenced(limited).await {
        Some(Ok(answer)) => answer,
        Some(Err(_)) | None => Answer::from(Err(ProviderError::Uncertain)),
    };
    Done::Mutated(ticket, begun.elapsed(), answer)
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
