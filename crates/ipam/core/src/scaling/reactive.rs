//! Azure CNS's reactive scaling rule, which does not watch pods: at most one batch per round trip,
//! requested after the pool ran low.

use super::{DEFAULT_MAXIMUM, MAXIMUM, ScalerParameters};

/// Thresholds of the reactive rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thresholds {
    batch: u32,
    minimum_free: u32,
    maximum_free: u32,
    maximum: u32,
}

impl Thresholds {
    /// Clamps the parameters the way upstream does.
    pub fn read(written: Option<&ScalerParameters>) -> Self {
        let written = written.copied().unwrap_or_default();
        let bounded = |value: Option<i64>, least: u32, most: u32| {
            let value = value.unwrap_or_default().max(0);
            u32::try_from(value).unwrap_or(most).clamp(least, most)
        };
        let maximum = match written.max_ip_count {
            Some(count) if count >= 1 => bounded(Some(count), 1, MAXIMUM),
            _ => DEFAULT_MAXIMUM,
        };
        let batch = bounded(written.batch_size, 1, maximum);
        let request = bounded(written.request_threshold_percent, 1, 100);
        let release = bounded(written.release_threshold_percent, request + 100, 10_000);
        Self {
            batch,
            minimum_free: (batch * request + 50) / 100,
            maximum_free: (batch * release + 50) / 100,
            maximum,
        }
    }

    /// The same while the subnet is nearly exhausted.
    #[must_use]
    pub fn exhausted(self) -> Self {
        Self {
            batch: 1,
            minimum_free: 1,
            maximum_free: 2,
            ..self
        }
    }

    /// With fewer free addresses than this a batch is requested.
    pub fn minimum_free(self) -> u32 {
        self.minimum_free
    }

    /// With this many free addresses a batch is released.
    pub fn maximum_free(self) -> u32 {
        self.maximum_free
    }
}

/// Inputs of the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Addresses held by pods.
    pub assigned: u32,
    /// Addresses offered for release.
    pub releasing: u32,
    /// Addresses held in total.
    pub held: u32,
    /// The number requested last.
    pub requested: u32,
    /// Number of names in `spec.ipsNotInUse`.
    pub listed: u32,
}

/// Decision of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// No change.
    Nothing,
    /// Request this many addresses.
    Grow(u32),
    /// Offer this many for release, and request less by the number offered.
    Shrink(u32),
    /// Write `spec.ipsNotInUse` again.
    Clean,
}

/// Evaluates the rule once. The first condition that matches wins.
pub fn decide(counts: Counts, thresholds: Thresholds) -> Change {
    let Thresholds { batch, maximum, .. } = thresholds;
    let requested = counts.requested;
    let expected = i64::from(requested) - i64::from(counts.assigned);
    if expected < i64::from(thresholds.minimum_free) {
        if requested >= maximum {
            return Change::Nothing;
        }
        return Change::Grow((requested + batch - requested % batch).min(maximum));
    }
    let used = counts.assigned.saturating_add(counts.releasing);
    let free = counts.held.saturating_sub(used);
    if free >= thresholds.maximum_free {
        let surplus = match requested % batch {
            0 => batch,
            odd => odd,
        };
        return Change::Shrink(surplus.min(free).min(requested));
    }
    if counts.listed != counts.releasing {
        return Change::Clean;
    }
    Change::Nothing
}
