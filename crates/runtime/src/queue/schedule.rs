//! Schedule of ready keys: by priority, first come first served, fair between groups, with ageing
//! so that no key starves.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::Priority;

/// The ready keys of a queue.
///
/// A key that moves to another priority leaves its old entry behind; only the entry with the key's
/// current ticket is valid, so that moving costs no search.
#[derive(Debug)]
pub(super) struct Schedule<Q> {
    levels: BTreeMap<Priority, Level<Q>>,
    ageing: Duration,
}

/// Keys of one priority: groups take turns, each group is first come, first served.
#[derive(Debug)]
struct Level<Q> {
    turns: VecDeque<Group>,
    groups: HashMap<Group, VecDeque<Ready<Q>>>,
}

/// Unit of fairness, a hash of the caller's choice.
pub(super) type Group = u64;

/// An entry of the schedule.
#[derive(Debug)]
pub(super) struct Ready<Q> {
    pub(super) key: Q,
    pub(super) ticket: u64,
    pub(super) since: Instant,
}

impl<Q> Schedule<Q> {
    pub(super) fn new(ageing: Duration) -> Self {
        Self {
            levels: BTreeMap::new(),
            ageing,
        }
    }

    pub(super) fn push(&mut self, priority: Priority, group: Group, ready: Ready<Q>) {
        self.levels
            .entry(priority)
            .or_insert_with(Level::new)
            .push(group, ready);
    }

    /// The next entry. The caller drops it if its ticket is not the key's current one.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(Priority, Ready<Q>)> {
        let priority = self.choose(now)?;
        let level = self.levels.get_mut(&priority)?;
        let ready = level.pop()?;
        if level.turns.is_empty() && self.levels.len() > 1 {
            self.levels.remove(&priority);
        }
        Some((priority, ready))
    }

    pub(super) fn clear(&mut self) {
        self.levels.clear();
    }

    /// The highest level, unless a key of a lower one has waited longer than the ageing time: then
    /// the one that waited longest.
    fn choose(&self, now: Instant) -> Option<Priority> {
        let mut levels = self
            .levels
            .iter()
            .rev()
            .filter(|(_, level)| !level.turns.is_empty());
        let (highest, _) = levels.next()?;
        let aged = levels
            .filter_map(|(priority, level)| Some((level.oldest()?, priority)))
            .filter(|(since, _)| now.duration_since(*since) >= self.ageing)
            .min_by_key(|(since, _)| *since);
        Some(aged.map_or(*highest, |(_, priority)| *priority))
    }
}

impl<Q> Level<Q> {
    fn new() -> Self {
        Self {
            turns: VecDeque::new(),
            groups: HashMap::new(),
        }
    }

    fn push(&mut self, group: Group, ready: Ready<Q>) {
        let queue = self.groups.entry(group).or_default();
        if queue.is_empty() {
            self.turns.push_back(group);
        }
        queue.push_back(ready);
    }

    fn pop(&mut self) -> Option<Ready<Q>> {
        let group = self.turns.pop_front()?;
        let queue = self.groups.get_mut(&group)?;
        let ready = queue.pop_front();
        if !queue.is_empty() {
            self.turns.push_back(group);
        } else if self.groups.len() > 1 {
            self.groups.remove(&group);
        }
        ready
    }

    fn oldest(&self) -> Option<Instant> {
        self.groups
            .values()
            .filter_map(|queue| queue.front())
            .map(|ready| ready.since)
            .min()
    }
}
