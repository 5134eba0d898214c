//! One run of the route controller, as a machine: changes and answers in, calls out.
//!
//! Decisions are made by the core; this composes its parts. No state outlives a run: the next
//! leader, in this process or another, reads the table first.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;
use weft_model::SharedStr;
use weft_routes::{
    Activity, Answer, ConditionChange, ConditionQueue, InstanceAddresses, Instances, JoiningNodes,
    Ledger, LedgerEntry, Moment, Node, Notice, ProviderError, Route, RouteCommand, RouteController,
    Step, Ticket,
};
use weft_runtime::{Change, Effects, Failure, Machine};

use crate::{
    blocks::{BlockList, NodeBlocks},
    conditions,
    controller::Parts,
    nodes::{NodeChange, NodeFeed},
    report::Report,
    views::RouteNode,
    write::WriteError,
};

/// An input of the machine.
pub(super) enum Event {
    Node(Change<RouteNode>),
    Blocks(Change<NodeBlocks>),
    /// Another program may have changed the table.
    TableChanged,
    Listed(Answer<Vec<Route>>),
    Mutated(Ticket, Box<Step>, Duration, Answer<()>),
    Asked(Vec<SharedStr>, Answer<InstanceAddresses>),
    Written(ConditionChange, Result<(), WriteError>),
    Recorded(BTreeSet<LedgerEntry>, Result<(), WriteError>),
}

/// State of one run.
pub(super) struct RouteMachine {
    parts: Arc<Parts>,
    controller: Box<dyn RouteController + Send>,
    nodes: NodeFeed,
    instances: Option<Instances>,
    conditions: ConditionQueue,
    joining: JoiningNodes,
    ledger: Option<Ledger>,
    report: Report,
    first_list: FirstList,
    /// True once the table was read; before that no entry is removed from the record.
    listed: bool,
    follows_table: bool,
}

/// Progress of the first list of nodes, before which the controller is not polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstList {
    /// To be passed on by the next poll, if the provider has answered about every node.
    Due,
    /// Some nodes wait for the provider's answer about their instances.
    Waits,
    /// Passed on.
    Done,
}

impl RouteMachine {
    /// Starts a run with the record of the routes that are ours.
    pub(super) async fn begin(parts: Arc<Parts>) -> Result<Self, Failure> {
        let recorded = match &parts.record {
            Some(store) => store.load().await?,
            None => BTreeSet::new(),
        };
        let settings = &parts.settings;
        let capabilities = &parts.capabilities;
        let checks = settings.check_addresses && capabilities.knows_instances;
        let writes = parts.record.is_some() && !settings.observe;
        let blocks = match &settings.blocks {
            None => BlockList::Off,
            Some(_) => BlockList::default(),
        };
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        Ok(Self {
            controller: settings.controller(capabilities, recorded.clone(), seed),
            nodes: NodeFeed::new(parts.provider.clone(), parts.own_node.clone(), blocks),
            instances: checks.then(|| Instances::new(&capabilities.families)),
            conditions: ConditionQueue::default(),
            joining: JoiningNodes::new(&settings.policy(capabilities)),
            ledger: writes.then(|| Ledger::new(recorded)),
            report: Report::new(parts.clone()),
            first_list: FirstList::Due,
            listed: false,
            follows_table: false,
            parts,
        })
    }

    fn node_changed(&mut self, change: NodeChange, now: Moment) {
        match change {
            NodeChange::Deleted(name) => self.remove(&name, now),
            NodeChange::Applied(_) | NodeChange::All if self.first_list != FirstList::Done => {}
            NodeChange::Applied(name) => {
                if let Some(node) = self.nodes.get(&name) {
                    self.apply(node, now);
                }
            }
            NodeChange::All => {
                for node in self.nodes.list().collect::<Vec<_>>() {
                    self.apply(node, now);
                }
            }
        }
        if self.first_list == FirstList::Waits {
            self.first_list = FirstList::Due;
        }
    }

    fn apply(&mut self, node: Node, now: Moment) {
        if let Some(node) = self.check(node, now) {
            self.controller.node_applied(node, now);
        }
    }

    /// Returns the node if it may be passed on to the controller.
    fn check(&mut self, node: Node, now: Moment) -> Option<Node> {
        self.joining.seen(&node, now);
        match &mut self.instances {
            None => Some(node),
            Some(instances) => instances.check(node, now),
        }
    }

    fn remove(&mut self, name: &str, now: Moment) {
        self.joining.forget(name);
        self.conditions.forget(name);
        if let Some(instances) = &mut self.instances {
            instances.forget(name);
        }
        self.controller.node_deleted(name, now);
    }

    /// Passes on the first complete list, once the provider was asked about every node: in a partial
    /// list the others would look deleted.
    fn pass_first_list(&mut self, now: Moment) {
        let present: Vec<Node> = self.nodes.list().collect();
        let count = present.len();
        let checked = present.into_iter();
        let checked: Vec<Node> = checked.filter_map(|node| self.check(node, now)).collect();
        if checked.len() < count {
            self.first_list = FirstList::Waits;
            return;
        }
        self.controller.nodes_listed(checked, now);
        self.first_list = FirstList::Done;
    }

    fn mutate(&self, ticket: Ticket, step: Step, effects: &mut Effects<Event>) {
        let (parts, begun) = (self.parts.clone(), Instant::now());
        let scope = effects.scope().clone();
        effects.call(async move {
            let limit = parts.settings.mutation_limit;
            let limited = tokio::time::timeout(limit, parts.provider.apply(&step));
            let answer = match scope.fenced(limited).await {
                Some(Ok(answer)) => answer,
                Some(Err(_)) | None => Answer::from(Err(ProviderError::Uncertain)),
            };
            Event::Mutated(ticket, Box::new(step), begun.elapsed(), answer)
        });
    }

    fn execute(&mut self, command: RouteCommand, now: Moment, effects: &mut Effects<Event>) {
        match command {
            RouteCommand::List => {
                let provider = self.parts.provider.clone();
                effects.call(async move { Event::Listed(provider.list().await) });
            }
            RouteCommand::Mutate(ticket, step) => match &mut self.ledger {
                Some(ledger) => ledger.hold(ticket, step),
                None => self.mutate(ticket, step, effects),
            },
            RouteCommand::Write(change) if !self.parts.settings.observe => {
                self.conditions.want(change, now);
            }
            RouteCommand::Write(_) => {}
            RouteCommand::Notify(notice) => {
                self.report.notice(&notice, &self.nodes, now);
                if let Notice::Pass(_, plan) = &notice {
                    for refusal in self.joining.planned(plan) {
                        self.report.refused(&refusal, &self.nodes);
                    }
                    if let Some(ledger) = &mut self.ledger {
                        ledger.planned(plan);
                    }
                }
            }
        }
    }

    fn write_condition(&self, change: ConditionChange, effects: &mut Effects<Event>) {
        let client = self.parts.client.clone();
        let about = change.clone();
        effects.fenced(
            async move { conditions::write(client, &about).await },
            |written| Event::Written(change, WriteError::of(written)),
        );
    }

    /// Starts the mutations whose routes are recorded, and writes the record.
    fn record(&mut self, now: Moment, effects: &mut Effects<Event>) {
        let Some(ledger) = &mut self.ledger else {
            return;
        };
        for (ticket, step) in ledger.release() {
            self.mutate(ticket, step, effects);
        }
        let (Some(ledger), Some(store)) = (&mut self.ledger, &self.parts.record) else {
            return;
        };
        if !self.listed {
            return;
        }
        let activity = if effects.is_idle() {
            Activity::Idle
        } else {
            Activity::Busy
        };
        if let Some(entries) = ledger.save(|| self.controller.record(), activity, now) {
            let (store, saved) = (store.clone(), entries.clone());
            effects.fenced(async move { store.save(&saved).await }, |written| {
                Event::Recorded(entries, WriteError::of(written))
            });
        }
    }

    fn recorded(
        &mut self,
        entries: BTreeSet<LedgerEntry>,
        result: &Result<(), WriteError>,
        now: Moment,
    ) {
        if let Err(error) = result {
            tracing::warn!(%error, "cannot write the record of routes");
        }
        let Some(ledger) = &mut self.ledger else {
            return;
        };
        for (ticket, step) in ledger.saved(entries, result.into(), now) {
            let error = ProviderError::Retry("cannot write the record of routes".into());
            self.mutated(ticket, &step, Duration::ZERO, Err(error), now);
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

    fn listed(&mut self, answer: Answer<Vec<Route>>, now: Moment) {
        if answer.result.is_ok() {
            self.parts.metrics.listed();
            self.parts.board.listed();
            self.listed = true;
            self.provider_answers();
        }
        self.controller.listed(answer.result, now);
        self.owned_changed();
    }

    /// The provider answered a call: pending instance checks need not wait for the end of an
    /// outage.
    fn provider_answers(&mut self) {
        if let Some(instances) = &mut self.instances {
            instances.outage_over();
        }
    }

    fn owned_changed(&mut self) {
        if let Some(ledger) = &mut self.ledger {
            ledger.owned_changed();
        }
    }

    fn answered(&mut self, ids: &[SharedStr], answer: Answer<InstanceAddresses>, now: Moment) {
        let Some(instances) = &mut self.instances else {
            return;
        };
        match instances.answered(ids, answer, now) {
            Ok(nodes) if self.first_list == FirstList::Done => {
                for node in nodes {
                    self.controller.node_applied(node, now);
                }
            }
            Ok(_) => self.first_list = FirstList::Due,
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
        step: &Step,
        took: Duration,
        result: Result<(), ProviderError>,
        now: Moment,
    ) {
        let gone = step.wanted().is_none() && result == Err(ProviderError::Gone);
        match &result {
            Err(error) if !gone => self.report.failed(step, error, took),
            _ => {
                self.report.changed(step, took);
                if let Some(waited) = self.joining.routed(step, now) {
                    self.parts.metrics.created_after(waited);
                }
                self.provider_answers();
            }
        }
        self.controller.mutated(ticket, result, now);
        self.owned_changed();
    }
}

impl Machine for RouteMachine {
    type Event = Event;

    fn handle(&mut self, event: Event, now: Moment) {
        match event {
            Event::Node(change) => {
                if let Some(change) = self.nodes.node(change) {
                    self.node_changed(change, now);
                }
                let unreadable = self.nodes.unreadable();
                self.controller.unreadable_nodes(unreadable, now);
            }
            Event::Blocks(change) => {
                if let Some(change) = self.nodes.blocks(change) {
                    self.node_changed(change, now);
                }
            }
            Event::TableChanged => {
                self.follows_table = false;
                self.controller.table_changed(now);
            }
            Event::Listed(answer) => {
                self.rate(&answer, now);
                self.listed(answer, now);
            }
            Event::Mutated(ticket, step, took, answer) => {
                self.rate(&answer, now);
                self.mutated(ticket, &step, took, answer.result, now);
            }
            Event::Asked(ids, answer) => {
                self.rate(&answer, now);
                self.answered(&ids, answer, now);
            }
            Event::Written(change, result) => {
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
            Event::Recorded(entries, result) => self.recorded(entries, &result, now),
        }
    }

    fn poll(&mut self, now: Moment, effects: &mut Effects<Event>) {
        if !self.follows_table {
            self.follows_table = true;
            let provider = self.parts.provider.clone();
            effects.follow(async move {
                provider.changed().await;
                Event::TableChanged
            });
        }
        if self.first_list == FirstList::Due {
            self.pass_first_list(now);
        }
        if self.joining.became_overdue(now) {
            self.controller.replan(now);
        }
        if let Some(ids) = self.instances.as_mut().and_then(|all| all.ask(now)) {
            let provider = self.parts.provider.clone();
            effects.call(async move {
                let answer = provider.instance_addresses(&ids).await;
                Event::Asked(ids, answer)
            });
        }
        if self.first_list == FirstList::Done {
            for command in self.controller.poll(now) {
                self.execute(command, now, effects);
            }
            while let Some(change) = self.conditions.next(now) {
                self.write_condition(change, effects);
            }
            self.record(now, effects);
        }
    }

    fn wake(&self, now: Moment, effects: &Effects<Event>) -> Option<Moment> {
        let asks = self.instances.as_ref().and_then(Instances::wake);
        // Entries are removed from the record only when idle.
        let ledger = self.ledger.as_ref();
        let ledger = ledger.filter(|_| effects.is_idle() && self.listed);
        let complete = self.first_list == FirstList::Done;
        let waits = [
            complete.then(|| self.controller.wake(now)).flatten(),
            asks,
            ledger.and_then(Ledger::wake),
            self.conditions.wake(),
            self.joining.wake(),
        ];
        waits.into_iter().flatten().min()
    }
}
