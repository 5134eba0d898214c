//! What is said about nodes and pools as events.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use weft_ipam::{
    NodeName, PoolName,
    allocator::Notice,
    objects::{GROUP, PoolFlaw, VERSION},
};
use weft_runtime::{EventLevel, EventNote, EventRecorder};

use crate::metrics::reason;

/// Says things once, as events and in the log.
#[derive(Clone, Debug, Default)]
pub struct AllocatorEvents {
    /// Where to say them.
    pub events: Option<EventRecorder>,
}

/// What was said and is still so.
#[derive(Debug, Default)]
pub(super) struct Said {
    notices: BTreeSet<String>,
    flaws: BTreeSet<String>,
}

impl AllocatorEvents {
    /// Says what is new.
    pub(super) fn notices(&self, said: &mut Said, notices: &[Notice]) {
        let mut now = BTreeSet::new();
        for notice in notices {
            let text = notice.to_string();
            if !said.notices.contains(&text) && now.insert(text.clone()) {
                tracing::warn!("{text}");
                self.say(about(notice), reason(notice), text.clone());
            }
            now.insert(text);
        }
        said.notices = now;
    }

    /// Says what is newly wrong with pools.
    pub(super) fn flaws<'a>(
        &self,
        said: &mut Said,
        flaws: impl Iterator<Item = (&'a PoolName, &'a PoolFlaw)>,
    ) {
        let mut now = BTreeSet::new();
        for (pool, flaw) in flaws {
            let text = format!("pool {pool}: {flaw}");
            if !said.flaws.contains(&text) {
                tracing::warn!("{text}");
                self.say(ippool(pool), flaw.reason(), flaw.to_string());
            }
            now.insert(text);
        }
        said.flaws = now;
    }

    fn say(&self, about: ObjectReference, reason: &'static str, note: String) {
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
