use std::collections::{BTreeMap, HashMap, VecDeque};

use weft_model::SharedStr;

use crate::{Action, Backoff, Budget, Cidr, Moment, Priority, Step, TableCache};

/// Mutations on one route table: which wait, which are under way, and what may go next.
///
/// Two mutations on overlapping destinations never run at once and keep the order of the plan;
/// others run side by side up to the provider's limit. The newest plan replaces whatever was
/// waiting, so nothing outdated is ever begun; whoever waited already comes before newcomers.
#[derive(Clone, Debug)]
pub struct MutationQueue {
    limit: usize,
    waiting: VecDeque<Step>,
    running: BTreeMap<Ticket, Running>,
    next: u64,
    /// Whose turn it is first, of those that the last plan had, under way or not: one that fails
    /// comes back to its place.
    turns: HashMap<Claim, u64>,
    next_turn: u64,
}

/// Names a mutation that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

#[derive(Clone, Debug)]
struct Running {
    step: Step,
    outdated: bool,
}

/// What the lane has to offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Do this now.
    Go(Ticket, Box<Step>),
    /// Nothing before that moment.
    Later(Moment),
    /// Nothing until something under way ends, a list is read, or a plan comes.
    Nothing,
}

impl MutationQueue {
    /// For a provider that takes so many mutations at once.
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

    /// A new plan: what waited and is not in it is forgotten. What is under way ends first, and
    /// whoever planned did not know how.
    ///
    /// A plan has its steps in the order of their destinations. Kept to, it would let a node wait
    /// for as long as others with lower ranges join; so routes that waited before keep their turn.
    /// Only they change places among each other, which no delete that makes room for them feels.
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

    /// The next mutation that may begin.
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
            // Wanted routes never overlap one another; only a delete can be in somebody's way.
            if matches!(step.action, Action::Delete { .. }) {
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

    /// A mutation ended. Returns it, and whether a plan was made since it began: then whatever
    /// that plan wants with the destination was wanted without knowing the end, and is dropped
    /// until there is another plan.
    pub fn ended(&mut self, ticket: Ticket) -> Option<(Step, bool)> {
        let running = self.running.remove(&ticket)?;
        if running.outdated {
            self.waiting.retain(|step| !step.collides(&running.step));
        }
        Some((running.step, running.outdated))
    }

    /// A mutation that failed waits again, unless a newer plan has its own idea.
    pub fn put_back(&mut self, step: Step) {
        self.waiting.push_front(step);
    }

    /// Destinations with a mutation under way.
    pub fn under_way(&self) -> impl Iterator<Item = &Cidr> {
        self.running
            .values()
            .map(|running| running.step.destination())
    }

    /// Whether nothing waits and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }
}

/// Who waits for a route, and where to.
type Claim = (Cidr, SharedStr);

fn claim(step: &Step) -> Option<Claim> {
    Some((step.destination().clone(), step.node()?.clone()))
}

/// What a step may spend the budget on.
pub(crate) fn priority(step: &Step) -> Priority {
    match step.action {
        Action::Create { .. } | Action::Replace { .. } => Priority::Create,
        Action::Delete { .. } => Priority::Delete,
    }
}
