//! Walks a packet through the chains that one hook of the kernel leads to.

use std::net::{IpAddr, SocketAddr};

use super::{
    Action, Chance, Doubt, Outcome, Packet, Step, Verdict,
    condition::{Applies, evaluate},
};
use crate::{ChainName, Rule, Ruleset, SavedRule, Table, Target};

/// Number of chains and branches to follow before the rest is left undecided. The largest known
/// Service has some thousand endpoints, two chains each.
const BUDGET: usize = 100_000;

/// Number of nested jumps to follow. nf_tables stops at 16.
const DEPTH: usize = 64;

/// The packet and its path so far.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) destination: IpAddr,
    pub(super) destination_port: u16,
    pub(super) mark: u32,
    pub(super) is_translated: bool,
    pub(super) passage: Passage,
    is_masqueraded: bool,
    probability: f64,
    path: Vec<Step>,
}

/// The stage of a packet, which decides its input interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// On the interface on which it arrived, or on none if this node sends it.
    Inside,
    /// On its way out, without an input interface.
    Leaving,
    /// Arriving on the loopback interface after this node sent it to itself.
    Back,
}

/// The result of a built-in chain.
pub(super) enum End {
    Passed,
    Stopped(Verdict),
}

/// The result of any chain.
enum Exit {
    /// Continues after the jump.
    Returned,
    /// Accepted in this table.
    Accepted,
    Stopped(Verdict),
}

impl State {
    pub(super) fn new(packet: &Packet) -> Self {
        Self {
            destination: packet.destination,
            destination_port: packet.destination_port,
            mark: packet.mark,
            is_translated: false,
            passage: Passage::Inside,
            is_masqueraded: false,
            probability: 1.0,
            path: Vec::new(),
        }
    }

    pub(super) fn route(&mut self, packet: &Packet) {
        let to_this_node = packet.is_local(self.destination);
        let destination = self.destination;
        self.path.push(Step::Routed {
            destination,
            to_this_node,
        });
    }

    pub(super) fn finish(self, packet: &Packet, stopped: Option<Verdict>) -> Outcome {
        let address = SocketAddr::new(self.destination, self.destination_port);
        let sent_to = SocketAddr::new(packet.destination, packet.destination_port);
        let arrived = if address == sent_to && !self.is_translated {
            Verdict::Accepted
        } else {
            Verdict::Dnat(address)
        };
        Outcome {
            probability: self.probability,
            verdict: stopped.unwrap_or(arrived),
            masqueraded: self.is_masqueraded && stopped.is_none(),
            path: self.path,
        }
    }
}

pub(super) struct Walker<'a> {
    ruleset: &'a Ruleset,
    packet: &'a Packet,
    budget: usize,
}

/// A branch that is not finished.
struct Open {
    state: State,
    rule: usize,
    /// Share of the packets that entered the chain and passed its random matches so far.
    left: f64,
    /// Set for a branch that has ended and only waits for its turn.
    ended: Option<Exit>,
}

impl<'a> Walker<'a> {
    pub(super) fn new(ruleset: &'a Ruleset, packet: &'a Packet) -> Self {
        Self {
            ruleset,
            packet,
            budget: BUDGET,
        }
    }

    /// Walks through a built-in chain and applies its policy.
    pub(super) fn hook(
        &mut self,
        table: Table,
        chain: ChainName,
        mut state: State,
    ) -> Vec<(End, State)> {
        let is_leaving = chain.as_str() == "POSTROUTING";
        if is_leaving {
            state.passage = Passage::Leaving;
        }
        let policy = self.ruleset.chain(table, chain).and_then(|c| c.policy);
        let exits = self.chain(table, &mut vec![chain], state);
        let end = |(exit, mut state): (Exit, State)| {
            if is_leaving {
                state.passage = Passage::Back;
            }
            let end = match (exit, policy.and_then(|p| p.verdict().map(|v| (p, v)))) {
                (Exit::Stopped(verdict), _) => End::Stopped(verdict),
                (Exit::Returned, Some((policy, verdict))) => {
                    state.path.push(Step::Policy {
                        table,
                        chain,
                        policy,
                    });
                    End::Stopped(verdict)
                }
                (Exit::Returned | Exit::Accepted, _) => End::Passed,
            };
            (end, state)
        };
        exits.into_iter().map(end).collect()
    }

    /// Walks through the last chain of the path, and those that it jumps to.
    fn chain(
        &mut self,
        table: Table,
        way: &mut Vec<ChainName>,
        state: State,
    ) -> Vec<(Exit, State)> {
        let Some(chain) = way.last().copied() else {
            return Vec::new();
        };
        let rules = self.ruleset.rules(table, chain);
        let mut exits = Vec::new();
        let mut open = vec![Open {
            state,
            rule: 0,
            left: 1.0,
            ended: None,
        }];
        while let Some(mut place) = open.pop() {
            if let Some(exit) = place.ended.take() {
                exits.push((exit, place.state));
                continue;
            }
            if self.budget == 0 {
                exits.push((Exit::Stopped(Verdict::Unresolved), place.state));
                continue;
            }
            self.budget -= 1;
            self.follow(table, way, rules, place, &mut open, &mut exits);
        }
        exits
    }

    /// Continues to the first rule that ends the chain, jumps or branches.
    fn follow(
        &mut self,
        table: Table,
        way: &mut Vec<ChainName>,
        rules: &[SavedRule],
        mut place: Open,
        open: &mut Vec<Open>,
        exits: &mut Vec<(Exit, State)>,
    ) {
        let here = Place {
            table,
            chain: way[way.len() - 1],
            depth: way.len() - 1,
        };
        while let Some(saved) = rules.get(place.rule) {
            place.rule += 1;
            let (rule, probability) = match (evaluate(saved, self.packet, &place.state), saved) {
                (Applies::Yes(probability), SavedRule::Known(rule)) if probability > 0.0 => {
                    (rule, probability)
                }
                (Applies::Unknown(doubt), _) => {
                    place.state.path.push(here.doubt(saved, doubt));
                    continue;
                }
                _ => continue,
            };
            let chance = Chance {
                of_the_rest: probability,
                of_all: probability * place.left,
            };
            if probability < 1.0 {
                let mut passed_over = place.state.clone();
                passed_over.probability *= 1.0 - probability;
                open.push(Open {
                    state: passed_over,
                    rule: place.rule,
                    left: place.left * (1.0 - probability),
                    ended: None,
                });
                place.state.probability *= probability;
                place.left *= probability;
            }
            let action = self.act(table, rule, &mut place.state);
            let step = here.step(rule, chance, action);
            place.state.path.push(step);
            match action {
                Action::Continue | Action::SetMark(_) => {}
                Action::Jump { chain, .. } => {
                    self.jump(table, way, chain, place, open, exits);
                    return;
                }
                ending => {
                    exits.push((exit(ending), place.state));
                    return;
                }
            }
        }
        exits.push((Exit::Returned, place.state));
    }

    fn jump(
        &mut self,
        table: Table,
        way: &mut Vec<ChainName>,
        target: ChainName,
        mut place: Open,
        open: &mut Vec<Open>,
        exits: &mut Vec<(Exit, State)>,
    ) {
        let (chain, depth) = (target, way.len());
        let dead_end = if way.contains(&target) {
            Some(Step::Loop { chain, depth })
        } else {
            (depth > DEPTH).then_some(Step::TooDeep { chain, depth })
        };
        if let Some(step) = dead_end {
            place.state.path.push(step);
            exits.push((Exit::Stopped(Verdict::Unresolved), place.state));
            return;
        }
        way.push(target);
        let inner = self.chain(table, way, place.state);
        way.pop();
        // The last one is pushed first: branches come out in the order of their rules.
        for (exit, state) in inner.into_iter().rev() {
            open.push(Open {
                state,
                rule: place.rule,
                left: place.left,
                ended: match exit {
                    Exit::Returned => None,
                    ended => Some(ended),
                },
            });
        }
    }

    /// Applies the rule's target to the packet.
    fn act(&self, table: Table, rule: &Rule, state: &mut State) -> Action {
        match rule.target {
            None => Action::Continue,
            Some(Target::Jump(chain)) => Action::Jump {
                chain,
                endpoint: self.endpoint(table, chain),
            },
            Some(Target::Accept) => Action::Accept,
            Some(Target::Drop) => Action::Drop,
            Some(Target::Return) => Action::Return,
            Some(Target::Reject(_)) => Action::Reject,
            Some(Target::SetMark { value, mask }) => {
                state.mark = (state.mark & !mask) ^ value;
                Action::SetMark(state.mark)
            }
            Some(Target::Masquerade { .. }) => {
                state.is_masqueraded = true;
                Action::Masquerade
            }
            Some(Target::Dnat(address)) => {
                state.destination = address.ip();
                state.destination_port = address.port();
                state.is_translated = true;
                Action::Dnat(address)
            }
        }
    }

    /// The destination of an endpoint's chain, if it sends everything there.
    fn endpoint(&self, table: Table, chain: ChainName) -> Option<SocketAddr> {
        if !chain.as_str().starts_with("KUBE-SEP-") {
            return None;
        }
        let mut rules = self.ruleset.rules(table, chain).iter();
        rules.find_map(|rule| match rule.known()?.target {
            Some(Target::Dnat(address)) => Some(address),
            _ => None,
        })
    }
}

fn exit(action: Action) -> Exit {
    match action {
        Action::Drop => Exit::Stopped(Verdict::Dropped),
        Action::Reject => Exit::Stopped(Verdict::Rejected),
        Action::Return => Exit::Returned,
        Action::Accept
        | Action::Dnat(_)
        | Action::Masquerade
        | Action::Continue
        | Action::SetMark(_)
        | Action::Jump { .. } => Exit::Accepted,
    }
}

/// The position of a step.
#[derive(Clone, Copy)]
struct Place {
    table: Table,
    chain: ChainName,
    depth: usize,
}

impl Place {
    fn step(self, rule: &Rule, chance: Chance, action: Action) -> Step {
        Step::Rule {
            table: self.table,
            chain: self.chain,
            depth: self.depth,
            rule: rule.clone(),
            chance,
            action,
        }
    }

    fn doubt(self, rule: &SavedRule, doubt: Doubt) -> Step {
        Step::Doubtful {
            table: self.table,
            chain: self.chain,
            depth: self.depth,
            rule: rule.clone(),
            doubt,
        }
    }
}
