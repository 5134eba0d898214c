//! Queue of the mutations of one route table.

use std::collections::{BTreeMap, HashMap, VecDeque};

use weft_model::SharedStr;

use crate::{Backoff, Budget, CallPriority, Cidr, Moment, RouteAction, Step, TableCache};

/// The mutations of one route table that wait or are under way.
///
/// Two mutations of overlapping destinations never run at the same time and keep the order of the
/// plan; others run in parallel up to the provider's limit. A new plan replaces all waiting
/// mutations, so an outdated one never starts; routes that waited before keep their place.
#[derive(Clone, Debug)]
pub struct MutationQueue {
    limit: usize,
    waiting: VecDeque<Step>,
    running: BTreeMap<Ticket, Running>,
    next: u64,
    /// Place in the queue of every route of the last plan, waiting or under way: one that fails
    /// gets its place back.
    turns: HashMap<Claim, u64>,
    next_turn: u64,
}

/// Identifies a mutation that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

#[derive(Clone, Debug)]
struct Running {
    step: Step,
    outdated: bool,
}

/// Answer of [`MutationQueue::offer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Start this mutation now.
    Go(Ticket, Box<Step>),
    /// Nothing can start before this time.
    Later(Moment),
    /// Nothing can start until a mutation ends, a list is read, or a plan comes.
    Nothing,
}

impl MutationQueue {
    /// Runs at most `limit` mutations at the same time, and at least one.
    pub fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            next: 0,
            turns: HashMap::new(),
            next_turn: 0,
        }
    }

    /// Replaces the waiting mutations by those of a new plan. Mutations under way go on; the plan
    /// was made without knowing how they end.
    ///
    /// A plan has its steps in the order of their destinations. In that order a node could wait for
    /// as long as nodes with lower ranges join; so routes that waited before keep their place. Only
    /// creates and replacements change places with each other, which keeps every delete that makes
    /// room for them where it was.
    pub fn submit(&mut self, steps: &[Step]) {
        let mut turns = HashMap::new();
        for claim in steps.iter().filter_map(claim) {
            let turn = self.turns.get(&claim).copied().unwrap_or_else(|| {
                self.next_turn += 1;
                self.next_turn
            });
            turns.insert(claim, turn);
        }
        self.turns = turns;
        let turn = |step: &Step| claim(step).and_then(|claim| self.turns.get(&claim).copied());
        let mut wanted: Vec<&Step> = steps.iter().filter(|one| one.node().is_some()).collect();
        wanted.sort_by_cached_key(|step| turn(step));
        let mut wanted = wanted.into_iter();
        let in_turn = steps.iter().map(|step| match step.node() {
            Some(_) => wanted.next().unwrap_or(step),
            None => step,
        });
        self.waiting = in_turn.cloned().collect();
        for running in self.running.values_mut() {
            running.outdated = true;
        }
    }

    /// Takes the next mutation that may start now.
    pub fn offer(
        &mut self,
        backoff: &Backoff,
        budget: &Budget,
        cache: &TableCache,
        now: Moment,
    ) -> Offer {
        if self.running.len() >= self.limit || self.waiting.is_empty() {
            return Offer::Nothing;
        }
        let mut held: Vec<&Step> = Vec::new();
        let mut soonest: Option<Moment> = None;
        let mut found = None;
        for (place, step) in self.waiting.iter().enumerate() {
            let collides = self.running.values().any(|other| other.step.collides(step))
                || step.wanted().is_some() && held.iter().any(|other| other.collides(step));
            let ready = backoff
                .ready_at(step)
                .max(budget.ready_at(priority(step), now));
            let doubtful = cache.is_doubtful(step.destination());
            if !collides && !doubtful && ready <= now {
                found = Some(place);
                break;
            }
            if !collides && !doubtful {
                soonest = Some(soonest.map_or(ready, |known| known.min(ready)));
            }
            // Wanted routes never overlap each other; only a delete can block another step.
            if matches!(step.action, RouteAction::Delete { .. }) {
                held.push(step);
            }
        }
        if let Some(step) = found.and_then(|place| self.waiting.remove(place)) {
            let ticket = Ticket(self.next);
            self.next += 1;
            let running = Running {
                step: step.clone(),
                outdated: false,
            };
            self.running.insert(ticket, running);
            return Offer::Go(ticket, Box::new(step));
        }
        soonest.map_or(Offer::Nothing, Offer::Later)
    }

    /// A mutation ended. Returns it, and whether a plan was submitted since it started. That plan
    /// did not know the outcome, so its steps for overlapping destinations are dropped until the
    /// next plan.
    pub fn ended(&mut self, ticket: Ticket) -> Option<(Step, bool)> {
        let running = self.running.remove(&ticket)?;
        if running.outdated {
            self.waiting.retain(|step| !step.collides(&running.step));
        }
        Some((running.step, running.outdated))
    }

    /// Puts a failed mutation back to the front of the queue.
    pub fn put_back(&mut self, step: Step) {
        self.waiting.push_front(step);
    }

    /// Destinations with a mutation under way.
    pub fn under_way(&self) -> impl Iterator<Item = &Cidr> {
        self.running
            .values()
            .map(|running| running.step.destination())
    }

    /// True if nothing waits and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }
}

/// Destination and node of a wanted route.
type Claim = (Cidr, SharedStr);

fn claim(step: &Step) -> Option<Claim> {
    Some((step.destination().clone(), step.node()?.clone()))
}

/// Priority of a step in the budget of calls.
pub(crate) fn priority(step: &Step) -> CallPriority {
    match step.action {
        RouteAction::Create { .. } | RouteAction::Replace { .. } => CallPriority::Create,
        RouteAction::Delete { .. } => CallPriority::Delete,
    }
}
