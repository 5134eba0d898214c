//! Events: stored in the core form, shown in either group.

use crate::store::Object;

/// Field names of core/v1 and what events.k8s.io/v1 calls them.
const NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("reportingComponent", "reportingController"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// From the stored form to events.k8s.io.
pub(crate) fn to_events_group(object: &mut Object) {
    for (core, events) in NAMES {
        if let Some(value) = object.remove(*core) {
            object.insert((*events).to_owned(), value);
        }
    }
}

/// From events.k8s.io to the stored form.
pub(crate) fn from_events_group(object: &mut Object) {
    for (core, events) in NAMES {
        if let Some(value) = object.remove(*events) {
            object.insert((*core).to_owned(), value);
        }
    }
}
