//! States of an informer, and errors of reading one that has ended.

use std::fmt;

use serde::Serialize;
use thiserror::Error;
use tokio::time::Instant;
use weft_model::ObjectKey;

use super::InformerKey;
use crate::WatchError;

/// State of an informer.
#[derive(Clone, Debug)]
pub enum InformerState {
    /// Nothing can be listed yet, for a reason outside this process.
    Waiting(WaitReason),
    /// A list is running. `relist` when the store already serves an earlier state.
    Listing {
        /// The store already serves an earlier list.
        relist: bool,
    },
    /// The store follows the server.
    Synced,
    /// The server cannot be followed at present; the store serves the last state seen.
    Retrying {
        /// Time of the first failure in a row.
        since: Instant,
        /// The latest failure.
        error: WatchError,
    },
    /// The informer has ended.
    Stopped(StopReason),
}

impl InformerState {
    /// One word for logs, metrics and debug pages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Waiting(reason) => reason.name(),
            Self::Listing { relist: false } => "listing",
            Self::Listing { relist: true } => "relisting",
            Self::Synced => "synced",
            Self::Retrying { .. } => "retrying",
            Self::Stopped(_) => "stopped",
        }
    }
}

/// Reason of [`InformerState::Waiting`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// The kind is not served.
    KindMissing,
    /// The credentials do not allow it.
    Forbidden,
    /// The server refuses the request as it is: a field selector it does not know, say.
    Refused,
    /// The server cannot be reached or does not answer.
    Unreachable,
}

impl WaitReason {
    /// One word for logs, metrics and debug pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::KindMissing => "kind-missing",
            Self::Forbidden => "forbidden",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Reason of [`InformerState::Stopped`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The last handle was dropped.
    Released,
    /// Removed by [`Cache::evict`](crate::Cache::evict).
    Evicted(String),
    /// Its kind is no longer served.
    KindRemoved,
    /// Its cluster was removed.
    ClusterLeft,
    /// A defect: the loop itself panicked.
    Panicked,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("released by its last consumer"),
            Self::Evicted(why) => write!(f, "evicted: {why}"),
            Self::KindRemoved => f.write_str("its kind is no longer served"),
            Self::ClusterLeft => f.write_str("its cluster left"),
            Self::Panicked => f.write_str("its loop panicked"),
        }
    }
}

/// Error of reading an informer that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("informer of {key} has stopped: {reason}")]
pub struct InformerStopped {
    /// Key of the informer.
    pub key: Box<InformerKey>,
    /// Reason of its end.
    pub reason: StopReason,
}

/// An object that exists but cannot be decoded into the informer's type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UndecodableObject {
    /// Key of the object.
    #[serde(serialize_with = "as_text")]
    pub key: ObjectKey,
    /// The version that could not be decoded.
    pub resource_version: Box<str>,
    /// Error of the decoder.
    pub error: String,
    /// The object has been deleted since.
    pub deleted: bool,
}

fn as_text<S: serde::Serializer>(key: &ObjectKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(key)
}
