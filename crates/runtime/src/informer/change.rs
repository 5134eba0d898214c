//! Changes as subscribers of an informer receive them.

use std::sync::Arc;

use weft_model::ObjectKey;

use super::{StopReason, UndecodableObject};
use crate::Object;

/// One change of an informer's store.
///
/// The store already holds `new`, or something newer, when a change is seen.
#[derive(Debug)]
pub enum Change<K> {
    /// An object appeared.
    Added {
        /// The object.
        new: Arc<K>,
        /// The object is part of the state at the time of subscribing.
        initial: bool,
    },
    /// An object changed.
    Updated {
        /// The state this subscriber saw last.
        old: Arc<K>,
        /// The state now.
        new: Arc<K>,
        /// A periodic re-delivery with `old == new`.
        resync: bool,
    },
    /// An object is gone from what this informer watches: deleted, or no longer selected.
    Deleted {
        /// The last state known.
        last: Arc<K>,
        /// The deletion itself was missed, so the final state may differ from `last`.
        final_state_unknown: bool,
    },
    /// An object of this key exists in a state that the type cannot hold; the store keeps the last
    /// state that could be decoded, if there was one. Sent again when such an object is deleted.
    Undecodable(Arc<UndecodableObject>),
    /// Everything that existed at the time of subscribing has been delivered and handled.
    Synced,
    /// The informer has ended; nothing follows.
    Closed(StopReason),
}

impl<K: Object> Change<K> {
    /// The key concerned, for all but [`Change::Synced`] and [`Change::Closed`].
    pub fn key(&self) -> Option<ObjectKey> {
        match self {
            Self::Undecodable(object) => Some(object.key.clone()),
            _ => self.object().map(|object| object.key()),
        }
    }

    /// The newest state in this change.
    pub fn object(&self) -> Option<&Arc<K>> {
        match self {
            Self::Added { new, .. } | Self::Updated { new, .. } => Some(new),
            Self::Deleted { last, .. } => Some(last),
            Self::Undecodable(_) | Self::Synced | Self::Closed(_) => None,
        }
    }
}

// Not derived: `K` itself need not be `Clone`.
impl<K> Clone for Change<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Added { new, initial } => Self::Added {
                new: new.clone(),
                initial: *initial,
            },
            Self::Updated { old, new, resync } => Self::Updated {
                old: old.clone(),
                new: new.clone(),
                resync: *resync,
            },
            Self::Deleted {
                last,
                final_state_unknown,
            } => Self::Deleted {
                last: last.clone(),
                final_state_unknown: *final_state_unknown,
            },
            Self::Undecodable(object) => Self::Undecodable(object.clone()),
            Self::Synced => Self::Synced,
            Self::Closed(reason) => Self::Closed(reason.clone()),
        }
    }
}
