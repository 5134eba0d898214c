//! An in-memory cluster: an API server, agents with kubelets, controllers that all believe they are
//! the leader, and the messages between them. The test chooses what happens next.

mod action;
mod agent;
mod api;
mod fairness;
mod invariants;
mod recovery;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weft_ipam::{
    GrantName, MonitorSettings, NodeName, SpecWrite, Uid,
    allocator::{Allocator, AllocatorSettings, IpPool, View, WallTime, Write},
};
use weft_model::{Moment, SharedStr};

pub(crate) use action::Action;
pub(crate) use agent::{Agent, PodPhase, Violation};
pub(crate) use api::{Api, Conflict};

/// A write in flight to the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    /// A node's spec, with its agent and process.
    Spec(usize, u64, SpecWrite),
    /// A controller's write.
    Write(Write),
}

/// The label that chooses a node's pool.
pub(crate) const POOL_LABEL: &str = "pool";

/// A controller with its cache, which may be stale.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    pub(crate) view: View,
    pub(crate) allocator: Allocator,
}

impl Controller {
    /// One that has listed everything.
    fn new(view: &View) -> Self {
        Self {
            view: view.clone(),
            allocator: Allocator::new(AllocatorSettings::default()),
        }
    }
}

/// The cluster.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) api: Api,
    pub(crate) agents: Vec<Agent>,
    pub(crate) controllers: Vec<Controller>,
    pub(crate) messages: Vec<Message>,
    pub(crate) now: Moment,
    /// Every name that was ever published, with its holder and meaning.
    pub(crate) names: BTreeMap<GrantName, (Uid, SharedStr)>,
    /// Every name that was withdrawn.
    pub(crate) withdrawn: BTreeSet<GrantName>,
    /// True if daemons make every step durable at once.
    pub(crate) prompt: bool,
    /// Pod CIDRs for Nodes, and the Node that has or had each.
    cidrs: Vec<&'static str>,
    lent: BTreeMap<Uid, &'static str>,
}

/// Parameters of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) pools: Vec<IpPool>,
    /// Pod CIDRs for Nodes.
    pub(crate) cidrs: Vec<&'static str>,
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
    pub(crate) cooldown: Duration,
    pub(crate) monitoring: MonitorSettings,
    pub(crate) prompt: bool,
}

impl Cluster {
    pub(crate) fn new(shape: &Shape) -> Self {
        let mut cluster = Self {
            api: Api::new(shape.pools.clone()),
            agents: Vec::new(),
            controllers: Vec::new(),
            messages: Vec::new(),
            now: Moment::START,
            names: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            prompt: shape.prompt,
            cidrs: shape.cidrs.clone(),
            lent: BTreeMap::new(),
        };
        for index in 0..shape.nodes {
            let name = format!("n{index}");
            let uid = cluster.add_node(&name);
            cluster.agents.push(Agent::new(
                &name,
                uid,
                shape.pods,
                shape.cooldown,
                shape.monitoring,
                !shape.prompt,
            ));
        }
        let mut first = Controller::new(&cluster.api.view);
        let created = first
            .allocator
            .plan(&cluster.api.view, Moment::START, WallTime(0));
        for write in &created.writes {
            cluster.api.write(write).unwrap();
        }
        let two = [(); 2].map(|()| Controller::new(&cluster.api.view));
        cluster.controllers.extend(two);
        cluster
    }

    /// A Node joins. If it needs a CIDR, it gets a free one: a CIDR is free once the config of its
    /// former Node is gone, as in the `pod-cidr` controller. A Node that is registered again gets
    /// its former one from that controller, and from others it may not.
    fn add_node(&mut self, name: &str) -> Uid {
        let view = &self.api.view;
        let former = view.configs.get(&name.into());
        let former = former.and_then(|config| self.lent.get(config.owner.as_ref()?).copied());
        let remembered = self.api.revision.is_multiple_of(2);
        let owners = view
            .configs
            .values()
            .filter_map(|config| config.owner.as_ref());
        let nodes = view.nodes.values().map(|node| &node.uid);
        let lent: BTreeSet<&str> = owners
            .chain(nodes)
            .filter_map(|uid| self.lent.get(uid).copied())
            .collect();
        let mut cidrs = self.cidrs.iter().copied();
        let free = cidrs.find(|cidr| !lent.contains(cidr));
        let free = former.filter(|_| remembered).or(free);
        let uid = self.api.add_node(name, &[], free.as_slice());
        self.lent.extend(free.map(|cidr| (uid.clone(), cidr)));
        uid
    }

    /// True if one of the pools that a node has addresses of is nearly exhausted.
    fn exhausted(&self, agent: usize) -> bool {
        let config = self.agents[agent].seen.as_ref();
        let mut containers = config
            .into_iter()
            .flat_map(|config| &config.status.containers);
        containers.any(|container| {
            self.api
                .view
                .exhausted
                .contains(&(*container.subnet).into())
        })
    }

    fn wall(&self) -> WallTime {
        WallTime(1_000_000).after(self.now.since_start())
    }

    fn node(&self, agent: usize) -> NodeName {
        self.agents[agent].node.as_str().into()
    }

    /// Carries out an action; returns the violation of a rule, if any.
    pub(crate) fn act(&mut self, action: Action) -> Result<(), Violation> {
        match action {
            Action::Ask(..)
            | Action::AskAgain(..)
            | Action::AskLate(..)
            | Action::Leave(..)
            | Action::Vanish(..) => self.act_of_kubelet(action),
            Action::Commit(agent)
            | Action::Crash(agent)
            | Action::FailStore(agent)
            | Action::RecoverStore(agent)
            | Action::LoseStore(agent)
            | Action::Reboot(agent)
            | Action::See(agent)
            | Action::GiveUp(agent)
            | Action::Sweep(agent)
            | Action::LearnNode(agent) => self.act_of_daemon(action, agent)?,
            Action::Deliver(index) => {
                let message = self.messages.remove(index);
                self.deliver(&message, true)?;
            }
            Action::DeliverSilently(index) => {
                let message = self.messages.remove(index);
                self.deliver(&message, false)?;
            }
            Action::Duplicate(index) => {
                let message = self.messages[index].clone();
                self.deliver(&message, true)?;
            }
            Action::Lose(index) => {
                self.messages.remove(index);
            }
            Action::SeeConfig(controller, agent) => self.see_config(controller, agent),
            Action::SeeShards(controller) => {
                let view = &mut self.controllers[controller].view;
                view.shards.clone_from(&self.api.view.shards);
                view.exhausted.clone_from(&self.api.view.exhausted);
            }
            Action::Plan(controller, index) => self.plan(controller, index)?,
            Action::RestartController(controller) => {
                self.controllers[controller] = Controller::new(&View::default());
            }
            Action::List(controller) => {
                self.controllers[controller].view = self.api.view.clone();
            }
            Action::RemoveNode(agent)
            | Action::AddNode(agent)
            | Action::ReplaceNode(agent)
            | Action::Relabel(agent)
            | Action::DeleteConfig(agent)
            | Action::TearConfig(agent) => self.act_by_hand(action, agent)?,
            Action::Wait(seconds) => self.wait(seconds),
        }
        let harmless = matches!(
            action,
            Action::SeeConfig(..)
                | Action::SeeShards(_)
                | Action::Plan(..)
                | Action::List(_)
                | Action::RestartController(_)
                | Action::Lose(_)
        );
        if harmless {
            return Ok(());
        }
        if self.prompt {
            for agent in 0..self.agents.len() {
                self.commit(agent)?;
            }
        }
        self.check()
    }

    fn act_of_kubelet(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Ask(agent, pod) => {
                let exhausted = self.exhausted(agent);
                self.agents[agent].ask(pod, exhausted, now);
            }
            Action::AskAgain(agent, pod) | Action::AskLate(agent, pod) => {
                let exhausted = self.exhausted(agent);
                self.agents[agent].ask_again(pod, exhausted, now);
            }
            Action::Leave(agent, pod) => {
                let exhausted = self.exhausted(agent);
                self.agents[agent].leave(pod, exhausted, now);
            }
            Action::Vanish(agent, pod) => self.agents[agent].vanish(pod),
            _ => {}
        }
    }

    fn act_of_daemon(&mut self, action: Action, index: usize) -> Result<(), Violation> {
        let (now, exhausted) = (self.now, self.exhausted(index));
        let name = self.node(index);
        let agent = &mut self.agents[index];
        match action {
            Action::Commit(_) => self.commit(index)?,
            Action::Crash(_) => agent.crash(now)?,
            Action::FailStore(_) => agent.fail_store(exhausted, now)?,
            Action::RecoverStore(_) => agent.recover_store(exhausted, now),
            Action::LoseStore(_) => agent.lose_store(now)?,
            Action::Reboot(_) => agent.reboot(now)?,
            Action::See(_) => agent.see(self.api.view.configs.get(&name), exhausted, now),
            Action::GiveUp(_) => {
                if let Some(attempt) = agent.monitor.in_flight() {
                    agent.answer(attempt, None, exhausted, now);
                }
            }
            Action::Sweep(_) => agent.sweep(exhausted, now),
            Action::LearnNode(_) => {
                if let Some(node) = self.api.view.nodes.get(&name) {
                    agent.learn(node.uid.clone(), exhausted, now);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn act_by_hand(&mut self, action: Action, agent: usize) -> Result<(), Violation> {
        let name = self.agents[agent].node.clone();
        match action {
            Action::RemoveNode(_) => self.remove_node(agent),
            Action::AddNode(_) => {
                let uid = self.add_node(&name);
                self.agents[agent].rejoin(uid, self.now)?;
            }
            Action::ReplaceNode(_) => {
                self.remove_node(agent);
                self.add_node(&name);
            }
            Action::Relabel(_) => {
                let node = self.api.view.nodes.get(&name.as_str().into());
                let first = node.is_some_and(|node| node.labels.contains_key(POOL_LABEL));
                self.api.relabel(&name, POOL_LABEL, !first);
            }
            Action::DeleteConfig(_) => self.api.delete_config(&name, false),
            Action::TearConfig(_) => self.api.delete_config(&name, true),
            _ => {}
        }
        Ok(())
    }

    /// Its pods are evicted. A node that is cut off for longer than the grace period with pods
    /// still running is beyond what an allocator can know.
    fn remove_node(&mut self, agent: usize) {
        self.api.remove_node(&self.agents[agent].node.clone());
        for pod in 0..self.agents[agent].pods.len() {
            self.agents[agent].vanish(pod);
        }
    }

    /// At most a minute at a time, which is the interval of sweeps.
    fn wait(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while self.now < end {
            self.now = end.min(self.now + Duration::from_secs(60));
            for agent in 0..self.agents.len() {
                let exhausted = self.exhausted(agent);
                self.agents[agent].pass(exhausted, self.now);
            }
        }
        // The API server ends requests whose sender is gone long before addresses that were held
        // back after a loss are used. A daemon with a store does not rely on that.
        let Self {
            messages, agents, ..
        } = self;
        messages.retain(|message| match message {
            Message::Spec(agent, process, _) => {
                !agents[*agent].lost || agents[*agent].process == *process
            }
            Message::Write(_) => true,
        });
    }

    fn commit(&mut self, agent: usize) -> Result<(), Violation> {
        let process = self.agents[agent].process;
        for write in self.agents[agent].commit()? {
            self.messages.push(Message::Spec(agent, process, write));
        }
        Ok(())
    }

    fn see_config(&mut self, controller: usize, agent: usize) {
        let name = self.node(agent);
        let Api { view: now, .. } = &self.api;
        let view = &mut self.controllers[controller].view;
        if !self.cidrs.is_empty() {
            // Where nothing is claimed, it matters that a watch shows objects in their order.
            view.configs.clone_from(&now.configs);
            view.nodes.clone_from(&now.nodes);
            return;
        }
        match now.configs.get(&name) {
            Some(config) => view.configs.insert(name.clone(), config.clone()),
            None => view.configs.remove(&name),
        };
        match now.nodes.get(&name) {
            Some(node) => view.nodes.insert(name, node.clone()),
            None => view.nodes.remove(&name),
        };
    }

    /// The writes that a controller would send now.
    pub(crate) fn planned(&mut self, controller: usize) -> Result<Vec<Write>, Violation> {
        let (now, wall) = (self.now, self.wall());
        let Controller { view, allocator } = &mut self.controllers[controller];
        let writes = allocator.plan(view, now, wall).writes;
        fairness::check(view, &writes)?;
        Ok(writes)
    }

    fn plan(&mut self, controller: usize, index: usize) -> Result<(), Violation> {
        let mut writes = self.planned(controller)?;
        if index < writes.len() {
            self.messages
                .push(Message::Write(writes.swap_remove(index)));
        }
        Ok(())
    }

    fn deliver(&mut self, message: &Message, answered: bool) -> Result<(), Violation> {
        match message {
            Message::Spec(agent, process, write) => {
                let result = self.api.write_spec(write);
                let same = self.agents[*agent].process == *process;
                if answered && same {
                    let (now, exhausted) = (self.now, self.exhausted(*agent));
                    self.agents[*agent].answer(write.attempt, result.ok(), exhausted, now);
                }
            }
            Message::Write(write) => {
                let before = self.api.view.configs.clone();
                if self.api.write(write).is_ok() {
                    self.check_write(write, &before)?;
                }
            }
        }
        Ok(())
    }
}
