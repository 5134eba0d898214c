//! Sync state of the kinds that the page is derived from.

use crate::state::Check;

/// A kind of objects that the state is derived from, and its sync state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Plural noun for the page, such as `pods`.
    pub what: &'static str,
    /// Sync state.
    pub standing: Standing,
}

/// Sync state of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In step with the server.
    Followed,
    /// The first list is running.
    Filling,
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
        matches!(self.standing, Standing::Followed | Standing::NotServed)
    }

    /// The check for this kind; `None` for an optional kind that is not served.
    pub(super) fn check(&self) -> Option<Check> {
        let detail = match self.standing {
            Standing::NotServed => return None,
            Standing::Followed => "up to date",
            Standing::Filling => "being listed",
            Standing::Refused(reason) => reason,
            Standing::Unreachable => "the API server does not answer, the page may be outdated",
        };
        Some(Check {
            name: format!("follows {}", self.what),
            ok: self.standing == Standing::Followed,
            detail: detail.to_owned(),
        })
    }
}
