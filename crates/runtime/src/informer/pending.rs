//! Changes that a subscriber has not taken yet: the net change of each key, in the order in which
//! keys first changed.

use std::{
    collections::{HashMap, VecDeque, hash_map},
    sync::Arc,
};

use weft_model::ObjectKey;

use super::{Change, StopReason, UndecodableObject};
use crate::Object;

/// Coalescing queue of one subscriber.
///
/// A slow subscriber costs at most one entry per key, never blocks the watch, and never loses the
/// fact that a key changed. Coalescing keeps the order guarantees: the states seen of a key are a
/// subsequence of the server's, and another UID under the same name is a deletion and an addition.
#[derive(Debug)]
pub(super) struct Pending<K> {
    order: VecDeque<Token>,
    changes: HashMap<ObjectKey, KeyChanges<K>>,
    closed: Option<StopReason>,
}

#[derive(Debug)]
enum Token {
    Key(ObjectKey),
    Synced,
}

/// Net change of one key since the subscriber last took it: at most a deletion followed by an
/// addition.
#[derive(Debug)]
struct KeyChanges<K> {
    deleted: Option<(Arc<K>, bool)>,
    present: Option<Present<K>>,
    undecodable: Option<Arc<UndecodableObject>>,
}

#[derive(Debug)]
enum Present<K> {
    Added {
        new: Arc<K>,
        initial: bool,
    },
    Updated {
        old: Arc<K>,
        new: Arc<K>,
        resync: bool,
    },
}

impl<K: Object> Pending<K> {
    pub(super) fn new() -> Self {
        Self {
            order: VecDeque::new(),
            changes: HashMap::new(),
            closed: None,
        }
    }

    /// Number of keys waiting.
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn push(&mut self, key: &ObjectKey, change: Change<K>) {
        match change {
            Change::Synced => return self.order.push_back(Token::Synced),
            Change::Closed(reason) => return self.close(reason),
            _ if self.closed.is_some() => return,
            _ => {}
        }
        let entry = match self.changes.entry(key.clone()) {
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hash_map::Entry::Vacant(entry) => {
                self.order.push_back(Token::Key(key.clone()));
                entry.insert(KeyChanges {
                    deleted: None,
                    present: None,
                    undecodable: None,
                })
            }
        };
        entry.merge(change);
    }

    /// Drops what is pending: it describes a store that no longer exists.
    fn close(&mut self, reason: StopReason) {
        if self.closed.is_none() {
            self.order = VecDeque::new();
            self.changes = HashMap::new();
            self.closed = Some(reason);
        }
    }

    /// The next change in order; `Closed` is repeated for ever.
    pub(super) fn pop(&mut self) -> Option<Change<K>> {
        if let Some(reason) = &self.closed {
            return Some(Change::Closed(reason.clone()));
        }
        let change = loop {
            match self.order.pop_front()? {
                Token::Synced => break Change::Synced,
                Token::Key(key) => {
                    let hash_map::Entry::Occupied(mut entry) = self.changes.entry(key) else {
                        continue;
                    };
                    let Some(change) = entry.get_mut().take() else {
                        entry.remove();
                        continue;
                    };
                    if entry.get().is_empty() {
                        entry.remove();
                    } else {
                        // A deletion and an addition of one name stay next to each other.
                        self.order.push_front(Token::Key(entry.key().clone()));
                    }
                    break change;
                }
            }
        };
        if self.changes.is_empty() && self.changes.capacity() > 1024 {
            // Frees the memory of a burst, such as the initial state.
            self.changes = HashMap::new();
            self.order.shrink_to_fit();
        }
        Some(change)
    }
}

impl<K: Object> KeyChanges<K> {
    fn is_empty(&self) -> bool {
        self.deleted.is_none() && self.present.is_none() && self.undecodable.is_none()
    }

    fn take(&mut self) -> Option<Change<K>> {
        if let Some((last, final_state_unknown)) = self.deleted.take() {
            return Some(Change::Deleted {
                last,
                final_state_unknown,
            });
        }
        let present = self.present.take().map(|present| match present {
            Present::Added { new, initial } => Change::Added { new, initial },
            Present::Updated { old, new, resync } => Change::Updated { old, new, resync },
        });
        // Last: an undecodable state is newer than all pending decodable ones.
        present.or_else(|| self.undecodable.take().map(Change::Undecodable))
    }

    fn merge(&mut self, change: Change<K>) {
        match change {
            Change::Added { new, initial } => {
                self.undecodable = None;
                self.present = Some(Present::Added { new, initial });
            }
            Change::Updated { old, new, resync } => {
                self.undecodable = None;
                self.present = Some(match self.present.take() {
                    None => Present::Updated { old, new, resync },
                    Some(Present::Added { initial, .. }) => Present::Added { new, initial },
                    Some(Present::Updated {
                        old,
                        resync: before,
                        ..
                    }) => Present::Updated {
                        old,
                        new,
                        resync: before && resync,
                    },
                });
            }
            Change::Deleted {
                last,
                final_state_unknown,
            } => {
                self.undecodable = None;
                self.present = None;
                // Of two deletions the first names the incarnation that this subscriber saw.
                let keep = self
                    .deleted
                    .as_ref()
                    .is_some_and(|(seen, _)| seen.uid() != last.uid());
                if !keep {
                    self.deleted = Some((last, final_state_unknown));
                }
            }
            Change::Undecodable(object) => self.undecodable = Some(object),
            Change::Synced | Change::Closed(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetadataOnly;

    fn object(uid: &str, version: u32) -> Arc<MetadataOnly> {
        let json =
            format!(r#"{{"metadata":{{"name":"a","uid":"{uid}","resourceVersion":"{version}"}}}}"#);
        Arc::new(serde_json::from_str(&json).unwrap())
    }

    fn added(uid: &str, version: u32) -> Change<MetadataOnly> {
        Change::Added {
            new: object(uid, version),
            initial: false,
        }
    }

    fn updated(uid: &str, from: u32, to: u32) -> Change<MetadataOnly> {
        Change::Updated {
            old: object(uid, from),
            new: object(uid, to),
            resync: false,
        }
    }

    fn deleted(uid: &str, version: u32) -> Change<MetadataOnly> {
        Change::Deleted {
            last: object(uid, version),
            final_state_unknown: false,
        }
    }

    fn text(change: &Change<MetadataOnly>) -> String {
        let name = |o: &MetadataOnly| format!("{}{}", o.metadata.uid, o.metadata.resource_version);
        match change {
            Change::Added { new, .. } => format!("+{}", name(new)),
            Change::Updated { old, new, .. } => format!("{}>{}", name(old), name(new)),
            Change::Deleted { last, .. } => format!("-{}", name(last)),
            Change::Undecodable(object) => format!("!{}", object.resource_version),
            Change::Synced => "synced".into(),
            Change::Closed(reason) => format!("closed {reason}"),
        }
    }

    fn net(changes: Vec<Change<MetadataOnly>>) -> String {
        let mut pending = Pending::new();
        for change in changes {
            pending.push(&ObjectKey::cluster("a"), change);
        }
        let mut seen = Vec::new();
        while let Some(change) = pending.pop() {
            seen.push(text(&change));
        }
        assert_eq!(pending.len(), 0);
        seen.join(" ")
    }

    #[test]
    fn invariant_15_changes_of_a_key_coalesce_to_their_net_effect() {
        for (changes, expected) in [
            (vec![added("x", 1), updated("x", 1, 2)], "+x2"),
            (vec![updated("x", 1, 2), updated("x", 2, 3)], "x1>x3"),
            (vec![updated("x", 1, 2), deleted("x", 3)], "-x3"),
            (vec![added("x", 1), deleted("x", 2)], "-x2"),
            (vec![deleted("x", 2), added("x", 3)], "-x2 +x3"),
            (
                vec![deleted("x", 2), added("y", 3), updated("y", 3, 4)],
                "-x2 +y4",
            ),
            (vec![deleted("x", 2), added("y", 3), deleted("y", 4)], "-x2"),
            (vec![deleted("x", 2), added("x", 3), deleted("x", 4)], "-x4"),
        ] {
            assert_eq!(net(changes), expected);
        }
    }

    #[test]
    fn a_state_that_does_not_decode_comes_after_those_that_do() {
        let undecodable = Change::Undecodable(Arc::new(UndecodableObject {
            key: ObjectKey::cluster("a"),
            resource_version: "2".into(),
            error: String::new(),
            deleted: false,
        }));
        assert_eq!(net(vec![added("x", 1), undecodable.clone()]), "+x1 !2");
        assert_eq!(net(vec![undecodable, updated("x", 1, 3)]), "x1>x3");
    }

    #[test]
    fn keys_come_in_the_order_in_which_they_first_changed() {
        let mut pending = Pending::new();
        for (key, change) in [
            ("b", added("b", 1)),
            ("a", added("a", 1)),
            ("b", updated("b", 1, 2)),
        ] {
            pending.push(&ObjectKey::cluster(key), change);
        }
        assert_eq!(text(&pending.pop().unwrap()), "+b2");
        assert_eq!(text(&pending.pop().unwrap()), "+a1");
    }

    #[test]
    fn closing_drops_what_was_pending_and_is_repeated() {
        let mut pending = Pending::new();
        let key = ObjectKey::cluster("a");
        pending.push(&key, added("x", 1));
        pending.push(&key, Change::Closed(StopReason::KindRemoved));
        pending.push(&key, added("x", 2));
        for _ in 0..2 {
            assert!(matches!(
                pending.pop(),
                Some(Change::Closed(StopReason::KindRemoved))
            ));
        }
    }
}
