//! Recovery of the simulated cluster: no more faults, until nothing changes.

use super::{Action, Cluster, Message, Violation};

impl Cluster {
    /// Delivers every message and runs every participant, until nothing changes any more.
    pub(crate) fn settle(&mut self) -> Result<(), Violation> {
        for _ in 0..200 {
            let before = self.api.revision;
            self.repair()?;
            self.deliver_all()?;
            for agent in 0..self.agents.len() {
                let waits = |message: &Message| matches!(message, Message::Spec(sender, ..) if *sender == agent);
                if !self.agents[agent].has_open_steps() && !self.messages.iter().any(waits) {
                    self.act(Action::GiveUp(agent))?;
                }
            }
            for controller in 0..self.controllers.len() {
                for _ in 0..2 {
                    for agent in 0..self.agents.len() {
                        self.act(Action::SeeConfig(controller, agent))?;
                    }
                    self.act(Action::SeeShards(controller))?;
                    let writes = self.planned(controller)?;
                    self.messages.extend(writes.into_iter().map(Message::Write));
                    self.deliver_all()?;
                }
            }
            for agent in 0..self.agents.len() {
                self.act(Action::See(agent))?;
                self.act(Action::Commit(agent))?;
            }
            if self.api.revision == before && self.messages.is_empty() {
                return self.check_settled();
            }
        }
        Err("never becomes quiescent".to_owned())
    }

    /// Daemons learn their Nodes and can write, controllers list everything.
    fn repair(&mut self) -> Result<(), Violation> {
        for agent in 0..self.agents.len() {
            if self.agents[agent].broken {
                self.act(Action::RecoverStore(agent))?;
            }
            let node = self.api.view.nodes.get(&self.node(agent));
            if node.is_some_and(|node| !self.agents[agent].serves(&node.uid)) {
                self.act(Action::LearnNode(agent))?;
            }
        }
        for controller in 0..self.controllers.len() {
            if !self.controllers[controller].view.complete {
                self.act(Action::List(controller))?;
            }
        }
        Ok(())
    }

    /// Delivers every message in flight; the messages that follow are sent later.
    fn deliver_all(&mut self) -> Result<(), Violation> {
        for agent in 0..self.agents.len() {
            self.act(Action::Commit(agent))?;
        }
        for _ in 0..self.messages.len() {
            self.act(Action::Deliver(0))?;
        }
        Ok(())
    }

    /// Nodes are back, cooldowns and grace periods over, leaks swept; then the cluster becomes
    /// quiescent.
    pub(crate) fn recover(&mut self) -> Result<(), Violation> {
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
        self.settle()?;
        self.check_orphans()
    }
}
