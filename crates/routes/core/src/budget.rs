//! Budget of calls under the provider's rate limit.

use std::time::Duration;

use weft_model::ExponentialDelay;

use crate::Moment;

/// The calls that the provider still allows, as its answers report them, shared out by
/// [`CallPriority`].
///
/// Autoscalers, volume drivers and people use the same limit, so a reserve is left: creates may use
/// everything, because a node waits for them; deletes leave a tenth, verification a quarter.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    known: Option<Known>,
    paused_until: Option<Moment>,
    strikes: u32,
}

/// Upper bound of every wait. Numbers in answers are untrusted: none may stop the controller for
/// good.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);

/// Wait after refusals whose answers name no time.
const GUESS: ExponentialDelay =
    ExponentialDelay::new(Duration::from_secs(1), Duration::from_secs(60));

#[derive(Clone, Copy, Debug)]
struct Known {
    limit: f64,
    remaining: f64,
    per_second: f64,
    at: Moment,
}

/// The rate limit as the headers of a response report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Capacity of the token bucket, in calls.
    pub limit: u32,
    /// Calls left in the bucket.
    pub remaining: u32,
    /// Time until the bucket is full again.
    pub reset_after: Duration,
}

/// Purpose of a call, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallPriority {
    /// A create: a node waits for it.
    Create,
    /// A delete: the route may take up quota or an address.
    Delete,
    /// A list that only verifies the table.
    Verify,
}

impl CallPriority {
    fn reserve(self) -> f64 {
        match self {
            Self::Create => 0.0,
            Self::Delete => 0.1,
            Self::Verify => 0.25,
        }
    }
}

impl Budget {
    /// A response reported the rate limit.
    pub fn observe(&mut self, rate: RateLimit, now: Moment) {
        let (limit, remaining) = (f64::from(rate.limit), f64::from(rate.remaining));
        let reset = rate.reset_after.as_secs_f64();
        let per_second = match self.known {
            _ if reset > 0.0 && remaining < limit => (limit - remaining) / reset,
            Some(known) => known.per_second,
            None => 0.0,
        };
        self.known = Some(Known {
            limit,
            remaining,
            per_second,
            at: now,
        });
    }

    /// A call is made.
    pub fn spend(&mut self) {
        if let Some(known) = &mut self.known {
            known.remaining = (known.remaining - 1.0).max(0.0);
        }
    }

    /// The provider refused a call because of its rate limit. Without a time to wait in the answer
    /// the wait doubles with every refusal, up to a minute.
    pub fn limited(&mut self, after: Option<Duration>, now: Moment) {
        self.strikes = self.strikes.saturating_add(1);
        let guess = || GUESS.after(self.strikes);
        let until = now + after.unwrap_or_else(guess).min(LONGEST_PAUSE);
        self.paused_until = self.paused_until.max(Some(until));
    }

    /// A call succeeded: the next guessed wait starts at a second again.
    pub fn answered(&mut self) {
        self.strikes = 0;
    }

    /// Estimated calls left; `None` where the provider reports none.
    pub fn remaining(&self, now: Moment) -> Option<f64> {
        self.known.map(|known| known.at_moment(now))
    }

    /// Earliest time at which a call of this priority may be made.
    pub fn ready_at(&self, priority: CallPriority, now: Moment) -> Moment {
        let open = self.paused_until.unwrap_or_default().max(now);
        let Some(known) = self.known else {
            return open;
        };
        let missing = priority.reserve() * known.limit + 1.0 - known.at_moment(open);
        if missing <= 0.0 || known.per_second <= 0.0 {
            return open;
        }
        let wait = Duration::try_from_secs_f64(missing / known.per_second).unwrap_or(LONGEST_PAUSE);
        // A nanosecond more than needed, so that rounding never gives a time too early. The bound
        // counts from the answer: counted from now, the wait would never end.
        let refilled = open + wait.saturating_add(Duration::from_nanos(1));
        refilled.min((known.at + LONGEST_PAUSE).max(open))
    }
}

impl Known {
    fn at_moment(&self, now: Moment) -> f64 {
        let gained = now.since(self.at).as_secs_f64() * self.per_second;
        (self.remaining + gained).min(self.limit)
    }
}
