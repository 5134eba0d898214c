use std::{collections::BTreeMap, time::Duration};

use weft_model::SharedStr;

use crate::{Action, Cidr, Moment, NextHop, ProviderError, Random, Step};

/// Which routes have to wait after a failure, and how long.
///
/// Every destination waits for itself, by what went wrong with it: a node that is not attached
/// yet does not slow down its neighbours.
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

/// What was tried; if something else is wanted for the destination, the past does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Subject {
    node: Option<SharedStr>,
    uid: Option<SharedStr>,
    next_hop: Option<NextHop>,
}

impl Subject {
    fn of(step: &Step) -> Self {
        match &step.action {
            Action::Create { new, .. } | Action::Replace { new, .. } => Self {
                node: Some(new.node.clone()),
                uid: Some(new.uid.clone()),
                next_hop: new.next_hop.clone(),
            },
            Action::Delete { old, .. } => Self {
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
        // The budget holds everybody back; the route itself is not to blame.
        ProviderError::RateLimited { .. } => (Duration::ZERO, 1.0, Duration::ZERO),
        ProviderError::Garbage(_) => (seconds(5), 2.0, seconds(600)),
        ProviderError::Quota | ProviderError::Forbidden | ProviderError::Gone => {
            (seconds(60), 2.0, seconds(900))
        }
        ProviderError::Invalid(_) => (seconds(1800), 1.0, seconds(1800)),
    }
}

/// The wait after so many failures of a kind, with jitter so that what failed together does not
/// come back together: between three quarters and the whole.
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
            // A rate limit says nothing about the route, and an error of another kind starts anew.
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
        if matches!(step.action, Action::Delete { .. }) {
            self.entries
                .retain(|_, entry| entry.error != ProviderError::Quota);
        }
    }

    /// Something about a node changed: what failed before may work now.
    pub fn node_changed(&mut self, node: &str) {
        let about = |entry: &Entry| entry.subject.node.as_deref() == Some(node);
        self.entries.retain(|_, entry| !about(entry));
    }

    /// Something outside changed the table: a gateway that could not be reached may be reached now.
    pub fn table_changed(&mut self) {
        let waits = |entry: &Entry| matches!(entry.error, ProviderError::NotReady(_));
        self.entries.retain(|_, entry| !waits(entry));
    }

    /// Forgets destinations that nothing is planned for.
    pub fn retain(&mut self, mut planned: impl FnMut(&Cidr) -> bool) {
        self.entries.retain(|destination, _| planned(destination));
    }

    /// When a step may be tried.
    pub fn ready_at(&self, step: &Step) -> Moment {
        match self.entries.get(step.destination()) {
            Some(entry) if entry.subject == Subject::of(step) => entry.until,
            _ => Moment::START,
        }
    }

    /// The last error of each destination that has one, for people.
    pub fn errors(&self) -> impl Iterator<Item = (&Cidr, &ProviderError)> {
        self.entries
            .iter()
            .map(|(destination, entry)| (destination, &entry.error))
    }
}
