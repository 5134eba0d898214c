//! Recorder of Kubernetes Events, as `kubectl describe` shows them.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::{Kind, Object};

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventLevel {
    /// `Normal`: for information.
    Normal,
    /// `Warning`: may need an operator.
    Warning,
}

/// Content of an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventNote {
    /// Type of the event.
    pub level: EventLevel,
    /// CamelCase word that programs match on.
    pub reason: &'static str,
    /// CamelCase word for the operation that caused it.
    pub action: &'static str,
    /// Text for people. Cut at 1024 bytes, the limit of the API.
    pub note: String,
}

/// Writes events in the background; reconciles never wait for them.
///
/// A repeated event becomes a series on the one already written. Each object has a budget, so that
/// a failing loop does not flood the API server. Failures are only logged: an event may be lost.
#[derive(Clone)]
pub struct EventRecorder {
    queue: mpsc::Sender<Entry>,
}

struct Entry {
    regarding: ObjectReference,
    note: EventNote,
    at: Timestamp,
}

/// Events that may wait to be written.
const BACKLOG: usize = 512;
/// Limit for one write, so that a server that does not answer does not hold up later events.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// A repetition within this time continues a series.
const SERIES_WINDOW: Duration = Duration::from_mins(6);
/// Events of one object at once, and the time until it may write another one: client-go's values.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_mins(5);

impl EventRecorder {
    /// A recorder that reports as `controller`, from `instance`. Must be called within a tokio
    /// runtime; it ends when the last clone is dropped and the backlog is written.
    pub fn new(client: Client, controller: &str, instance: &str) -> Self {
        let (queue, entries) = mpsc::channel(BACKLOG);
        let writer = Writer {
            client,
            controller: controller.to_owned(),
            instance: instance.to_owned(),
            series: HashMap::new(),
            budgets: HashMap::new(),
            hasher: RandomState::new(),
        };
        tokio::spawn(writer.run(entries));
        Self { queue }
    }

    /// Records an event about an object.
    pub fn record<K: Object>(&self, kind: &Kind, object: &K, note: EventNote) {
        self.record_about(
            ObjectReference {
                api_version: Some(kind.api_version()),
                kind: Some(kind.kind.to_string()),
                name: Some(object.name().to_owned()),
                namespace: object.namespace().map(str::to_owned),
                uid: object.uid().map(str::to_owned),
                ..ObjectReference::default()
            },
            note,
        );
    }

    /// Records an event about the object that a reference names.
    pub fn record_about(&self, regarding: ObjectReference, note: EventNote) {
        let entry = Entry {
            regarding,
            note,
            at: Timestamp::now(),
        };
        if self.queue.try_send(entry).is_err() {
            tracing::debug!("event dropped: backlog is full");
        }
    }
}

impl fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventRecorder")
    }
}

/// Hash of the fields in which events of one series agree.
type SeriesKey = u64;

struct Series {
    name: String,
    namespace: String,
    count: i32,
    last: Instant,
}

/// Time at which an object's budget is full again: a token bucket as one instant.
type Budget = Instant;

struct Writer {
    client: Client,
    controller: String,
    instance: String,
    series: HashMap<SeriesKey, Series>,
    budgets: HashMap<u64, Budget>,
    hasher: RandomState,
}

impl Writer {
    async fn run(mut self, mut entries: mpsc::Receiver<Entry>) {
        while let Some(entry) = entries.recv().await {
            let now = Instant::now();
            self.forget_old(now);
            if !self.has_budget(&entry, now) {
                tracing::debug!(
                    reason = entry.note.reason,
                    "event dropped: budget of the object is used up"
                );
                continue;
            }
            match timeout(WRITE_LIMIT, self.write(entry, now)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "event not written"),
                Err(_) => tracing::debug!("event not written: timed out"),
            }
        }
    }

    fn forget_old(&mut self, now: Instant) {
        self.series
            .retain(|_, series| now < series.last + SERIES_WINDOW);
        self.budgets.retain(|_, full_at| *full_at > now);
    }

    fn has_budget(&mut self, entry: &Entry, now: Instant) -> bool {
        let object = (
            &entry.regarding.kind,
            &entry.regarding.namespace,
            &entry.regarding.name,
        );
        let full_at = self
            .budgets
            .entry(self.hasher.hash_one(object))
            .or_insert(now);
        let next = (*full_at).max(now) + REFILL;
        let allowed = next <= now + REFILL * BURST;
        if allowed {
            *full_at = next;
        }
        allowed
    }

    async fn write(&mut self, entry: Entry, now: Instant) -> kube::Result<()> {
        let regarding = &entry.regarding;
        let key = self.hasher.hash_one((
            (
                &regarding.kind,
                &regarding.namespace,
                &regarding.name,
                &regarding.uid,
            ),
            &entry.note,
        ));
        if let Some(series) = self.series.get_mut(&key) {
            series.count += 1;
            series.last = now;
            let api: Api<Event> = Api::namespaced(self.client.clone(), &series.namespace);
            let observed = MicroTime(entry.at);
            let patch = json!({"series": {"count": series.count, "lastObservedTime": observed}});
            let name = series.name.clone();
            let patched = api
                .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await;
            return match patched {
                // Events expire on the server; begin a new one.
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    self.series.remove(&key);
                    self.create(entry, key, now).await
                }
                other => other.map(drop),
            };
        }
        self.create(entry, key, now).await
    }

    async fn create(&mut self, entry: Entry, key: SeriesKey, now: Instant) -> kube::Result<()> {
        // Events about cluster-scoped objects live in `default`; the API refuses others.
        let namespace = entry
            .regarding
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let event = self.event(entry, &namespace);
        let created = api.create(&PostParams::default(), &event).await?;
        let name = created.meta().name.clone().unwrap_or_default();
        self.series.insert(
            key,
            Series {
                name,
                namespace,
                count: 1,
                last: now,
            },
        );
        Ok(())
    }

    fn event(&self, entry: Entry, namespace: &str) -> Event {
        let EventNote {
            level,
            reason,
            action,
            mut note,
        } = entry.note;
        if note.len() > 1024 {
            note.truncate(note.floor_char_boundary(1024));
        }
        let object = entry.regarding.name.clone().unwrap_or_default();
        // Unique among the events of the object: the time in nanoseconds, as client-go has it.
        let name = format!("{object}.{:x}", entry.at.as_nanosecond());
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(entry.at)),
            action: Some(action.to_owned()),
            reason: Some(reason.to_owned()),
            note: Some(note),
            type_: Some(match level {
                EventLevel::Normal => "Normal".to_owned(),
                EventLevel::Warning => "Warning".to_owned(),
            }),
            regarding: Some(entry.regarding),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }
}
