//! States of an address, and the transitions between them.

use std::fmt;

use weft_model::Moment;

use super::Key;

/// State of an address. An address is in exactly one state, and the state owns its data: an address
/// that is offered for release cannot have an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Granted, but not usable before the host has programmed it.
    Programming,
    /// Free to be assigned.
    Available {
        /// Time of its last use, or of its arrival.
        since: Moment,
    },
    /// Held by a pod.
    Assigned {
        /// Key of the attachment.
        owner: Key,
    },
    /// Released, and not to be assigned before a time.
    Cooldown {
        /// Time at which it becomes available.
        until: Moment,
    },
    /// Offered to the controller (`ipsNotInUse`).
    Releasing {
        /// End of its cooldown, if it was cooling down.
        until: Option<Moment>,
    },
    /// Held by a pod, though the controller no longer grants it: the pod keeps it, no other gets
    /// it.
    Quarantined {
        /// Key of the attachment.
        owner: Key,
    },
}

/// A transition that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an address that is {from} cannot be {to}")]
pub struct IllegalTransition {
    /// The current state.
    pub from: State,
    /// The attempted transition, as a participle.
    pub to: &'static str,
}

impl State {
    /// Assigns it to a pod.
    pub fn assign(self, owner: Key) -> Result<Self, IllegalTransition> {
        match self {
            Self::Available { .. } | Self::Programming => Ok(Self::Assigned { owner }),
            from => Err(IllegalTransition::new(from, "assigned")),
        }
    }

    /// Releases it. None if it was quarantined and is no longer the node's.
    pub fn release(self, until: Moment) -> Result<Option<Self>, IllegalTransition> {
        match self {
            Self::Assigned { .. } => Ok(Some(Self::Cooldown { until })),
            Self::Quarantined { .. } => Ok(None),
            from => Err(IllegalTransition::new(from, "released")),
        }
    }

    /// Ends an expired cooldown.
    #[must_use]
    pub fn cool(self, now: Moment) -> Self {
        match self {
            Self::Cooldown { until } if until <= now => Self::Available { since: until },
            other => other,
        }
    }

    /// Holds it back until this time, unless an owner is known.
    #[must_use]
    pub fn hold_until(self, until: Moment) -> Self {
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

    /// The host has programmed it: it gets the state of a new address.
    #[must_use]
    pub fn program(self, fresh: Self) -> Self {
        match self {
            Self::Programming => fresh,
            other => other,
        }
    }

    /// Offers it to the controller for release.
    pub fn offer(self) -> Result<Self, IllegalTransition> {
        match self {
            Self::Available { .. } | Self::Programming => Ok(Self::Releasing { until: None }),
            Self::Cooldown { until } => Ok(Self::Releasing { until: Some(until) }),
            Self::Releasing { until } => Ok(Self::Releasing { until }),
            from => Err(IllegalTransition::new(from, "offered for release")),
        }
    }

    /// Withdraws an offer that the controller can no longer accept.
    pub fn reclaim(self, now: Moment) -> Result<Self, IllegalTransition> {
        match self {
            Self::Releasing { until: Some(until) } => Ok(Self::Cooldown { until }.cool(now)),
            Self::Releasing { until: None } => Ok(Self::Available { since: now }),
            from => Err(IllegalTransition::new(from, "reclaimed")),
        }
    }

    /// The controller withdrew it. None if no pod holds it.
    #[must_use]
    pub fn vanish(self) -> Option<Self> {
        match self {
            Self::Assigned { owner } | Self::Quarantined { owner } => {
                Some(Self::Quarantined { owner })
            }
            _ => None,
        }
    }

    /// The controller grants it again.
    #[must_use]
    pub fn confirm(self) -> Self {
        match self {
            Self::Quarantined { owner } => Self::Assigned { owner },
            other => other,
        }
    }

    /// Key of the attachment that holds it.
    pub fn owner(&self) -> Option<&Key> {
        match self {
            Self::Assigned { owner } | Self::Quarantined { owner } => Some(owner),
            _ => None,
        }
    }

    /// Label for pages and metrics.
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

impl IllegalTransition {
    fn new(from: State, to: &'static str) -> Self {
        Self { from, to }
    }
}
