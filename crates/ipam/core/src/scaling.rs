//! Number of addresses a node requests.
//!
//! [`Scaler::target`] is the idempotent equation `B × ⌈mf + Demand/B⌉`: a pure function of demand
//! and parameters, independent of earlier requests. [`reactive`] is the older rule that it
//! replaces, kept for comparison.

pub mod reactive;
mod window;

use serde::{Deserialize, Serialize};

pub use window::Window;

/// Batch size if none is set.
pub const DEFAULT_BATCH: u32 = 16;
/// Percentage of a batch kept free if no scaler is set at all.
pub const DEFAULT_PERCENT: u32 = 50;
/// Maximum number of addresses of a node if no limit is set.
pub const DEFAULT_MAXIMUM: u32 = 250;
/// Maximum of `spec.requestedIPCount`, by the validation of the CRD.
pub const MAXIMUM: u32 = 4096;
/// Upper bound of the free percentage: more than four batches is taken for a mistake.
pub const MAXIMUM_PERCENT: u32 = 400;

/// `status.scaler` as it was written, not validated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalerParameters {
    /// B, the batch size in addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<i64>,
    /// mf × 100. Absent means zero, since zeros are not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_threshold_percent: Option<i64>,
    /// Mf × 100, of the reactive rule only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_threshold_percent: Option<i64>,
    /// The hard cap of a node.
    #[serde(rename = "maxIPCount", skip_serializing_if = "Option::is_none")]
    pub max_ip_count: Option<i64>,
}

/// A parameter that cannot be used, and the replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ScalerFlaw {
    /// Zero, negative or missing.
    #[error("scaler batchSize {0} is not positive; using {DEFAULT_BATCH}")]
    Batch(i64),
    /// Zero, negative or missing: never a reason to give everything back.
    #[error("scaler maxIPCount {0} is not positive; using {DEFAULT_MAXIMUM}")]
    Maximum(i64),
    /// More than a node may request.
    #[error("scaler maxIPCount {0} is more than a node may request; using {MAXIMUM}")]
    MaximumTooLarge(i64),
    /// A negative percentage.
    #[error("scaler requestThresholdPercent {0} is negative; using {DEFAULT_PERCENT}")]
    Percent(i64),
    /// A percentage that would hoard addresses.
    #[error("scaler requestThresholdPercent {0} is too large; using {MAXIMUM_PERCENT}")]
    PercentTooLarge(i64),
}

/// Validated parameters: a batch from 1 to the maximum, a positive maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scaler {
    batch: u32,
    percent: u32,
    maximum: u32,
}

impl Default for Scaler {
    fn default() -> Self {
        Self {
            batch: DEFAULT_BATCH,
            percent: DEFAULT_PERCENT,
            maximum: DEFAULT_MAXIMUM,
        }
    }
}

impl Scaler {
    /// Validates the parameters; replaces the invalid ones and reports them.
    pub fn read(written: Option<&ScalerParameters>) -> (Self, Vec<ScalerFlaw>) {
        let Some(written) = written else {
            return (Self::default(), Vec::new());
        };
        let mut flaws = Vec::new();
        let maximum = maximum(written.max_ip_count.unwrap_or_default(), &mut flaws);
        let batch = match written.batch_size.unwrap_or_default() {
            size if size < 1 => {
                flaws.push(ScalerFlaw::Batch(size));
                DEFAULT_BATCH
            }
            size => u32::try_from(size).unwrap_or(u32::MAX),
        };
        let percent = match written.request_threshold_percent.unwrap_or_default() {
            percent if percent < 0 => {
                flaws.push(ScalerFlaw::Percent(percent));
                DEFAULT_PERCENT
            }
            percent if percent > i64::from(MAXIMUM_PERCENT) => {
                flaws.push(ScalerFlaw::PercentTooLarge(percent));
                MAXIMUM_PERCENT
            }
            percent => u32::try_from(percent).unwrap_or(DEFAULT_PERCENT),
        };
        let scaler = Self {
            batch: batch.min(maximum),
            percent,
            maximum,
        };
        (scaler, flaws)
    }

    /// The same while the subnet is nearly exhausted: one address at a time, one free.
    #[must_use]
    pub fn exhausted(self) -> Self {
        Self {
            batch: 1,
            percent: 100,
            maximum: self.maximum,
        }
    }

    /// B, the batch size in addresses.
    pub fn batch(self) -> u32 {
        self.batch
    }

    /// The hard cap of a node.
    pub fn maximum(self) -> u32 {
        self.maximum
    }

    /// Number of addresses to hold for this demand.
    pub fn target(self, demand: u32) -> u32 {
        let (batch, percent) = (u64::from(self.batch), u64::from(self.percent));
        let batches = (percent * batch + 100 * u64::from(demand)).div_ceil(100 * batch);
        let target = (batch * batches).min(u64::from(self.maximum));
        u32::try_from(target).unwrap_or(self.maximum)
    }
}

fn maximum(written: i64, flaws: &mut Vec<ScalerFlaw>) -> u32 {
    if written < 1 {
        flaws.push(ScalerFlaw::Maximum(written));
        DEFAULT_MAXIMUM
    } else if written > i64::from(MAXIMUM) {
        flaws.push(ScalerFlaw::MaximumTooLarge(written));
        MAXIMUM
    } else {
        u32::try_from(written).unwrap_or(DEFAULT_MAXIMUM)
    }
}
