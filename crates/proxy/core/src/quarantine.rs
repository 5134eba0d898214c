//! Quarantine of Services that the kernel refused: they are left out, and everything else is
//! written.
//!
//! A quarantined Service has no rules at all, as if it did not exist: rules of an earlier value would
//! send clients to endpoints that may be gone. It is tried again when its derived value changes, and
//! with the first full sync after [`RETRY_AFTER`].
//!
//! A sync first writes everything that was never refused, and only then tries quarantined Services
//! again, with a few writes. The first change of a refused Service is tried at once; each further
//! refusal doubles its wait, even if its value changes in the meantime.
//!
//! Where a backend names the Services at fault, one more attempt writes the rest. Where it only
//! says that one of several is at fault, they are taken out together; if the rest is accepted they
//! are added again by halves (a binary search). What the attempts of one sync do not settle stays
//! out until the next. If the rest is refused too, no Service is at fault and the error is returned
//! unchanged.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use weft_model::ObjectKey;

use crate::{Backend, Desired, RuleOwner, Scope, Service, Settings, SyncError, SyncReport};

/// Wait before a quarantined Service that did not change is tried again: the cause may be gone, for
/// example after a kernel module was loaded. Also the longest wait of one that changes.
pub const RETRY_AFTER: Duration = Duration::from_mins(30);

/// Wait after the second refusal. It doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// Writes of one searching sync. Enough to find two Services among 10,000 by halves.
const ATTEMPTS: usize = 64;

/// Writes without success after which all Services that were never accepted are set aside.
const BEFORE_SUCCESS: usize = 16;

/// Writes of one sync for Services that were set aside or refused before: changes of all other
/// Services wait for at most these.
const TRIALS: usize = 8;

/// Refusals of one group, each naming a single Service, before the group is halved.
const NAMED_SINGLY: usize = 3;

/// The quarantined Services of one family.
#[derive(Debug, Default)]
pub struct Quarantine {
    held: BTreeMap<ObjectKey, QuarantinedService>,
    /// Kept when a Service changes, is accepted or is deleted: creating it again does not reset the
    /// backoff.
    strikes: BTreeMap<ObjectKey, Strikes>,
    /// Services whose desired value the backend has not accepted yet.
    unwritten: BTreeSet<ObjectKey>,
    changes: Changes,
}

/// Changes of the quarantine since they were last taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services that were added: they have no rules any more.
    pub held: Vec<ObjectKey>,
    /// Services that were refused with a value that had not been refused before.
    pub refused: Vec<ObjectKey>,
    /// Services that were accepted when they were tried again.
    pub accepted: Vec<ObjectKey>,
}

/// A Service that has no rules because the kernel refused it.
#[derive(Clone, Debug)]
pub struct QuarantinedService {
    /// The value that was refused, or that is to be tried.
    pub service: Arc<Service>,
    /// The reason, in the words of the kernel or its program.
    pub message: String,
    /// Earliest time of the next trial.
    due: Instant,
    /// True if this value was not tried alone yet. Then it does not wait for a full sync.
    is_untried: bool,
    /// Size of the group that it is tried in, itself included.
    share: usize,
}

/// The refusals of one Service.
#[derive(Debug)]
struct Strikes {
    /// Number of different values that were refused.
    count: u32,
    last: Instant,
    /// Earliest time at which any value is tried.
    retry_at: Instant,
}

impl Strikes {
    fn add(&mut self, now: Instant) {
        self.count = self.count.saturating_add(1);
        self.last = now;
        // The first change is tried at once: it usually corrects the mistake.
        let doublings = self.count.checked_sub(2);
        let wait = doublings.map_or(Duration::ZERO, |doublings| {
            let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
            FIRST_BACKOFF.saturating_mul(factor).min(RETRY_AFTER)
        });
        self.retry_at = now + wait;
    }
}

/// Services to be tried, by rank. Those of one rank are tried together.
type Queue = BTreeMap<(Rank, ObjectKey), Arc<Service>>;

/// Decides which Services are tried first, and which together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Binary logarithm of the number of waiting Services in its namespace: many refused Services
    /// in one namespace do not delay a few in another.
    crowd: u32,
    /// Large groups come first: most of what was set aside is not at fault.
    share: Reverse<usize>,
    /// A Service that was corrected is not tried together with one that is refused all the time.
    strikes: u32,
}

impl Quarantine {
    /// The quarantined Services, by name.
    pub fn held(&self) -> impl ExactSizeIterator<Item = (&ObjectKey, &QuarantinedService)> {
        self.held.iter()
    }

    /// Takes the changes since the last call.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Time of the next sync that quarantined Services need even if no object changes.
    pub fn next_trial(&self) -> Option<Instant> {
        let untried = self.held.values().filter(|held| held.is_untried);
        untried.map(|held| held.due).min()
    }

    /// Records a changed or deleted Service. Returns the value that was desired until now.
    ///
    /// A quarantined Service stays out until it was tried separately.
    pub fn change(
        &mut self,
        desired: &mut Desired,
        key: &ObjectKey,
        service: Option<&Arc<Service>>,
    ) -> Option<Arc<Service>> {
        self.unwritten.insert(key.clone());
        let Some(service) = service else {
            self.held.remove(key);
            return desired.remove(key);
        };
        let strikes = self.strikes.get(key);
        if let Some(held) = self.held.get_mut(key) {
            held.service = service.clone();
            held.is_untried = true;
            if let Some(strikes) = strikes {
                held.due = strikes.retry_at;
            }
            return None;
        }
        match strikes {
            Some(strikes) if !desired.contains_key(key) => {
                let held = QuarantinedService {
                    service: service.clone(),
                    message: "refused before it was deleted and created again".to_owned(),
                    due: strikes.retry_at,
                    is_untried: true,
                    share: usize::MAX,
                };
                self.held.insert(key.clone(), held);
                None
            }
            _ => desired.insert(key.clone(), service.clone()),
        }
    }

    /// Makes the kernel's rules match `desired`, and moves refused Services out of it.
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
        let held = &self.held;
        self.strikes.retain(|key, strikes| {
            held.contains_key(key)
                || now.saturating_duration_since(strikes.last) < RETRY_AFTER.saturating_mul(2)
        });
        let is_due = |held: &QuarantinedService| now >= held.due && (is_full || held.is_untried);
        let due = self.held.iter().filter(|(_, held)| is_due(held));
        let due = due.map(|(key, held)| (key.clone(), held.service.clone(), held.share));
        let due: Vec<_> = due.collect();
        let queue = self.rank(&due);
        let search = Search {
            quarantine: self,
            backend,
            desired,
            settings,
            now,
            is_full,
            report: None,
            refusals: Vec::new(),
            queue,
            is_searching: false,
            named_singly: 0,
            is_accepted: false,
            trial: None,
        };
        search.run()
    }

    fn rank(&self, services: &[(ObjectKey, Arc<Service>, usize)]) -> Queue {
        let mut crowds: BTreeMap<Option<&str>, u32> = BTreeMap::new();
        let fresh = services.iter().map(|(key, ..)| key);
        let fresh = fresh.filter(|key| !self.held.contains_key(*key));
        for key in self.held.keys().chain(fresh) {
            *crowds.entry(key.namespace.as_deref()).or_default() += 1;
        }
        let rank = |key: &ObjectKey, share| {
            let crowd = crowds.get(&key.namespace.as_deref());
            Rank {
                crowd: crowd.and_then(|count| count.checked_ilog2()).unwrap_or(0),
                share: Reverse(share),
                strikes: self.strikes.get(key).map_or(0, |strikes| strikes.count),
            }
        };
        let ranked = services.iter().map(|(key, service, share)| {
            let rank = rank(key, *share);
            ((rank, key.clone()), service.clone())
        });
        ranked.collect()
    }

    /// Adds a refused Service.
    fn hold(
        &mut self,
        key: ObjectKey,
        service: Arc<Service>,
        message: String,
        share: usize,
        now: Instant,
    ) {
        let known = self.held.get(&key);
        if known.is_none() {
            self.changes.held.push(key.clone());
        }
        // Another refusal of the same value does not delay the next value.
        if known.is_none_or(|held| held.is_untried) {
            let strikes = self.strikes.entry(key.clone()).or_insert(Strikes {
                count: 0,
                last: now,
                retry_at: now,
            });
            strikes.add(now);
            self.changes.refused.push(key.clone());
        }
        let held = QuarantinedService {
            service,
            message,
            due: now + RETRY_AFTER,
            is_untried: false,
            share,
        };
        self.held.insert(key, held);
    }

    /// Keeps out a Service that was set aside and that this sync has no attempts left for.
    fn postpone(&mut self, key: ObjectKey, service: Arc<Service>, share: usize, now: Instant) {
        if let Some(held) = self.held.get_mut(&key) {
            held.share = share;
            return;
        }
        let held = QuarantinedService {
            service,
            message: "set aside while refused Services are searched for".to_owned(),
            due: now,
            is_untried: true,
            share,
        };
        self.held.insert(key.clone(), held);
        self.changes.held.push(key);
    }
}

/// One sync: the Services that are in, those that wait, and those on trial.
struct Search<'a> {
    quarantine: &'a mut Quarantine,
    backend: &'a mut dyn Backend,
    desired: &'a mut Desired,
    settings: &'a Settings,
    now: Instant,
    /// True if the next attempt is a full sync.
    is_full: bool,
    report: Option<SyncReport>,
    refusals: Vec<SyncError>,
    /// Not in `desired`, to be added group by group once the rest is accepted.
    queue: Queue,
    /// True if this sync set Services aside.
    is_searching: bool,
    /// Refusals of the group on trial that named one Service.
    named_singly: usize,
    /// True if everything but the group on trial was accepted.
    is_accepted: bool,
    trial: Option<Trial>,
}

/// A group that is being tried on top of what was accepted.
struct Trial {
    rank: Rank,
    /// Those that were not named as refused.
    keys: BTreeSet<ObjectKey>,
}

impl Search<'_> {
    fn run(mut self) -> Result<SyncReport, SyncError> {
        let attempts = self.write_rest()?;
        let trials = if self.is_searching {
            ATTEMPTS.saturating_sub(attempts).max(TRIALS)
        } else {
            TRIALS
        };
        let mut repeated = 0;
        for _ in 0..trials {
            if repeated == TRIALS {
                self.postpone_repeated();
            }
            let is_open = self
                .trial
                .as_ref()
                .is_some_and(|trial| !trial.keys.is_empty());
            if !is_open && !self.add_next() {
                break;
            }
            repeated += usize::from(self.is_repeated());
            if let Err(error) = self.attempt() {
                self.handle_refusal(error)?;
            }
        }
        self.withdraw(|share, _| share);
        // A table before the refused one may have been written with it.
        if !self.quarantine.unwritten.is_empty() {
            self.attempt().map_err(|error| self.give_up(error))?;
        }
        Ok(self.finish())
    }

    /// True if the group on trial was quarantined before this sync.
    fn is_repeated(&self) -> bool {
        let first = self.trial.as_ref().and_then(|trial| trial.keys.first());
        first.is_some_and(|key| self.quarantine.held.contains_key(key))
    }

    /// Leaves Services that were quarantined before to the next sync.
    fn postpone_repeated(&mut self) {
        for ((rank, key), service) in std::mem::take(&mut self.queue) {
            if self.quarantine.held.contains_key(&key) {
                self.quarantine
                    .postpone(key, service, rank.share.0, self.now);
            } else {
                self.queue.insert((rank, key), service);
            }
        }
    }

    /// Writes everything but what waits. Returns the number of attempts.
    fn write_rest(&mut self) -> Result<usize, SyncError> {
        for attempt in 1..ATTEMPTS {
            match self.attempt() {
                Ok(()) => return Ok(attempt),
                Err(error) if attempt >= BEFORE_SUCCESS && error.refusal().is_some() => {
                    let unproven = self.unproven();
                    if unproven.is_empty() {
                        self.handle_refusal(error)?;
                    } else {
                        self.set_aside(&unproven);
                        self.refusals.push(error);
                    }
                }
                Err(error) => self.handle_refusal(error)?,
            }
        }
        match self.attempt() {
            Ok(()) => Ok(ATTEMPTS),
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
        self.named_singly = 0;
        self.is_accepted = true;
        self.trial = None;
        let accepted = self.quarantine.held.keys();
        let accepted = accepted.filter(|key| self.desired.contains_key(key));
        for key in accepted.cloned().collect::<Vec<_>>() {
            self.quarantine.held.remove(&key);
            self.quarantine.changes.accepted.push(key);
        }
        Ok(())
    }

    fn finish(mut self) -> SyncReport {
        for ((rank, key), service) in std::mem::take(&mut self.queue) {
            self.quarantine
                .postpone(key, service, rank.share.0, self.now);
        }
        let mut report = self.report.unwrap_or_default();
        report.refusals.extend(self.refusals);
        report
    }

    /// Moves the Services at fault, or those among which they are, out of `desired`. Fails if there
    /// are none.
    fn handle_refusal(&mut self, error: SyncError) -> Result<(), SyncError> {
        let Some(refusal) = error.refusal() else {
            return Err(self.give_up(error));
        };
        let named = match &refusal.owner {
            RuleOwner::Service(key) => vec![key.clone()],
            RuleOwner::Services(keys) => keys.iter().cloned().collect(),
            RuleOwner::OneOf(suspects) => {
                let suspects = suspects.clone();
                return self.narrow(error, &suspects);
            }
            RuleOwner::NoService => return Err(self.give_up(error)),
        };
        let message = refusal.message();
        let share = self
            .trial
            .as_ref()
            .map_or(usize::MAX, |trial| trial.rank.share.0);
        let mut count = 0;
        for key in named {
            let Some(service) = self.remove(&key) else {
                continue;
            };
            count += 1;
            if let Some(trial) = &mut self.trial {
                trial.keys.remove(&key);
            }
            self.quarantine
                .hold(key, service, message.clone(), share, self.now);
        }
        if count == 0 {
            return Err(self.give_up(error));
        }
        self.refusals.push(error);
        self.named_singly += usize::from(count == 1);
        if self.named_singly >= NAMED_SINGLY {
            self.halve();
        }
        Ok(())
    }

    /// Handles a refusal that names several Services of which at least one is at fault.
    fn narrow(&mut self, error: SyncError, named: &BTreeSet<ObjectKey>) -> Result<(), SyncError> {
        if !self.is_accepted {
            let unproven = self.unproven();
            let both: Vec<ObjectKey> = unproven
                .iter()
                .filter(|key| named.contains(*key))
                .cloned()
                .collect();
            // Assume that what was accepted before is not at fault.
            let suspects = match (both.is_empty(), unproven.is_empty()) {
                (false, _) => both,
                (true, false) => unproven,
                (true, true) => {
                    let is_in = |key: &&ObjectKey| self.desired.contains_key(key);
                    named.iter().filter(is_in).cloned().collect()
                }
            };
            if suspects.is_empty() {
                return Err(self.give_up(error));
            }
            self.set_aside(&suspects);
            return Ok(());
        }
        let keys = self.trial.as_ref().map(|trial| &trial.keys);
        match keys.and_then(|keys| Some((keys.len(), keys.first().cloned()?))) {
            Some((1, only)) => {
                if let (Some(service), Some(refusal)) = (self.remove(&only), error.refusal()) {
                    let message = refusal.message();
                    self.quarantine.hold(only, service, message, 1, self.now);
                }
                self.trial = None;
                self.refusals.push(error);
            }
            Some(_) => self.halve(),
            None => return Err(self.give_up(error)),
        }
        Ok(())
    }

    /// Services in `desired` whose value was never accepted.
    fn unproven(&self) -> Vec<ObjectKey> {
        let unwritten = self.quarantine.unwritten.iter();
        unwritten
            .filter(|key| self.desired.contains_key(key))
            .cloned()
            .collect()
    }

    /// Takes Services out of `desired`, to be added again by halves.
    fn set_aside(&mut self, suspects: &[ObjectKey]) {
        self.is_searching = true;
        let share = suspects.len().div_ceil(2);
        let services: Vec<_> = suspects
            .iter()
            .filter_map(|key| Some((key.clone(), self.remove(key)?, share)))
            .collect();
        self.queue.append(&mut self.quarantine.rank(&services));
    }

    /// Takes the group on trial out again, to be tried in smaller ones.
    fn halve(&mut self) {
        self.named_singly = 0;
        self.withdraw(|_, count| count.div_ceil(2));
    }

    /// Takes the group on trial out again. `share` computes the size of the next group from that of
    /// the last and the number of Services in it.
    fn withdraw(&mut self, share: impl Fn(usize, usize) -> usize) {
        let Some(Trial { mut rank, keys }) = self.trial.take() else {
            return;
        };
        rank.share = Reverse(share(rank.share.0, keys.len()));
        for key in keys {
            if let Some(service) = self.remove(&key) {
                self.queue.insert((rank, key), service);
            }
        }
    }

    /// Adds the next waiting group. Returns false if there is none.
    fn add_next(&mut self) -> bool {
        let Some((rank, _)) = self.queue.keys().next() else {
            return false;
        };
        let rank = *rank;
        let mut keys = BTreeSet::new();
        while keys.len() < rank.share.0
            && let Some(first) = self.queue.first_entry()
            && first.key().0 == rank
        {
            let ((_, key), service) = first.remove_entry();
            self.desired.insert(key.clone(), service);
            keys.insert(key);
        }
        self.quarantine.unwritten.extend(keys.iter().cloned());
        self.named_singly = 0;
        self.trial = Some(Trial { rank, keys });
        true
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Arc<Service>> {
        let service = self.desired.remove(key)?;
        self.quarantine.unwritten.insert(key.clone());
        Some(service)
    }

    /// Puts back Services that were only set aside.
    fn give_up(&mut self, error: SyncError) -> SyncError {
        for ((_, key), service) in std::mem::take(&mut self.queue) {
            if !self.quarantine.held.contains_key(&key) {
                self.quarantine.unwritten.insert(key.clone());
                self.desired.insert(key, service);
            }
        }
        // One that was quarantined before and tried again stays quarantined.
        let held = &self.quarantine.held;
        self.desired.retain(|key, _| !held.contains_key(key));
        error
    }
}
