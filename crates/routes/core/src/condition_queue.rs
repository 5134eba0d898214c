//! Queue of node conditions to write.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use weft_model::{ExponentialDelay, SharedStr};

use crate::{ConditionChange, Moment, Reason, WriteOutcome};

/// Maximum number of writes at the same time.
const PARALLEL: usize = 16;
/// Wait after failed writes.
const RETRY: ExponentialDelay =
    ExponentialDelay::new(Duration::from_secs(1), Duration::from_secs(60));

/// Queue of conditions to write: one write at a time for each node, and only the latest condition.
#[derive(Debug, Default)]
pub struct ConditionQueue {
    wanted: BTreeMap<SharedStr, Desired>,
    writing: BTreeSet<SharedStr>,
}

#[derive(Debug)]
struct Desired {
    reason: Reason,
    at: Moment,
    failures: u32,
}

impl ConditionQueue {
    /// Replaces the condition that is to be written for a node.
    pub fn want(&mut self, change: ConditionChange, now: Moment) {
        let desired = Desired {
            reason: change.reason,
            at: now,
            failures: 0,
        };
        self.wanted.insert(change.node, desired);
    }

    /// The node was deleted.
    pub fn forget(&mut self, node: &str) {
        self.wanted.remove(node);
    }

    /// Takes the next condition to write. Report the result with [`ConditionQueue::written`].
    pub fn next(&mut self, now: Moment) -> Option<ConditionChange> {
        if self.writing.len() >= PARALLEL {
            return None;
        }
        let mut desired = self.wanted.iter();
        let (node, desired) =
            desired.find(|(node, desired)| desired.at <= now && !self.writing.contains(*node))?;
        let change = ConditionChange {
            node: node.clone(),
            reason: desired.reason,
        };
        self.writing.insert(change.node.clone());
        Some(change)
    }

    /// A write ended.
    pub fn written(&mut self, change: &ConditionChange, outcome: WriteOutcome, now: Moment) {
        self.writing.remove(&change.node);
        let Some(desired) = self.wanted.get_mut(&change.node) else {
            return;
        };
        if outcome == WriteOutcome::Failed {
            desired.failures = desired.failures.saturating_add(1);
            desired.at = now + RETRY.after(desired.failures);
        } else if desired.reason == change.reason {
            self.wanted.remove(&change.node);
        }
    }

    /// Time of the next write; `None` if there is none, or until one ends.
    pub fn wake(&self) -> Option<Moment> {
        if self.writing.len() >= PARALLEL {
            return None;
        }
        let idle = self
            .wanted
            .iter()
            .filter(|(node, _)| !self.writing.contains(*node));
        idle.map(|(_, desired)| desired.at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(reason: Reason) -> ConditionChange {
        ConditionChange {
            node: "node-1".into(),
            reason,
        }
    }

    #[test]
    fn the_latest_condition_is_written_after_the_one_before() {
        let now = Moment::START;
        let mut conditions = ConditionQueue::default();
        conditions.want(says(Reason::NoRouteCreated), now);
        let first = conditions.next(now).unwrap();
        conditions.want(says(Reason::RouteCreated), now);
        assert_eq!(conditions.next(now), None, "one at a time");
        assert_eq!(conditions.wake(), None);
        conditions.written(&first, WriteOutcome::Written, now);
        let second = conditions.next(now).unwrap();
        assert_eq!(second, says(Reason::RouteCreated));
        conditions.written(&second, WriteOutcome::Written, now);
        assert_eq!((conditions.next(now), conditions.wake()), (None, None));
    }

    #[test]
    fn a_write_that_fails_is_tried_again_after_growing_pauses() {
        let mut now = Moment::START;
        let mut conditions = ConditionQueue::default();
        conditions.want(says(Reason::RouteCreated), now);
        for seconds in [1, 2, 4, 8] {
            let change = conditions.next(now).unwrap();
            conditions.written(&change, WriteOutcome::Failed, now);
            assert_eq!(conditions.next(now), None);
            now = now + Duration::from_secs(seconds);
            assert_eq!(conditions.wake(), Some(now));
        }
        assert!(conditions.next(now).is_some());
    }
}
