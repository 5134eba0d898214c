//! Events and log lines about nodes and pools, each reported once while it lasts.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use weft_ipam::{
    NodeName, PoolName,
    allocator::Notice,
    objects::{GROUP, PoolFlaw, VERSION},
};
use weft_runtime::{EventLevel, EventNote, EventRecorder};

use crate::metrics::reason;

/// Reports conditions once, as events and in the log.
#[derive(Clone, Debug, Default)]
pub struct AllocatorEvents {
    /// Recorder of events; none reports to the log only.
    pub events: Option<EventRecorder>,
}

/// Conditions that were reported and still last.
#[derive(Debug, Default)]
pub(super) struct Reported {
    notices: BTreeSet<String>,
    flaws: BTreeSet<String>,
}

impl AllocatorEvents {
    /// Reports new conditions.
    pub(super) fn notices(&self, reported: &mut Reported, notices: &[Notice]) {
        let mut now = BTreeSet::new();
        for notice in notices {
            let text = notice.to_string();
            if !reported.notices.contains(&text) && now.insert(text.clone()) {
                tracing::warn!(%notice, reason = reason(notice), "allocation problem");
                self.record(about(notice), reason(notice), text.clone());
            }
            now.insert(text);
        }
        reported.notices = now;
    }

    /// Reports new errors in pools.
    pub(super) fn flaws(&self, reported: &mut Reported, flaws: &[(PoolName, PoolFlaw)]) {
        let mut now = BTreeSet::new();
        for (pool, flaw) in flaws {
            let text = format!("pool {pool}: {flaw}");
            if !reported.flaws.contains(&text) {
                tracing::warn!(%pool, %flaw, reason = flaw.reason(), "invalid IPPool");
                self.record(ippool(pool), flaw.reason(), flaw.to_string());
            }
            now.insert(text);
        }
        reported.flaws = now;
    }

    fn record(&self, about: ObjectReference, reason: &'static str, note: String) {
        if let Some(events) = &self.events {
            let note = EventNote {
                level: EventLevel::Warning,
                reason,
                action: "Allocate",
                note,
            };
            events.record_about(about, note);
        }
    }
}

fn about(notice: &Notice) -> ObjectReference {
    let name: &NodeName = match notice {
        Notice::PoolInUse(pool) => return ippool(pool),
        Notice::Conflict { config: name, .. }
        | Notice::Stray { config: name, .. }
        | Notice::Ownerless(name)
        | Notice::Deleted(name)
        | Notice::Unmet { node: name, .. }
        | Notice::Overlap { node: name, .. }
        | Notice::NoPool(name)
        | Notice::NoCidr(name)
        | Notice::HugeCidr(name, _) => name,
    };
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_string()),
        ..ObjectReference::default()
    }
}

fn ippool(pool: &PoolName) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{GROUP}/{VERSION}")),
        kind: Some("IPPool".to_owned()),
        name: Some(pool.to_string()),
        ..ObjectReference::default()
    }
}
