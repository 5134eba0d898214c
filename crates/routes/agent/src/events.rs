//! Kubernetes events about nodes and about the route quota.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use weft_routes::{Forecast, ProviderError, Refusal, Step};
use weft_runtime::{EventLevel, EventNote, EventRecorder};

/// Publishes warning events of the route controller.
#[derive(Clone, Debug, Default)]
pub struct RouteEvents {
    /// `None` in observe mode: events are dropped.
    pub recorder: Option<EventRecorder>,
    /// Object of events that concern no node: the lease of the controller.
    pub about: ObjectReference,
}

impl RouteEvents {
    fn warn(&self, about: ObjectReference, reason: &'static str, note: String) {
        if let Some(recorder) = &self.recorder {
            let note = EventNote {
                level: EventLevel::Warning,
                reason,
                action: "SyncRoutes",
                note,
            };
            recorder.record_about(about, note);
        }
    }

    /// A create or replacement failed; reason and text are upstream's.
    pub(crate) fn failed(&self, step: &Step, error: &ProviderError, took: Duration) {
        let Some(wanted) = step.wanted() else {
            return;
        };
        let note = format!(
            "Could not create route {} {} for node {} after {took:?}: {error}",
            wanted.uid, wanted.destination, wanted.node
        );
        let about = node(&wanted.node, Some(&wanted.uid));
        self.warn(about, "FailedToCreateRoute", note);
    }

    /// A node gets no route.
    pub(crate) fn refused(&self, refusal: &Refusal, uid: Option<&str>) {
        let about = node(&refusal.node, uid);
        self.warn(about, refusal.reason.label(), refusal.to_string());
    }

    /// The provider's table is nearly full.
    pub(crate) fn quota_tight(&self, forecast: &Forecast) {
        let quota = forecast.quota.unwrap_or_default();
        let note = format!(
            "{} of {quota} routes are in use and {} will be; {} will not fit",
            forecast.present,
            forecast.after,
            forecast.missing()
        );
        let (present, after, missing) = (forecast.present, forecast.after, forecast.missing());
        tracing::warn!(present, after, quota, missing, "route table is nearly full");
        self.warn(self.about.clone(), "RouteQuotaTight", note);
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
