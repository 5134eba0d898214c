use crate::state::Check;

/// A kind of objects that the state is derived from, and how well it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// What it is, in the plural.
    pub what: &'static str,
    /// How well it is known.
    pub standing: Standing,
}

/// How well a kind is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// What is known follows the server.
    Followed,
    /// The first list is under way.
    Filling,
    /// The server has no such kind.
    NotServed,
    /// The server does not give it to us: the reason in a word.
    Refused(&'static str),
    /// The server does not answer; what is known may be old.
    Unreachable,
}

impl Source {
    /// Whether nothing of it is missing.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.standing, Standing::Followed | Standing::NotServed)
    }

    /// What to say about it; nothing of a kind that a cluster need not have.
    pub(super) fn check(&self) -> Option<Check> {
        let detail = match self.standing {
            Standing::NotServed => return None,
            Standing::Followed => "up to date",
            Standing::Filling => "being listed",
            Standing::Refused(reason) => reason,
            Standing::Unreachable => "the API server does not answer; what is shown may be old",
        };
        Some(Check {
            name: format!("follows {}", self.what),
            ok: self.standing == Standing::Followed,
            detail: detail.to_owned(),
        })
    }
}
