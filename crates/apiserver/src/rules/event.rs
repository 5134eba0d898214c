//! Rules of Events: stored in the core/v1 form, served in both groups, expired after an hour.

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::WriteScope;
use crate::{
    meta::Meta as _,
    store::{Filter, Object},
};

/// Time that an event is kept after its last write.
const KEPT: SignedDuration = SignedDuration::from_hours(1);
/// Minimum interval between two searches for expired events.
const BETWEEN: SignedDuration = SignedDuration::from_mins(1);

/// Time of the last search for expired events.
#[derive(Debug, Default)]
pub(crate) struct Expiry(Mutex<Option<Timestamp>>);

impl Expiry {
    fn is_due(&self, now: Timestamp) -> bool {
        let mut last = self.0.lock();
        let due = last.is_none_or(|last| now.duration_since(last) >= BETWEEN);
        if due {
            *last = Some(now);
        }
        due
    }
}

/// Removes expired events. Runs when an event is written, since only then their number grows.
pub(crate) fn expire(scope: &WriteScope<'_>) {
    let now = scope.api.clock.now();
    if !scope.api.event_expiry.is_due(now) {
        return;
    }
    let (events, _) = scope.api.store.all(&scope.kind.storage, &Filter::default());
    for stored in events {
        let object = stored.decode();
        let made = object.meta_text("creationTimestamp").parse::<Timestamp>();
        if made.is_ok_and(|made| now.duration_since(made) >= KEPT) {
            scope.writer.remove(&scope.kind.storage, &stored.key);
        }
    }
}

/// Field names of core/v1 and of events.k8s.io/v1.
const NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("reportingComponent", "reportingController"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Converts from the stored form to events.k8s.io/v1.
pub(crate) fn to_events_group(object: &mut Object) {
    for (core, events) in NAMES {
        if let Some(value) = object.remove(*core) {
            object.insert((*events).to_owned(), value);
        }
    }
}

/// Converts from events.k8s.io/v1 to the stored form.
pub(crate) fn from_events_group(object: &mut Object) {
    for (core, events) in NAMES {
        if let Some(value) = object.remove(*events) {
            object.insert((*core).to_owned(), value);
        }
    }
}
