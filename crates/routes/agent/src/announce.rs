//! What is said about nodes as events.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use weft_routes::{Forecast, ProviderError, Refusal, Step};
use weft_runtime::{EventLevel, EventNote, EventRecorder};

/// Says things as events, unless nothing may be written.
#[derive(Clone, Debug, Default)]
pub struct Announce {
    /// Where to say them.
    pub events: Option<EventRecorder>,
    /// What the whole is about: the lease by which the controller is known.
    pub about: ObjectReference,
}

impl Announce {
    fn say(&self, about: ObjectReference, reason: &'static str, note: String) {
        if let Some(events) = &self.events {
            let note = EventNote {
                level: EventLevel::Warning,
                reason,
                action: "SyncRoutes",
                note,
            };
            events.record_about(about, note);
        }
    }

    /// A route could not be made, in upstream's words.
    pub(crate) fn failed(&self, step: &Step, error: &ProviderError, took: Duration) {
        let Some(wanted) = step.wanted() else {
            return;
        };
        let note = format!(
            "Could not create route {} {} for node {} after {took:?}: {error}",
            wanted.uid, wanted.destination, wanted.node
        );
        let about = node(&wanted.node, Some(&wanted.uid));
        self.say(about, "FailedToCreateRoute", note);
    }

    /// A node gets no route.
    pub(crate) fn refused(&self, refusal: &Refusal, uid: Option<&str>) {
        let about = node(&refusal.node, uid);
        self.say(about, refusal.reason.label(), refusal.to_string());
    }

    /// The table is nearly full.
    pub(crate) fn tight(&self, forecast: &Forecast) {
        let quota = forecast.quota.unwrap_or_default();
        let note = format!(
            "{} of {quota} routes are in use and {} will be; {} will not fit",
            forecast.present,
            forecast.after,
            forecast.missing()
        );
        tracing::warn!("{note}");
        self.say(self.about.clone(), "RouteQuotaTight", note);
    }
}

fn node(name: &str, uid: Option<&str>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: uid.map(str::to_owned),
        ..ObjectReference::default()
    }
}
