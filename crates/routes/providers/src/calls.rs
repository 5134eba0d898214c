//! Metrics of provider calls.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use weft_routes::ProviderError;

/// Counts and durations of calls to a provider, by operation and outcome.
///
/// Clones share their values.
#[derive(Clone, Debug)]
pub struct Calls {
    total: Family<CallLabels, Counter>,
    seconds: Family<OperationLabels, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    operation: &'static str,
    outcome: CallOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
}

/// Outcome of a call: `ok`, the label of its error, or `cut` if the caller gave up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallOutcome(&'static str);

impl CallOutcome {
    /// The outcome of a result.
    pub fn of<T>(result: &Result<T, ProviderError>) -> Self {
        Self(result.as_ref().map_or_else(ProviderError::label, |_| "ok"))
    }
}

/// Counts a call when it ends or when its future is dropped.
struct Counted<'a> {
    calls: &'a Calls,
    operation: &'static str,
    begun: Instant,
    outcome: CallOutcome,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        self.calls.record(self.operation, self.outcome, took);
    }
}

impl EncodeLabelValue for CallOutcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(self.0)
    }
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            total: Family::default(),
            seconds: Family::new_with_constructor(|| {
                Histogram::new([0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0])
            }),
        }
    }
}

impl Calls {
    /// Registers the metrics as `weft_routes_provider_*`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "weft_routes_provider_calls",
            "Calls to the provider's API, by operation and outcome",
            self.total.clone(),
        );
        registry.register(
            "weft_routes_provider_call_duration_seconds",
            "Duration of calls to the provider's API, by operation",
            self.seconds.clone(),
        );
    }

    /// Awaits a call and counts it.
    pub async fn count<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, ProviderError> {
        let mut counted = Counted {
            calls: self,
            operation,
            begun: Instant::now(),
            outcome: CallOutcome("cut"),
        };
        let result = call.await;
        counted.outcome = CallOutcome::of(&result);
        result
    }

    fn record(&self, operation: &'static str, outcome: CallOutcome, took: Duration) {
        let labels = OperationLabels { operation };
        self.seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        let labels = CallLabels { operation, outcome };
        self.total.get_or_create(&labels).inc();
    }

    /// Number of calls of this operation and outcome.
    pub fn total(&self, operation: &'static str, outcome: CallOutcome) -> u64 {
        self.total
            .get(&CallLabels { operation, outcome })
            .map_or(0, |counter| counter.get())
    }
}
