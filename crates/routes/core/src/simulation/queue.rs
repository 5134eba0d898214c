//! Model of the work queue of upstream's watch mode, for comparison.

use std::time::Duration;

use crate::{Moment, Node, PassEnd, PassTimer};

/// Time in which the bucket gains one token, and the longest wait for one.
const PERIOD: Duration = Duration::from_secs(10);

/// Pass timer of upstream's watch mode: one key in a queue behind a bucket of one token every ten
/// seconds, each wait capped at ten seconds.
///
/// Every accepted event takes a token, also one that is merged with a waiting one; so events run up
/// a debt during which each of them waits for the full ten seconds. Only a model: the resync every
/// 12 to 24 hours, one or two passes a day, is left out.
#[derive(Clone, Debug)]
pub struct TokenQueue {
    tokens: f64,
    at: Moment,
    queued: Option<Moment>,
    delayed: Option<Moment>,
}

impl Default for TokenQueue {
    fn default() -> Self {
        Self {
            tokens: 1.0,
            at: Moment::START,
            queued: None,
            delayed: None,
        }
    }
}

impl TokenQueue {
    fn add(&mut self, now: Moment) {
        self.settle(now);
        let gained = now.since(self.at).as_secs_f64() / PERIOD.as_secs_f64();
        self.tokens = (self.tokens + gained).min(1.0) - 1.0;
        self.at = now;
        if self.tokens >= 0.0 {
            self.queued.get_or_insert(now);
            return;
        }
        let due = now + PERIOD.mul_f64(-self.tokens).min(PERIOD);
        self.delayed = Some(self.delayed.map_or(due, |known| known.min(due)));
    }

    /// Moves the delayed key to the queue when its wait is over; it is merged with a queued one.
    fn settle(&mut self, now: Moment) {
        if let Some(due) = self.delayed
            && due <= now
        {
            self.queued.get_or_insert(due);
            self.delayed = None;
        }
    }

    /// Upstream's filter of node events: every add and delete, and every update of ranges or
    /// addresses.
    pub fn accepts(old: Option<&Node>, new: Option<&Node>) -> bool {
        match (old, new) {
            (Some(old), Some(new)) => {
                old.pod_cidrs != new.pod_cidrs || old.addresses != new.addresses
            }
            _ => true,
        }
    }
}

impl PassTimer for TokenQueue {
    fn node_changed(&mut self, old: Option<&Node>, new: Option<&Node>, now: Moment) {
        if Self::accepts(old, new) {
            self.add(now);
        }
    }

    fn due(&self) -> Option<Moment> {
        [self.queued, self.delayed].into_iter().flatten().min()
    }

    fn started(&mut self, now: Moment) {
        self.settle(now);
        self.queued = None;
    }

    fn ended(&mut self, end: PassEnd, now: Moment) {
        if end == PassEnd::ListFailed {
            self.add(now);
        }
    }
}
