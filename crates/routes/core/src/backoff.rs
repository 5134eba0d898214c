//! Backoff of route changes, per destination and kind of error.

use std::{collections::BTreeMap, time::Duration};

use weft_model::SharedStr;

use crate::{Cidr, Moment, NextHop, ProviderError, Random, RouteAction, Step};

/// Retry times of routes whose change failed.
///
/// Every destination has its own wait, by the kind of its last error: a node that is not attached
/// yet does not delay other nodes.
#[derive(Clone, Debug, Default)]
pub struct Backoff {
    entries: BTreeMap<Cidr, Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    subject: Subject,
    failures: u32,
    until: Moment,
    error: ProviderError,
}

/// The change that failed; another change of the same destination starts without a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Subject {
    node: Option<SharedStr>,
    uid: Option<SharedStr>,
    next_hop: Option<NextHop>,
}

impl Subject {
    fn of(step: &Step) -> Self {
        match &step.action {
            RouteAction::Create { new, .. } | RouteAction::Replace { new, .. } => Self {
                node: Some(new.node.clone()),
                uid: Some(new.uid.clone()),
                next_hop: new.next_hop.clone(),
            },
            RouteAction::Delete { old, .. } => Self {
                node: None,
                uid: None,
                next_hop: old.next_hop.clone(),
            },
        }
    }
}

/// First wait, growth, and longest wait after an error.
fn waits(error: &ProviderError) -> (Duration, f64, Duration) {
    let millis = Duration::from_millis;
    let seconds = Duration::from_secs;
    match error {
        ProviderError::Locked => (millis(500), 1.5, seconds(10)),
        ProviderError::Retry(_) | ProviderError::Uncertain | ProviderError::Conflict => {
            (seconds(1), 2.0, seconds(60))
        }
        ProviderError::NotReady(_) => (seconds(2), 2.0, seconds(60)),
        // The budget delays all calls; the route itself did nothing wrong.
        ProviderError::RateLimited { .. } => (Duration::ZERO, 1.0, Duration::ZERO),
        ProviderError::Garbage(_) => (seconds(5), 2.0, seconds(600)),
        ProviderError::Quota | ProviderError::Forbidden | ProviderError::Gone => {
            (seconds(60), 2.0, seconds(900))
        }
        ProviderError::Invalid(_) => (seconds(1800), 1.0, seconds(1800)),
    }
}

/// The wait after a number of failures of one kind, with jitter so that routes that failed together
/// are not retried together: between three quarters and the whole.
pub(crate) fn wait(error: &ProviderError, failures: u32, random: &mut Random) -> Duration {
    let (first, growth, longest) = waits(error);
    let exponent = i32::try_from(failures.saturating_sub(1).min(30)).unwrap_or(30);
    let seconds = (first.as_secs_f64() * growth.powi(exponent)).min(longest.as_secs_f64());
    Duration::from_secs_f64(seconds).mul_f64(0.75 + random.fraction() / 4.0)
}

impl Backoff {
    /// A step failed. Returns when it may be tried again.
    pub fn failed(
        &mut self,
        step: &Step,
        error: &ProviderError,
        now: Moment,
        random: &mut Random,
    ) -> Moment {
        let subject = Subject::of(step);
        let known = self.entries.get(step.destination());
        let failures = match known {
            // An error of another kind starts a new series.
            Some(entry)
                if entry.subject == subject
                    && std::mem::discriminant(&entry.error) == std::mem::discriminant(error) =>
            {
                entry.failures.saturating_add(1)
            }
            _ => 1,
        };
        let until = now + wait(error, failures, random);
        let entry = Entry {
            subject,
            failures,
            until,
            error: error.clone(),
        };
        self.entries.insert(step.destination().clone(), entry);
        until
    }

    /// A step was done. A delete makes room for those that wait for the quota.
    pub fn succeeded(&mut self, step: &Step) {
        self.entries.remove(step.destination());
        if matches!(step.action, RouteAction::Delete { .. }) {
            self.entries
                .retain(|_, entry| entry.error != ProviderError::Quota);
        }
    }

    /// A node changed: its failed routes may be tried at once.
    pub fn node_changed(&mut self, node: &str) {
        let about = |entry: &Entry| entry.subject.node.as_deref() == Some(node);
        self.entries.retain(|_, entry| !about(entry));
    }

    /// The table was changed from outside: an unreachable gateway may be reachable now.
    pub fn table_changed(&mut self) {
        let waits = |entry: &Entry| matches!(entry.error, ProviderError::NotReady(_));
        self.entries.retain(|_, entry| !waits(entry));
    }

    /// Forgets destinations that nothing is planned for.
    pub fn retain(&mut self, mut planned: impl FnMut(&Cidr) -> bool) {
        self.entries.retain(|destination, _| planned(destination));
    }

    /// Earliest time at which a step may be tried.
    pub fn ready_at(&self, step: &Step) -> Moment {
        match self.entries.get(step.destination()) {
            Some(entry) if entry.subject == Subject::of(step) => entry.until,
            _ => Moment::START,
        }
    }

    /// The last error of each destination that waits for a retry.
    pub fn errors(&self) -> impl Iterator<Item = (&Cidr, &ProviderError)> {
        self.entries
            .iter()
            .map(|(destination, entry)| (destination, &entry.error))
    }
}
