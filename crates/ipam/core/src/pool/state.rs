use std::fmt;

use weft_model::Moment;

use super::Key;

/// What an address of this node is at. It is in exactly one state, and the state owns what
/// belongs to it: an address that is offered for release has no place for an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Ours, but not usable before the host is ready for it.
    Programming,
    /// To be handed out; free since then.
    Available {
        /// When it was used last, or came.
        since: Moment,
    },
    /// A pod's.
    Assigned {
        /// Whose.
        owner: Key,
    },
    /// Released, and not to be used again before.
    Cooldown {
        /// When it is available.
        until: Moment,
    },
    /// Offered to the controller (`ipsNotInUse`).
    Releasing {
        /// When it would have cooled down, if it was cooling.
        until: Option<Moment>,
    },
    /// A pod's, though the controller says it is not ours: the pod keeps it, nobody gets it next.
    Quarantined {
        /// Whose.
        owner: Key,
    },
}

/// A transition that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an address that is {from} cannot be {to}")]
pub struct Illegal {
    /// The state it is in.
    pub from: State,
    /// What was tried.
    pub to: &'static str,
}

impl State {
    /// Hands it to a pod.
    pub fn assign(self, owner: Key) -> Result<Self, Illegal> {
        match self {
            Self::Available { .. } | Self::Programming => Ok(Self::Assigned { owner }),
            from => Err(Illegal::new(from, "assigned")),
        }
    }

    /// Takes it from its pod. An address that is not ours any more is then gone.
    pub fn release(self, until: Moment) -> Result<Option<Self>, Illegal> {
        match self {
            Self::Assigned { .. } => Ok(Some(Self::Cooldown { until })),
            Self::Quarantined { .. } => Ok(None),
            from => Err(Illegal::new(from, "released")),
        }
    }

    /// Ends a cooldown whose time has come.
    #[must_use]
    pub fn cool(self, now: Moment) -> Self {
        match self {
            Self::Cooldown { until } if until <= now => Self::Available { since: until },
            other => other,
        }
    }

    /// Keeps it from being used before then, if nobody is known to have it.
    #[must_use]
    pub fn rest(self, until: Moment) -> Self {
        match self {
            Self::Available { .. } => Self::Cooldown { until },
            Self::Cooldown { until: before } => Self::Cooldown {
                until: until.max(before),
            },
            Self::Releasing { until: before } => Self::Releasing {
                until: Some(before.map_or(until, |before| until.max(before))),
            },
            other => other,
        }
    }

    /// The host is ready for it: from then on it is in the state of an address that just came.
    #[must_use]
    pub fn program(self, fresh: Self) -> Self {
        match self {
            Self::Programming => fresh,
            other => other,
        }
    }

    /// Offers it to the controller.
    pub fn offer(self) -> Result<Self, Illegal> {
        match self {
            Self::Available { .. } | Self::Programming => Ok(Self::Releasing { until: None }),
            Self::Cooldown { until } => Ok(Self::Releasing { until: Some(until) }),
            Self::Releasing { until } => Ok(Self::Releasing { until }),
            from => Err(Illegal::new(from, "offered for release")),
        }
    }

    /// Takes an offer back, after the controller can no longer accept it.
    pub fn reclaim(self, now: Moment) -> Result<Self, Illegal> {
        match self {
            Self::Releasing { until: Some(until) } => Ok(Self::Cooldown { until }.cool(now)),
            Self::Releasing { until: None } => Ok(Self::Available { since: now }),
            from => Err(Illegal::new(from, "reclaimed")),
        }
    }

    /// The controller took it away.
    #[must_use]
    pub fn vanish(self) -> Option<Self> {
        match self {
            Self::Assigned { owner } | Self::Quarantined { owner } => {
                Some(Self::Quarantined { owner })
            }
            _ => None,
        }
    }

    /// The controller says that it is ours.
    #[must_use]
    pub fn confirm(self) -> Self {
        match self {
            Self::Quarantined { owner } => Self::Assigned { owner },
            other => other,
        }
    }

    /// Who has it.
    pub fn owner(&self) -> Option<&Key> {
        match self {
            Self::Assigned { owner } | Self::Quarantined { owner } => Some(owner),
            _ => None,
        }
    }

    /// A word for a page or a metric label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Programming => "programming",
            Self::Available { .. } => "available",
            Self::Assigned { .. } => "assigned",
            Self::Cooldown { .. } => "cooling",
            Self::Releasing { .. } => "releasing",
            Self::Quarantined { .. } => "quarantined",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl Illegal {
    fn new(from: State, to: &'static str) -> Self {
        Self { from, to }
    }
}
