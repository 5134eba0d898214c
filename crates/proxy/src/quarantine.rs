//! Services that the kernel refused. They are left out, and everything else is written.
//!
//! A quarantined Service has no rules at all, as if it did not exist: rules of an earlier value would
//! send clients to endpoints that may be gone. It is tried again when its derived value changes, and
//! with the first full sync after [`RETRY_AFTER`].
//!
//! Where a backend names the Service at fault, one more attempt writes the rest. Where it only says
//! that one of several is at fault, they are taken out together; if the rest is accepted they are
//! added again by halves. If the rest is refused too, no Service is to blame and the error is
//! returned as it came.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use weft_model::ObjectKey;

use crate::{Backend, Desired, Owner, Scope, Service, Settings, SyncError, SyncReport};

/// A quarantined Service that does not change is tried again after this long: what refused it may
/// have been mended, as by loading a kernel module.
pub const RETRY_AFTER: Duration = Duration::from_mins(30);

/// Writes of one sync. Enough to find two Services among 10,000 by halves, or 60 that are named.
const ATTEMPTS: usize = 64;

/// The Services of one family that are left out.
#[derive(Debug, Default)]
pub struct Quarantine {
    held: BTreeMap<ObjectKey, QuarantinedService>,
    /// Services whose desired value the backend has not accepted yet.
    unwritten: BTreeSet<ObjectKey>,
    changes: Changes,
}

/// What changed in a quarantine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services that came in. One that was refused again with the same value is none of them.
    pub held: Vec<ObjectKey>,
    /// Services that did not change and were accepted when they were tried again.
    pub accepted: Vec<ObjectKey>,
}

/// A Service that has no rules because the kernel refused it.
#[derive(Clone, Debug)]
pub struct QuarantinedService {
    /// The value that was refused.
    pub service: Arc<Service>,
    /// What was said about it.
    pub message: String,
    tried: Instant,
}

type Group = BTreeMap<ObjectKey, Arc<Service>>;

impl Quarantine {
    /// Services that are left out, in order.
    pub fn held(&self) -> impl ExactSizeIterator<Item = (&ObjectKey, &QuarantinedService)> {
        self.held.iter()
    }

    /// What changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// A Service changed or went: whatever was held against it no longer counts.
    pub fn release(&mut self, key: &ObjectKey) {
        self.held.remove(key);
    }

    /// Makes the kernel agree with `desired`, out of which refused Services are moved.
    ///
    /// After an error the next sync must get the same changes again, as with a [`Backend`].
    pub fn sync(
        &mut self,
        backend: &mut dyn Backend,
        desired: &mut Desired,
        settings: &Settings,
        scope: Scope<'_>,
        now: Instant,
    ) -> Result<SyncReport, SyncError> {
        let is_full = match scope {
            Scope::Full => true,
            Scope::Changed(changed) => {
                self.unwritten.extend(changed.iter().cloned());
                false
            }
        };
        let waiting = if is_full { self.due(now) } else { Vec::new() };
        let search = Search {
            quarantine: self,
            backend,
            desired,
            settings,
            now,
            is_full,
            report: None,
            refusals: Vec::new(),
            waiting,
            unconfirmed: None,
        };
        search.run()
    }

    /// Those to try again, one by one.
    fn due(&self, now: Instant) -> Vec<Group> {
        let is_due =
            |held: &QuarantinedService| now.saturating_duration_since(held.tried) >= RETRY_AFTER;
        let due = self.held.iter().filter(|(_, held)| is_due(held));
        due.map(|(key, held)| Group::from([(key.clone(), held.service.clone())]))
            .collect()
    }

    fn hold(&mut self, key: ObjectKey, service: Arc<Service>, message: String, now: Instant) {
        let held = QuarantinedService {
            service,
            message,
            tried: now,
        };
        let known = self.held.insert(key.clone(), held);
        if known.is_none() {
            self.changes.held.push(key);
        }
    }
}

/// One sync: which Services are in, which wait, and which are unconfirmed.
struct Search<'a> {
    quarantine: &'a mut Quarantine,
    backend: &'a mut dyn Backend,
    desired: &'a mut Desired,
    settings: &'a Settings,
    now: Instant,
    /// Whether the next attempt looks at everything.
    is_full: bool,
    report: Option<SyncReport>,
    refusals: Vec<SyncError>,
    /// Taken out of `desired`, to be added again after the next success.
    waiting: Vec<Group>,
    /// What was added since the last success. `None` before the first.
    unconfirmed: Option<BTreeSet<ObjectKey>>,
}

impl Search<'_> {
    fn run(mut self) -> Result<SyncReport, SyncError> {
        for _ in 1..ATTEMPTS {
            match self.attempt() {
                Ok(()) => {
                    let Some(group) = self.waiting.pop() else {
                        return Ok(self.finish());
                    };
                    self.add(group);
                }
                Err(error) => self.handle_refusal(error)?,
            }
        }
        match self.attempt() {
            Ok(()) if self.waiting.is_empty() => Ok(self.finish()),
            Ok(()) => {
                let last = self.refusals.pop();
                let unknown = || {
                    let text =
                        format!("cannot find the refused Services within {ATTEMPTS} attempts");
                    SyncError::unavailable(text, "")
                };
                Err(self.give_up(last.unwrap_or_else(unknown)))
            }
            Err(error) => Err(self.give_up(error)),
        }
    }

    fn attempt(&mut self) -> Result<(), SyncError> {
        let scope = if self.is_full {
            Scope::Full
        } else {
            Scope::Changed(&self.quarantine.unwritten)
        };
        let report = self.backend.sync(self.desired, self.settings, scope)?;
        match &mut self.report {
            Some(all) => all.absorb(report),
            None => self.report = Some(report),
        }
        self.is_full = false;
        self.quarantine.unwritten.clear();
        self.unconfirmed = Some(BTreeSet::new());
        let accepted = self.quarantine.held.keys();
        let accepted = accepted.filter(|key| self.desired.contains_key(*key));
        for key in accepted.cloned().collect::<Vec<_>>() {
            self.quarantine.held.remove(&key);
            self.quarantine.changes.accepted.push(key);
        }
        Ok(())
    }

    fn finish(self) -> SyncReport {
        let mut report = self.report.unwrap_or_default();
        report.refusals.extend(self.refusals);
        report
    }

    /// Moves the Service at fault, or those among which it is, out of `desired`. An error if that
    /// is none.
    fn handle_refusal(&mut self, error: SyncError) -> Result<(), SyncError> {
        let Some(refusal) = error.refusal() else {
            return Err(self.give_up(error));
        };
        let message = refusal.message.clone();
        let suspects: BTreeSet<ObjectKey> = match &refusal.owner {
            Owner::Service(key) => {
                let Some(service) = self.remove(key) else {
                    return Err(self.give_up(error));
                };
                self.quarantine
                    .hold(key.clone(), service, message, self.now);
                self.refusals.push(error);
                return Ok(());
            }
            Owner::OneOf(suspects) => suspects.clone(),
            Owner::NoService => return Err(self.give_up(error)),
        };
        let is_in = |key: &&ObjectKey| self.desired.contains_key(*key);
        // What was accepted before is not at fault, as far as that is known.
        let unproven = match &self.unconfirmed {
            Some(unconfirmed) => Some(unconfirmed),
            None if self.is_full => None,
            None => Some(&self.quarantine.unwritten),
        };
        let suspects: Vec<ObjectKey> = match unproven {
            Some(unproven) => unproven.iter().filter(is_in).cloned().collect(),
            None => suspects.iter().filter(is_in).cloned().collect(),
        };
        match (&suspects[..], self.unconfirmed.is_some()) {
            ([], _) => return Err(self.give_up(error)),
            ([only], true) => {
                if let Some(service) = self.remove(only) {
                    self.quarantine
                        .hold(only.clone(), service, message, self.now);
                }
                self.refusals.push(error);
            }
            (several, _) => self.set_aside(several),
        }
        // The rest was accepted before: there is no need to try it alone again.
        if self.unconfirmed.is_some()
            && let Some(group) = self.waiting.pop()
        {
            self.add(group);
        }
        Ok(())
    }

    /// Takes Services out, to be added again by halves.
    fn set_aside(&mut self, suspects: &[ObjectKey]) {
        let (first, second) = suspects.split_at(suspects.len().div_ceil(2));
        for half in [second, first] {
            let group: Group = half
                .iter()
                .filter_map(|key| Some((key.clone(), self.remove(key)?)))
                .collect();
            if !group.is_empty() {
                self.waiting.push(group);
            }
        }
    }

    fn add(&mut self, group: Group) {
        self.quarantine.unwritten.extend(group.keys().cloned());
        self.unconfirmed = Some(group.keys().cloned().collect());
        self.desired.extend(group);
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Arc<Service>> {
        let service = self.desired.remove(key)?;
        self.quarantine.unwritten.insert(key.clone());
        Some(service)
    }

    /// Puts back what was only set aside.
    fn give_up(&mut self, error: SyncError) -> SyncError {
        for group in std::mem::take(&mut self.waiting) {
            let fresh = group
                .into_iter()
                .filter(|(key, _)| !self.quarantine.held.contains_key(key));
            for (key, service) in fresh {
                self.quarantine.unwritten.insert(key.clone());
                self.desired.insert(key, service);
            }
        }
        // One that was tried again stays quarantined.
        let held = &self.quarantine.held;
        self.desired.retain(|key, _| !held.contains_key(key));
        error
    }
}
