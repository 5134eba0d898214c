//! Sync state of the kinds that the page is derived from.

use crate::state::Check;

/// A kind of objects that the state is derived from, and its sync state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Plural noun for the page, such as `pods`.
    pub what: &'static str,
    /// Sync state.
    pub sync: SyncState,
}

/// Sync state of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncState {
    /// In step with the server.
    Followed,
    /// The first list is running.
    Listing,
    /// The server has no such kind.
    NotServed,
    /// The server refuses the list: the reason in a word.
    Refused(&'static str),
    /// The server does not answer; the known objects may be outdated.
    Unreachable,
}

impl Source {
    /// Returns whether no object is missing.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.sync, SyncState::Followed | SyncState::NotServed)
    }

    /// The check for this kind; `None` for an optional kind that is not served.
    pub(super) fn check(&self) -> Option<Check> {
        let detail = match self.sync {
            SyncState::NotServed => return None,
            SyncState::Followed => "up to date",
            SyncState::Listing => "being listed",
            SyncState::Refused(reason) => reason,
            SyncState::Unreachable => "the API server does not answer, the page may be outdated",
        };
        Some(Check {
            name: format!("follows {}", self.what),
            ok: self.sync == SyncState::Followed,
            detail: detail.to_owned(),
        })
    }
}
