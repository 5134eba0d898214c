//! Events of the Node about a state in which no address can be assigned.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use weft_ipam::Uid;
use weft_model::Moment;
use weft_runtime::{EventLevel, EventNote, EventRecorder};

/// Time for which a state lasts before it is reported: a start takes less.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reports each state once while it lasts, and its end.
#[derive(Debug, Default)]
pub(crate) struct Announcer {
    events: Option<EventRecorder>,
    /// The current obstacle and the time at which it is reported.
    current: Option<(&'static str, Moment)>,
    reported: Option<&'static str>,
}

impl Announcer {
    /// Without a recorder it reports to the log only.
    pub(crate) fn new(events: Option<EventRecorder>) -> Self {
        Self {
            events,
            ..Self::default()
        }
    }

    /// Takes note of the reason why no ADD can be served; `None` if it can.
    pub(crate) fn observe(
        &mut self,
        obstacle: Option<&'static str>,
        node: &str,
        uid: Option<&Uid>,
        now: Moment,
    ) {
        let since = match (self.current, obstacle) {
            (Some((_, due)), Some(_)) => due,
            _ => now + PATIENCE,
        };
        self.current = obstacle.map(|obstacle| (obstacle, since));
        match obstacle {
            Some(obstacle) if self.reported != Some(obstacle) && since <= now => {
                tracing::warn!(reason = obstacle, "cannot assign addresses");
                let note = format!("cannot assign addresses to pods: {obstacle}");
                self.record(EventLevel::Warning, "AddressesUnavailable", note, node, uid);
                self.reported = Some(obstacle);
            }
            None if self.reported.take().is_some() => {
                tracing::info!("addresses can be assigned again");
                let note = "addresses can be assigned to pods again".to_owned();
                self.record(EventLevel::Normal, "AddressesAvailable", note, node, uid);
            }
            _ => {}
        }
    }

    /// Time at which the current state is to be reported.
    pub(crate) fn wake(&self) -> Option<Moment> {
        let (obstacle, due) = self.current?;
        (self.reported != Some(obstacle)).then_some(due)
    }

    fn record(
        &self,
        level: EventLevel,
        reason: &'static str,
        note: String,
        node: &str,
        uid: Option<&Uid>,
    ) {
        let Some(events) = &self.events else {
            return;
        };
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: uid.map(ToString::to_string),
            ..ObjectReference::default()
        };
        let note = EventNote {
            level,
            reason,
            action: "AssignAddresses",
            note,
        };
        events.record_about(about, note);
    }
}
