//! A cluster in memory: an API server, agents with kubelets, controllers that all believe to lead,
//! and the mail between them. What happens next is chosen from outside.

mod agent;
mod api;
mod invariants;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weft_ipam::{
    GrantName, MonitorSettings, NodeName, SpecWrite, Uid,
    allocator::{Allocator, AllocatorSettings, IpPool, View, Wall, Write},
    pool::Event,
};
use weft_model::{Moment, SharedStr};

pub(crate) use agent::{Agent, Complaint, Life};
pub(crate) use api::{Api, Conflict};

/// Something on its way to the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mail {
    /// A node's spec, from a process of it.
    Spec(usize, u64, SpecWrite),
    /// A controller's.
    Write(Write),
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A pod is bound and its sandbox made.
    Ask(usize, usize),
    /// Kubelet repeats an ADD that was answered.
    AskAgain(usize, usize),
    /// A pod is deleted and its sandbox removed.
    Leave(usize, usize),
    /// A pod is gone, and its DEL was lost.
    Vanish(usize, usize),
    /// The daemon makes its records durable.
    Commit(usize),
    /// The daemon dies.
    Crash(usize),
    /// The machine starts again.
    Reboot(usize),
    /// The daemon sees its config.
    See(usize),
    /// The daemon stops waiting for an answer.
    GiveUp(usize),
    /// The daemon looks for leaks.
    Sweep(usize),
    /// Mail arrives, and its answer, too.
    Deliver(usize),
    /// Mail arrives, and its answer is lost.
    DeliverSilently(usize),
    /// Mail arrives, and arrives again later.
    Duplicate(usize),
    /// Mail is lost.
    Lose(usize),
    /// A controller sees a node's config, and the Node.
    SeeConfig(usize, usize),
    /// A controller sees the shards.
    SeeShards(usize),
    /// A controller plans, and sends one of its writes.
    Plan(usize, usize),
    /// The Node object is deleted.
    RemoveNode(usize),
    /// A Node of the same name is made.
    AddNode(usize),
    /// Time passes: seconds.
    Wait(u64),
}

/// A controller with its cache, which may be older than it believes.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    pub(crate) view: View,
    pub(crate) allocator: Allocator,
}

/// The cluster.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) api: Api,
    pub(crate) agents: Vec<Agent>,
    pub(crate) controllers: Vec<Controller>,
    pub(crate) mail: Vec<Mail>,
    pub(crate) now: Moment,
    /// Every name that was ever published, for whom and for what.
    pub(crate) names: BTreeMap<GrantName, (Uid, SharedStr)>,
    /// Every name that was taken away.
    pub(crate) withdrawn: BTreeSet<GrantName>,
    /// Whether daemons make every step durable at once.
    pub(crate) prompt: bool,
}

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) pool: IpPool,
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
    pub(crate) cooldown: Duration,
    pub(crate) monitoring: MonitorSettings,
    pub(crate) prompt: bool,
}

impl Cluster {
    pub(crate) fn new(shape: &Shape) -> Self {
        let mut api = Api::new([shape.pool.clone()]);
        let agents = (0..shape.nodes).map(|index| {
            let name = format!("n{index}");
            let uid = api.add_node(&name, &[], &[]);
            Agent::new(
                &name,
                uid,
                shape.pods,
                shape.cooldown,
                shape.monitoring,
                !shape.prompt,
            )
        });
        let agents = agents.collect();
        let controller = |api: &Api| Controller {
            view: api.view.clone(),
            allocator: Allocator::new(AllocatorSettings::default()),
        };
        let mut first = controller(&api);
        let created = first.allocator.plan(&api.view, Moment::START, Wall(0));
        for write in &created.writes {
            api.write(write).unwrap();
        }
        let controllers = vec![controller(&api), controller(&api)];
        Self {
            api,
            agents,
            controllers,
            mail: Vec::new(),
            now: Moment::START,
            names: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            prompt: shape.prompt,
        }
    }

    fn exhausted(&self) -> bool {
        !self.api.view.exhausted.is_empty()
    }

    fn wall(&self) -> Wall {
        Wall(1_000_000).after(self.now.since_start())
    }

    fn node(&self, agent: usize) -> NodeName {
        self.agents[agent].node.as_str().into()
    }

    /// Lets it happen; complains if it must not.
    pub(crate) fn act(&mut self, action: Action) -> Result<(), Complaint> {
        let (now, exhausted) = (self.now, self.exhausted());
        match action {
            Action::Ask(agent, pod) => self.agents[agent].ask(pod, exhausted, now),
            Action::AskAgain(agent, pod) => self.agents[agent].ask_again(pod, exhausted, now),
            Action::Leave(agent, pod) => self.agents[agent].leave(pod, exhausted, now),
            Action::Vanish(agent, pod) => self.agents[agent].vanish(pod),
            Action::Commit(agent) => self.commit(agent)?,
            Action::Crash(agent) => self.agents[agent].crash(now)?,
            Action::Reboot(agent) => self.agents[agent].reboot(now)?,
            Action::See(agent) => self.see(agent),
            Action::GiveUp(agent) => {
                if let Some(attempt) = self.agents[agent].monitor.in_flight() {
                    self.agents[agent].answer(attempt, None, exhausted, now);
                }
            }
            Action::Sweep(agent) => self.agents[agent].sweep(exhausted, now),
            Action::Deliver(index) => {
                let mail = self.mail.remove(index);
                self.deliver(&mail, true)?;
            }
            Action::DeliverSilently(index) => {
                let mail = self.mail.remove(index);
                self.deliver(&mail, false)?;
            }
            Action::Duplicate(index) => {
                let mail = self.mail[index].clone();
                self.deliver(&mail, true)?;
            }
            Action::Lose(index) => {
                self.mail.remove(index);
            }
            Action::SeeConfig(controller, agent) => self.see_config(controller, agent),
            Action::SeeShards(controller) => {
                let view = &mut self.controllers[controller].view;
                view.shards.clone_from(&self.api.view.shards);
                view.exhausted.clone_from(&self.api.view.exhausted);
            }
            Action::Plan(controller, index) => self.plan(controller, index),
            Action::RemoveNode(agent) => {
                self.api.remove_node(&self.agents[agent].node.clone());
                // Its pods are evicted; a node that is cut off for longer than the grace, with pods
                // still running, is beyond what an allocator can know.
                for pod in 0..self.agents[agent].pods.len() {
                    self.agents[agent].vanish(pod);
                }
            }
            Action::AddNode(agent) => {
                let uid = self
                    .api
                    .add_node(&self.agents[agent].node.clone(), &[], &[]);
                self.agents[agent].rejoin(uid, now)?;
            }
            Action::Wait(seconds) => {
                self.now = self.now + Duration::from_secs(seconds);
                for agent in &mut self.agents {
                    agent.handle(Event::Tick, exhausted, self.now);
                }
            }
        }
        let harmless = matches!(
            action,
            Action::SeeConfig(..) | Action::SeeShards(_) | Action::Plan(..) | Action::Lose(_)
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

    fn commit(&mut self, agent: usize) -> Result<(), Complaint> {
        let process = self.agents[agent].process;
        for write in self.agents[agent].commit()? {
            self.mail.push(Mail::Spec(agent, process, write));
        }
        Ok(())
    }

    fn see(&mut self, agent: usize) {
        let (now, exhausted) = (self.now, self.exhausted());
        if let Some(config) = self.api.view.configs.get(&self.node(agent)).cloned() {
            self.agents[agent].see(&config, exhausted, now);
        }
    }

    fn see_config(&mut self, controller: usize, agent: usize) {
        let name = self.node(agent);
        let view = &mut self.controllers[controller].view;
        match self.api.view.configs.get(&name) {
            Some(config) => view.configs.insert(name.clone(), config.clone()),
            None => view.configs.remove(&name),
        };
        match self.api.view.nodes.get(&name) {
            Some(node) => view.nodes.insert(name, node.clone()),
            None => view.nodes.remove(&name),
        };
    }

    /// The writes that a controller would send now.
    pub(crate) fn planned(&mut self, controller: usize) -> Vec<Write> {
        let (now, wall) = (self.now, self.wall());
        let Controller { view, allocator } = &mut self.controllers[controller];
        allocator.plan(view, now, wall).writes
    }

    fn plan(&mut self, controller: usize, index: usize) {
        let mut writes = self.planned(controller);
        if index < writes.len() {
            self.mail.push(Mail::Write(writes.swap_remove(index)));
        }
    }

    fn deliver(&mut self, mail: &Mail, answered: bool) -> Result<(), Complaint> {
        match mail {
            Mail::Spec(agent, process, write) => {
                let result = self.api.write_spec(write);
                let same = self.agents[*agent].process == *process;
                if answered && same {
                    let (now, exhausted) = (self.now, self.exhausted());
                    self.agents[*agent].answer(write.attempt, result.ok(), exhausted, now);
                }
            }
            Mail::Write(write) => {
                let before = self.api.view.configs.clone();
                if self.api.write(write).is_ok() {
                    self.check_write(write, &before)?;
                }
            }
        }
        Ok(())
    }

    /// No more mishaps: everything arrives and everybody looks, until nothing changes any more.
    pub(crate) fn settle(&mut self) -> Result<(), Complaint> {
        for _ in 0..200 {
            let before = self.api.revision;
            self.empty_mail()?;
            for agent in 0..self.agents.len() {
                let waits =
                    |mail: &Mail| matches!(mail, Mail::Spec(sender, ..) if *sender == agent);
                if !self.agents[agent].has_open_steps() && !self.mail.iter().any(waits) {
                    self.act(Action::GiveUp(agent))?;
                }
            }
            for controller in 0..self.controllers.len() {
                for _ in 0..2 {
                    for agent in 0..self.agents.len() {
                        self.act(Action::SeeConfig(controller, agent))?;
                    }
                    self.act(Action::SeeShards(controller))?;
                    let writes = self.planned(controller);
                    self.mail.extend(writes.into_iter().map(Mail::Write));
                    self.empty_mail()?;
                }
            }
            for agent in 0..self.agents.len() {
                self.act(Action::See(agent))?;
                self.act(Action::Commit(agent))?;
            }
            if self.api.revision == before && self.mail.is_empty() {
                return self.check_settled();
            }
        }
        Err("never comes to rest".to_owned())
    }

    /// Everything that is under way arrives; what follows from it is sent later.
    fn empty_mail(&mut self) -> Result<(), Complaint> {
        for agent in 0..self.agents.len() {
            self.act(Action::Commit(agent))?;
        }
        for _ in 0..self.mail.len() {
            self.act(Action::Deliver(0))?;
        }
        Ok(())
    }

    /// Nodes are back, cooldowns and graces over, leaks swept; then everything comes to rest.
    pub(crate) fn evening(&mut self) -> Result<(), Complaint> {
        for agent in 0..self.agents.len() {
            if !self.api.view.nodes.contains_key(&self.node(agent)) {
                self.act(Action::AddNode(agent))?;
            }
        }
        self.settle()?;
        for _ in 0..4 {
            self.act(Action::Wait(400))?;
            for agent in 0..self.agents.len() {
                self.act(Action::Sweep(agent))?;
            }
            for controller in 0..self.controllers.len() {
                self.act(Action::Plan(controller, usize::MAX))?;
            }
        }
        self.settle()
    }
}
