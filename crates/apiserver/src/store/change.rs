//! One entry of the change log, and the watch events it becomes.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::{Filter, object::Stored};

/// Type of a watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum EventKind {
    Added,
    Modified,
    Deleted,
}

impl EventKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// A creation, an update or a deletion.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) old: Option<Arc<Stored>>,
    pub(crate) new: Option<Arc<Stored>>,
    /// The old content at the new version, built when first needed.
    departed: OnceLock<Arc<Stored>>,
    /// Encoded events by [`EventKind`], built once for all watchers of plain JSON objects.
    frames: [OnceLock<Bytes>; 3],
}

impl Change {
    pub(super) fn new(version: u64, old: Option<Arc<Stored>>, new: Option<Arc<Stored>>) -> Self {
        Self {
            version,
            old,
            new,
            departed: OnceLock::new(),
            frames: Default::default(),
        }
    }

    /// Size of both objects in bytes.
    pub(super) fn weight(&self) -> usize {
        let sides = self.old.iter().chain(&self.new);
        sides.map(|object| object.bytes.len()).sum()
    }

    /// The event that a watcher with this filter sees; `None` if neither side matches.
    pub(crate) fn seen_through(&self, filter: &Filter) -> Option<EventKind> {
        let matches = |side: &Option<Arc<Stored>>| side.as_ref().is_some_and(|o| filter.matches(o));
        match (matches(&self.old), matches(&self.new)) {
            (false, true) => Some(EventKind::Added),
            (true, true) => Some(EventKind::Modified),
            (true, false) => Some(EventKind::Deleted),
            (false, false) => None,
        }
    }

    /// The object of an event of this kind.
    pub(crate) fn object(&self, kind: EventKind) -> Arc<Stored> {
        match (kind, &self.old, &self.new) {
            (EventKind::Added | EventKind::Modified, _, Some(new)) | (_, None, Some(new)) => {
                new.clone()
            }
            (_, Some(old), _) => self
                .departed
                .get_or_init(|| Arc::new(old.at_version(self.version)))
                .clone(),
            (_, None, None) => unreachable!("a change has an old or a new side"),
        }
    }

    /// The line of this event in a JSON watch.
    pub(crate) fn frame(&self, kind: EventKind) -> Bytes {
        self.frames[kind as usize]
            .get_or_init(|| event_frame(kind.name(), &self.object(kind).bytes))
            .clone()
    }
}

/// One line of a JSON watch.
pub(crate) fn event_frame(kind: &str, object: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(object.len() + kind.len() + 24);
    line.extend_from_slice(b"{\"type\":\"");
    line.extend_from_slice(kind.as_bytes());
    line.extend_from_slice(b"\",\"object\":");
    line.extend_from_slice(object);
    line.extend_from_slice(b"}\n");
    Bytes::from(line)
}
