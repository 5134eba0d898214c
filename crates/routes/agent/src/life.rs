//! One life of the route controller: from start, or from being elected, to the end of it.
//!
//! Nothing outlives it: who leads next, in this process or another, reads the table first.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weft_model::{ObjectKey, SharedStr};
use weft_providers::{Answer, InstanceAddresses};
use weft_routes::{
    Command, ConditionChange, Controller, Moment, Node, Notice, ProviderError, Refusal, Route,
    RoutePlan, Step, Ticket, Trigger,
};
use weft_runtime::{Action, Context, InformerStopped, Lister, ReconcileError};

use crate::{
    blocks::{BlockFeed, Holding},
    conditions::{self, Conditions},
    controller::{Parts, RoutesKey},
    instances::Instances,
    ledger::Ledger,
    metrics::PassOutcome,
    newcomers::Newcomers,
    record::Entry,
    views::RouteNode,
};

/// What is known in one life.
pub(super) struct Life {
    parts: Arc<Parts>,
    token: CancellationToken,
    begun: Instant,
    controller: Box<dyn Controller + Send>,
    /// The nodes and what they hold as the controller heard of them last.
    fed: HashMap<Box<str>, (Arc<RouteNode>, Holding)>,
    blocks: Option<BlockFeed>,
    complete: bool,
    /// Nodes that exist and cannot be read.
    unreadable: BTreeSet<ObjectKey>,
    instances: Option<Instances>,
    conditions: Conditions,
    newcomers: Newcomers,
    asked_for: BTreeSet<String>,
    ledger: Option<Ledger>,
    /// Before the first list nothing is known, and nothing must be forgotten.
    listed: bool,
    tight: bool,
    running: HashMap<Ticket, Step>,
}

/// Something under way came to its end.
enum Done {
    Listed(Answer<Vec<Route>>),
    Mutated(Ticket, Duration, Answer<()>),
    Asked(Vec<SharedStr>, Answer<InstanceAddresses>),
    Written(ConditionChange, Result<(), String>),
    Recorded(BTreeSet<Entry>, Result<(), String>),
}

type Work<'a> = FuturesUnordered<BoxFuture<'a, Done>>;

impl Life {
    /// Begins; what an earlier life recorded as ours is ours.
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
            conditions: Conditions::default(),
            newcomers: Newcomers::new(&parts.settings.policy(capabilities)),
            asked_for: BTreeSet::new(),
            ledger: writes.then(|| Ledger::new(recorded)),
            tight: false,
            running: HashMap::new(),
            parts,
        })
    }

    /// Whether it has come to its end.
    pub(super) fn is_over(&self) -> bool {
        self.token.is_cancelled()
    }

    fn now(&self) -> Moment {
        Moment::after_start(self.begun.elapsed())
    }

    /// Does everything there is to do, and returns when to come back.
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
                // What was begun is brought to its end, within the time that is left to lead.
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
            if self.newcomers.became_late(self.now()) {
                self.controller.replan(self.now());
            }
            self.begin_work(&parts, context, &mut work);
            // What is ours is written down when nothing else is going on.
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
        // Before all nodes are known the controller is not asked to do anything.
        let controller = self.complete.then(|| self.controller.wake(self.now()));
        let waits = [
            controller.flatten(),
            asks,
            record,
            self.conditions.wake(),
            self.newcomers.wake(),
        ];
        waits.into_iter().flatten().min()
    }

    /// Tells the controller what changed since it heard last.
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
            self.newcomers.seen(&projected, now);
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

    /// A node that cannot be read is missing from the list, and its range looks unused.
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

    /// All nodes there are, once the provider was asked about each: half a list would look as if
    /// the others were gone.
    fn feed_first(&mut self, present: &[Arc<RouteNode>], now: Moment) {
        let mut checked = Vec::new();
        let mut fed = HashMap::new();
        for node in present {
            let holding = self.holding(node);
            let projected = self.project(node, &holding);
            fed.insert(node.name().into(), (node.clone(), holding));
            self.newcomers.seen(&projected, now);
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
        // In node mode no route leads to oneself.
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
        self.newcomers.forget(name);
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
                Command::Tell(notice) => self.notice(&notice),
            }
        }
        while let Some(change) = self.conditions.next(now) {
            work.push(Box::pin(async move {
                let write = conditions::write(parts.client.clone(), &change);
                let written = context.fenced(write).await;
                Done::Written(change, flat(written))
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
        if let Some(entries) = ledger.save(ours, work.is_empty(), now) {
            work.push(Box::pin(async move {
                let saved = context.fenced(store.save(&entries)).await;
                Done::Recorded(entries, flat(saved))
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
                self.conditions.written(&change, result.is_ok(), now);
            }
            Done::Recorded(entries, result) => self.recorded(entries, &result, now),
        }
    }

    fn recorded(&mut self, entries: BTreeSet<Entry>, result: &Result<(), String>, now: Moment) {
        if let Err(error) = result {
            tracing::warn!(%error, "cannot record which routes are ours");
        }
        let Some(ledger) = &mut self.ledger else {
            return;
        };
        for ticket in ledger.saved(entries, result.is_ok(), now) {
            let error = ProviderError::Retry("cannot record that the route is ours".into());
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

    /// Whoever waits for the provider to answer again need not wait longer.
    fn provider_answers(&mut self) {
        if let Some(instances) = &mut self.instances {
            instances.answers();
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
            // The first list is put together again when it is fed next.
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot ask the provider about machines");
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
                parts.announce.failed(&step, error, took);
                tracing::warn!(%step, %error, ?took, "route not changed");
            }
            _ => {
                parts.metrics.stepped(&step, "ok");
                parts.board.done(&step);
                tracing::info!(%step, ?took, "route changed");
                if let Some(waited) = self.newcomers.routed(&step, now) {
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
                    "the table was changed by others"
                );
            }
            Notice::Refused(refusal) => self.refused(refusal),
            Notice::Failed(step, error, again) => {
                let wait = again.since(self.now());
                tracing::debug!(%step, %error, ?wait, "trying again");
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
                    tracing::info!(%step, "would change");
                }
            }
        }
        self.asked_for = steps;
        if let Some(ledger) = &mut self.ledger {
            ledger.planned(plan);
        }
        for refusal in self.newcomers.planned(plan) {
            self.refused(&refusal);
        }
        if plan.forecast.is_tight() && !self.tight {
            parts.announce.tight(&plan.forecast);
        }
        self.tight = plan.forecast.is_tight();
        if !plan.withheld.is_empty() {
            let withheld = plan.withheld.len();
            tracing::warn!(
                withheld,
                "more deletes than are believed; --force-deletes does them"
            );
        }
        tracing::debug!(?trigger, %plan, "pass");
    }

    fn refused(&self, refusal: &Refusal) {
        tracing::warn!(%refusal, "a node gets no route");
        let known = self.fed.get(&*refusal.node);
        let uid = known.map(|(node, _)| node.uid());
        self.parts.announce.refused(refusal, uid);
    }
}

/// Changes a route within the time left to lead.
async fn mutate(parts: &Parts, context: &Context<RoutesKey>, ticket: Ticket, step: Step) -> Done {
    let begun = Instant::now();
    let limited = tokio::time::timeout(parts.settings.mutation_limit, parts.provider.apply(&step));
    let answer = match context.fenced(limited).await {
        Some(Ok(answer)) => answer,
        Some(Err(_)) | None => Answer::from(Err(ProviderError::Uncertain)),
    };
    Done::Mutated(ticket, begun.elapsed(), answer)
}

fn flat(result: Option<kube::Result<()>>) -> Result<(), String> {
    match result {
        Some(result) => result.map_err(|error| error.to_string()),
        None => Err("the time to lead is over".to_owned()),
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
