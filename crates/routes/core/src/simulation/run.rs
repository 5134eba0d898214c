//! Event loop of a simulation.

use std::{collections::BTreeMap, time::Duration};

use ipnet::IpNet;

use super::{
    Call, ClusterEvent, Provider, Report, Scenario, TokenQueue,
    oracle::Oracle,
    provider::{Answer, Begun},
};
use crate::{
    Engine, Moment, NextHop, Notice, Policy, Route, RouteCommand, RouteController, RouteReconciler,
    Ticker, Ticket, simulation::Fleet,
};

/// The controller that a run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// Upstream with the gate off: a pass every period.
    Polling(Duration),
    /// Upstream with the gate on, as a model.
    UpstreamWatch,
    /// Our controller in watch mode.
    Ours,
}

impl Arm {
    fn controller(
        self,
        scenario: &Scenario,
        generation: u64,
        record: Vec<(IpNet, NextHop)>,
    ) -> Box<dyn RouteController> {
        let upstream = Policy::upstream([Fleet::cluster_cidr()]);
        let seed = scenario.seed ^ (generation << 32);
        match self {
            Self::Polling(period) => {
                Box::new(RouteReconciler::new(upstream, Ticker::new(period), seed))
            }
            Self::UpstreamWatch => {
                Box::new(RouteReconciler::new(upstream, TokenQueue::default(), seed))
            }
            Self::Ours => {
                let parallel = scenario.profile.parallel;
                let policy = scenario.policy();
                let engine = Engine::new(policy, scenario.timing, parallel, seed);
                Box::new(engine.with_record(record))
            }
        }
    }
}

/// Plays a scenario to its end and reports the result.
pub fn run(arm: Arm, scenario: &Scenario) -> Report {
    let mut simulation = Simulation::new(arm, scenario);
    while let Some(next) = simulation.next() {
        if next > scenario.end {
            break;
        }
        simulation.now = next.max(simulation.now);
        simulation.deliver_events();
        simulation.answer();
        simulation.act();
    }
    let length = scenario.end.since_start();
    simulation.oracle.close(simulation.provider.table(), length);
    let mut report = simulation.oracle.report;
    report.lowest_balance = scenario
        .profile
        .calls_per_hour
        .map(|_| simulation.provider.lowest_balance());
    report
}

struct Simulation<'a> {
    arm: Arm,
    scenario: &'a Scenario,
    now: Moment,
    controller: Box<dyn RouteController>,
    generation: u64,
    delivered: usize,
    watch_down_until: Option<Moment>,
    provider: Provider,
    calls: BTreeMap<(Moment, u64), Pending>,
    sequence: u64,
    oracle: Oracle,
    idle: bool,
}

struct Pending {
    generation: u64,
    ticket: Option<Ticket>,
    call: Call,
    begun: Begun,
}

impl<'a> Simulation<'a> {
    fn new(arm: Arm, scenario: &'a Scenario) -> Self {
        let mut oracle = Oracle::default();
        let mut provider = Provider::new(scenario.profile, scenario.faults.clone());
        for route in oracle.start(&scenario.trace.initial) {
            provider
                .table_mut()
                .insert(route.destination.clone(), route);
        }
        let mut simulation = Self {
            arm,
            scenario,
            now: Moment::START,
            controller: arm.controller(scenario, 0, Vec::new()),
            generation: 0,
            delivered: 0,
            watch_down_until: None,
            provider,
            calls: BTreeMap::new(),
            sequence: 0,
            oracle,
            idle: false,
        };
        simulation.start();
        simulation
    }

    fn start(&mut self) {
        self.generation += 1;
        self.oracle.report.starts += 1;
        let record = self.controller.record();
        self.controller = self.arm.controller(self.scenario, self.generation, record);
        let nodes = self.oracle.nodes();
        self.controller.nodes_listed(nodes, self.now);
        self.idle = false;
    }

    fn next(&self) -> Option<Moment> {
        if !self.idle {
            return Some(self.now);
        }
        let event = self.scenario.trace.events.get(self.delivered);
        let answer = self.calls.keys().next().map(|(at, _)| *at);
        let wake = self.controller.wake(self.now);
        [
            event.map(|(at, _)| *at),
            answer,
            wake,
            self.watch_down_until,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Delivers the events that are due.
    fn deliver_events(&mut self) {
        if self.watch_down_until.is_some_and(|until| until <= self.now) {
            self.watch_down_until = None;
            let nodes = self.oracle.nodes();
            self.controller.nodes_listed(nodes, self.now);
        }
        while let Some((at, event)) = self.scenario.trace.events.get(self.delivered)
            && *at <= self.now
        {
            self.delivered += 1;
            self.deliver(event);
        }
    }

    fn deliver(&mut self, event: &ClusterEvent) {
        let watch_down = self.watch_down_until.is_some();
        match event {
            ClusterEvent::Apply(node) => {
                let node = self.oracle.apply(node, self.now);
                if !watch_down {
                    self.controller.node_applied(node, self.now);
                }
            }
            ClusterEvent::Delete(name) => {
                self.oracle.delete(name, self.now);
                if !watch_down {
                    self.controller.node_deleted(name, self.now);
                }
            }
            ClusterEvent::WatchCut(length) => self.watch_down_until = Some(self.now + *length),
            ClusterEvent::Restart => self.start(),
            ClusterEvent::RouteLost(destination) => {
                self.provider.table_mut().remove(destination);
                self.oracle.lost(destination, self.now);
            }
            ClusterEvent::ForeignRoute(route) => {
                self.oracle.foreign(route);
                let table = self.provider.table_mut();
                table.insert(route.destination.clone(), route.clone());
            }
        }
    }

    /// Delivers the answers that are due.
    fn answer(&mut self) {
        while let Some(entry) = self.calls.first_entry()
            && entry.key().0 <= self.now
        {
            let pending = entry.remove();
            let answer = self.end(&pending);
            if pending.generation != self.generation {
                continue;
            }
            if let Some(rate) = self.provider.rate() {
                self.controller.rate_observed(rate, self.now);
            }
            match pending.ticket {
                None => {
                    let routes = answer.map(Option::unwrap_or_default);
                    self.controller.listed(routes, self.now);
                }
                Some(ticket) => {
                    let result = answer.map(drop);
                    self.controller.mutated(ticket, result, self.now);
                }
            }
        }
    }

    fn end(&mut self, pending: &Pending) -> Answer {
        let Call::Mutate(step) = &pending.call else {
            return self.provider.end(&pending.call, &pending.begun);
        };
        let at = |provider: &Provider| -> Option<Route> {
            provider.table().get(step.destination()).cloned()
        };
        let before = at(&self.provider);
        let answer = self.provider.end(&pending.call, &pending.begun);
        let after = at(&self.provider);
        self.oracle
            .ended(step, before.as_ref(), after.as_ref(), self.now);
        answer
    }

    /// Executes the controller's commands.
    fn act(&mut self) {
        let commands = self.controller.poll(self.now);
        self.idle = commands.is_empty();
        for command in commands {
            match command {
                RouteCommand::List => self.begin(None, Call::List),
                RouteCommand::Mutate(ticket, step) => {
                    self.oracle.begun(&step, self.provider.table());
                    self.begin(Some(ticket), Call::Mutate(Box::new(step)));
                }
                RouteCommand::Write(change) => {
                    // A write comes back through the watch, and must not start anything.
                    if let Some(node) = self.oracle.write(&change)
                        && self.watch_down_until.is_none()
                    {
                        self.controller.node_applied(node, self.now);
                    }
                }
                RouteCommand::Notify(Notice::Pass(..)) => self.oracle.report.passes += 1,
                RouteCommand::Notify(_) => {}
            }
        }
    }

    fn begin(&mut self, ticket: Option<Ticket>, call: Call) {
        self.oracle.report.calls.count(call.kind());
        let begun = self.provider.begin(&call, self.now);
        let key = (begun.answer_at, self.sequence);
        self.sequence += 1;
        let pending = Pending {
            generation: self.generation,
            ticket,
            call,
            begun,
        };
        self.calls.insert(key, pending);
    }
}
