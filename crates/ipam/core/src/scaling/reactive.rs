//! The rule that only knows requests: at most one batch for each round trip, after the pool ran
//! low. Azure CNS scales so without watching pods.

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
    /// Clamps the parameters the way the reactive rule always did.
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

    /// The same while the subnet is nearly out of addresses.
    #[must_use]
    pub fn exhausted(self) -> Self {
        Self {
            batch: 1,
            minimum_free: 1,
            maximum_free: 2,
            ..self
        }
    }

    /// Fewer free addresses than this ask for a batch.
    pub fn minimum_free(self) -> u32 {
        self.minimum_free
    }

    /// So many free addresses give a batch back.
    pub fn maximum_free(self) -> u32 {
        self.maximum_free
    }
}

/// What the rule looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Addresses that pods have.
    pub assigned: u32,
    /// Addresses offered for release.
    pub releasing: u32,
    /// Addresses held in all.
    pub held: u32,
    /// What was asked for last.
    pub requested: u32,
    /// How many names `spec.ipsNotInUse` holds.
    pub listed: u32,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Nothing.
    Nothing,
    /// Ask for so many.
    Grow(u32),
    /// Mark so many for release; ask for less by as many as were marked.
    Shrink(u32),
    /// Write the list of what is not in use again.
    Clean,
}

/// One look. The first rule that matches wins.
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
