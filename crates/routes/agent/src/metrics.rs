//! Metrics of the route controller: upstream's under upstream's name, ours under `weft_routes_`.

use std::time::{Duration, SystemTime};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use weft_providers::Calls;
use weft_routes::{RouteAction, RoutePlan, Step, Trigger};

/// Metrics of the route controller. Clones share their values.
#[derive(Clone, Debug)]
pub struct RoutesMetrics {
    passes: Family<PassLabels, Counter>,
    creation_delay: Histogram,
    steps: Family<StepLabels, Counter>,
    planned: Family<ActionLabels, Counter>,
    condition_writes: Family<OutcomeLabels, Counter>,
    drift: Family<DriftLabels, Counter>,
    routes: Family<RouteLabels, Gauge>,
    refused: Family<ReasonLabels, Gauge>,
    withheld: Gauge,
    quota: Gauge,
    forecast: Gauge,
    calls_left: Gauge,
    last_list: Gauge,
    last_pass: Gauge,
    /// Calls to the provider.
    pub calls: Calls,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PassLabels {
    outcome: &'static str,
    trigger: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    action: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DriftLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// Result of a pass, a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassOutcome {
    Changed,
    Noop,
    Error,
}

impl RoutesMetrics {
    /// Registers all metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            passes: Family::default(),
            // The KEP's model is `cloud_provider_taint_removal_delay_seconds`, which begins at a
            // second; ours are mostly done by then.
            creation_delay: Histogram::new([0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0]),
            steps: Family::default(),
            planned: Family::default(),
            condition_writes: Family::default(),
            drift: Family::default(),
            routes: Family::default(),
            refused: Family::default(),
            withheld: Gauge::default(),
            quota: Gauge::default(),
            forecast: Gauge::default(),
            calls_left: Gauge::default(),
            last_list: Gauge::default(),
            last_pass: Gauge::default(),
            calls: Calls::default(),
        };
        metrics.show(registry);
        metrics.calls.register(registry);
        metrics
    }

    fn show(&self, registry: &mut Registry) {
        registry.register(
            "route_controller_route_sync",
            "Passes of the route controller, by outcome and trigger",
            self.passes.clone(),
        );
        registry.register_with_unit(
            "weft_routes_route_creation_delay",
            "Time from when a node's CIDR and address were known until its route existed",
            Unit::Seconds,
            self.creation_delay.clone(),
        );
        registry.register(
            "weft_routes_steps",
            "Changes of the route table, by action and outcome",
            self.steps.clone(),
        );
        registry.register(
            "weft_routes_planned_steps",
            "Changes that a plan contains and the plan before did not; also counted with --observe",
            self.planned.clone(),
        );
        registry.register(
            "weft_routes_condition_writes",
            "Writes of the condition NetworkUnavailable",
            self.condition_writes.clone(),
        );
        registry.register(
            "weft_routes_drift",
            "Routes that a list showed to differ from the cached table, by kind",
            self.drift.clone(),
        );
        registry.register(
            "weft_routes_routes",
            "Routes in the table: kept for a node, or left alone as not ours to delete",
            self.routes.clone(),
        );
        registry.register(
            "weft_routes_refused",
            "Ranges of nodes that get no route, by reason",
            self.refused.clone(),
        );
        registry.register(
            "weft_routes_withheld_steps",
            "Steps of the last plan that were withheld for safety",
            self.withheld.clone(),
        );
        registry.register(
            "weft_routes_quota",
            "Capacity of the route table, 0 if the provider has no limit",
            self.quota.clone(),
        );
        registry.register(
            "weft_routes_forecast",
            "Routes in the table after the last plan",
            self.forecast.clone(),
        );
        registry.register(
            "weft_routes_provider_calls_left",
            "Calls left under the provider's rate limit, as last reported",
            self.calls_left.clone(),
        );
        registry.register_with_unit(
            "weft_routes_last_list_timestamp",
            "Unix time of the last read of the table",
            Unit::Seconds,
            self.last_list.clone(),
        );
        registry.register_with_unit(
            "weft_routes_last_pass_timestamp",
            "Unix time of the last pass that was planned",
            Unit::Seconds,
            self.last_pass.clone(),
        );
    }

    pub(crate) fn passed(&self, trigger: Trigger, outcome: PassOutcome) {
        let labels = PassLabels {
            outcome: match outcome {
                PassOutcome::Changed => "changed",
                PassOutcome::Noop => "noop",
                PassOutcome::Error => "error",
            },
            // Newer releases of upstream have these two values.
            trigger: match trigger {
                Trigger::NodeChange => "node_change",
                Trigger::Start | Trigger::Doubt | Trigger::Periodic => "periodic",
            },
        };
        self.passes.get_or_create(&labels).inc();
        if outcome != PassOutcome::Error {
            self.last_pass.set(unix_time());
        }
    }

    pub(crate) fn listed(&self) {
        self.last_list.set(unix_time());
    }

    /// Sets the gauges that a plan determines.
    pub(crate) fn planned(&self, plan: &RoutePlan) {
        let count = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
        let state = |state| self.routes.get_or_create(&RouteLabels { state }).clone();
        state("kept").set(count(plan.kept.len()));
        state("left").set(count(plan.left.len()));
        self.withheld.set(count(plan.withheld.len()));
        self.forecast.set(count(plan.forecast.after));
        self.quota.set(plan.forecast.quota.map_or(0, count));
        self.refused.clear();
        for refusal in &plan.refusals {
            let labels = ReasonLabels {
                reason: refusal.reason.label(),
            };
            self.refused.get_or_create(&labels).inc();
        }
    }

    /// Counts a step that was not in the plan before.
    pub(crate) fn asked_for(&self, step: &Step) {
        let labels = ActionLabels {
            action: action(step),
        };
        self.planned.get_or_create(&labels).inc();
    }

    pub(crate) fn stepped(&self, step: &Step, outcome: &'static str) {
        let labels = StepLabels {
            action: action(step),
            outcome,
        };
        self.steps.get_or_create(&labels).inc();
    }

    pub(crate) fn created_after(&self, delay: Duration) {
        self.creation_delay.observe(delay.as_secs_f64());
    }

    pub(crate) fn drifted(&self, kind: &'static str, routes: usize) {
        if routes > 0 {
            let labels = DriftLabels { kind };
            self.drift.get_or_create(&labels).inc_by(routes as u64);
        }
    }

    pub(crate) fn condition_written(&self, outcome: &'static str) {
        self.condition_writes
            .get_or_create(&OutcomeLabels { outcome })
            .inc();
    }

    pub(crate) fn calls_left(&self, left: u32) {
        self.calls_left.set(left.into());
    }
}

fn action(step: &Step) -> &'static str {
    match step.action {
        RouteAction::Create { .. } => "create",
        RouteAction::Replace { .. } => "replace",
        RouteAction::Delete { .. } => "delete",
    }
}

fn unix_time() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0))
}
