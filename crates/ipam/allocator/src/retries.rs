//! Decides which planned writes are tried now, and when to plan again.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use weft_ipam::allocator::Write;
use weft_model::{ExponentialDelay, Moment};

/// Delay after failures. The first is short, since other processes write as well.
const RETRY: ExponentialDelay =
    ExponentialDelay::new(Duration::from_millis(10), Duration::from_secs(30));

/// Failures of writes in one run.
#[derive(Debug, Default)]
pub(super) struct Retries {
    failures: u32,
    /// Writes that the API server refused. Each backs off on its own: a refusal of one object says
    /// nothing about the others. A different write to the object is tried at once.
    refused: HashMap<Write, Refused>,
}

#[derive(Debug)]
struct Refused {
    again: Moment,
    times: u32,
}

/// The end of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Written,
    /// The API server refused this write.
    Refused,
    /// Another process was faster, the lease ended, or a precondition was not met: the next plan
    /// starts from the objects observed then.
    Failed,
}

impl Retries {
    /// The planned writes to try now.
    pub(super) fn due(&mut self, writes: Vec<Write>, now: Moment) -> Vec<Write> {
        if writes.is_empty() {
            self.failures = 0;
        }
        let planned: HashSet<&Write> = writes.iter().collect();
        self.refused.retain(|write, _| planned.contains(write));
        let refused = &self.refused;
        let waits = |write: &Write| refused.get(write).is_some_and(|one| one.again > now);
        let due = writes.into_iter();
        due.filter(|write| !waits(write)).collect()
    }

    /// Time of the next try of a refused write.
    pub(super) fn wake(&self) -> Option<Moment> {
        self.refused.values().map(|one| one.again).min()
    }

    /// The writes of a plan ended. Returns when to plan again: they may be the first of several
    /// steps.
    pub(super) fn ended(
        &mut self,
        endings: impl IntoIterator<Item = (Write, Ending)>,
        now: Moment,
    ) -> Option<Moment> {
        let (mut failed, mut written) = (false, false);
        for (write, ending) in endings {
            match ending {
                Ending::Written => {
                    written = true;
                    self.refused.remove(&write);
                }
                Ending::Failed => failed = true,
                Ending::Refused => {
                    let times = self.refused.get(&write).map_or(0, |one| one.times) + 1;
                    let again = now + RETRY.after(times);
                    self.refused.insert(write, Refused { again, times });
                }
            }
        }
        self.failures = if failed { self.failures + 1 } else { 0 };
        let next = (failed || written).then(|| now + RETRY.after(self.failures));
        next.into_iter().chain(self.wake()).min()
    }

    /// Planning failed. Returns when to try again.
    pub(super) fn plan_failed(&mut self, now: Moment) -> Moment {
        self.failures = self.failures.saturating_add(1);
        now + RETRY.after(self.failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(pool: &str) -> Write {
        Write::AddPoolFinalizer(pool.into())
    }

    #[test]
    fn a_refused_write_waits_on_its_own_and_is_forgotten_when_it_is_no_longer_planned() {
        let mut retries = Retries::default();
        let now = Moment::seconds(1);
        let again = retries.ended(
            [(write("a"), Ending::Refused), (write("b"), Ending::Written)],
            now,
        );
        assert_eq!(again, Some(now + RETRY.after(1)));
        let planned = vec![write("a"), write("c")];
        assert_eq!(retries.due(planned, now), [write("c")]);
        let later = now + RETRY.after(1);
        assert_eq!(retries.due(vec![write("a")], later), [write("a")]);
        let again = retries.ended([(write("a"), Ending::Refused)], later);
        assert_eq!(again, Some(later + RETRY.after(2)), "it backs off");
        assert_eq!(retries.due(Vec::new(), later), []);
        assert_eq!(retries.due(vec![write("a")], later), [write("a")]);
    }

    #[test]
    fn conflicts_are_retried_at_once_and_then_less_often() {
        let mut retries = Retries::default();
        let now = Moment::START;
        let mut after = || retries.ended([(write("a"), Ending::Failed)], now);
        let waits = [after(), after(), after()].map(|at| at.unwrap().since(now).as_millis());
        assert_eq!(waits, [10, 20, 40]);
    }
}
