//! Reports decisions and results to logs, metrics, events and the status page.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use weft_routes::{Moment, Notice, ProviderError, Refusal, RoutePlan, Step, Trigger};

use crate::{controller::Parts, metrics::PassOutcome, nodes::NodeFeed};

/// Reporter of one run, which reports everything once.
pub(super) struct Report {
    parts: Arc<Parts>,
    asked_for: BTreeSet<String>,
    tight: bool,
}

impl Report {
    pub(super) fn new(parts: Arc<Parts>) -> Self {
        Self {
            parts,
            asked_for: BTreeSet::new(),
            tight: false,
        }
    }

    /// Reports a notice of the core.
    pub(super) fn notice(&mut self, notice: &Notice, nodes: &NodeFeed, now: Moment) {
        let parts = self.parts.clone();
        parts.board.noticed(notice);
        match notice {
            Notice::Pass(trigger, plan) => self.passed(*trigger, plan),
            Notice::Drifted(drift) => {
                let (appeared, vanished) = (drift.appeared.len(), drift.vanished.len());
                let changed = drift.changed.len();
                parts.metrics.drifted("appeared", appeared);
                parts.metrics.drifted("vanished", vanished);
                parts.metrics.drifted("changed", changed);
                tracing::warn!(
                    appeared,
                    vanished,
                    changed,
                    "route table was changed from outside"
                );
            }
            Notice::Refused(refusal) => self.refused(refusal, nodes),
            Notice::Failed(step, error, again) => {
                let wait = again.since(now);
                tracing::debug!(%step, %error, ?wait, "retrying route change");
            }
            Notice::ListFailed(error) => {
                parts.metrics.passed(Trigger::Periodic, PassOutcome::Error);
                tracing::error!(%error, "cannot list routes");
            }
        }
    }

    fn passed(&mut self, trigger: Trigger, plan: &RoutePlan) {
        let parts = &self.parts;
        let outcome = if plan.is_empty() {
            PassOutcome::Noop
        } else {
            PassOutcome::Changed
        };
        parts.metrics.passed(trigger, outcome);
        parts.metrics.planned(plan);
        let steps: BTreeSet<String> = plan.steps.iter().map(Step::to_string).collect();
        for step in &plan.steps {
            if !self.asked_for.contains(&step.to_string()) {
                parts.metrics.asked_for(step);
                if parts.settings.observe {
                    tracing::info!(%step, "route would change");
                }
            }
        }
        self.asked_for = steps;
        if plan.forecast.is_tight() && !self.tight {
            parts.events.quota_tight(&plan.forecast);
        }
        self.tight = plan.forecast.is_tight();
        if let Some(first) = plan.withheld.first() {
            let withheld = plan.withheld.len();
            tracing::warn!(withheld, reason = %first.reason, "route changes withheld");
        }
        tracing::debug!(?trigger, %plan, "pass");
    }

    /// A node gets no route.
    pub(super) fn refused(&self, refusal: &Refusal, nodes: &NodeFeed) {
        tracing::warn!(%refusal, "node gets no route");
        let uid = nodes.uid(&refusal.node);
        self.parts.events.refused(refusal, uid);
    }

    /// A change of a route failed.
    pub(super) fn failed(&self, step: &Step, error: &ProviderError, took: Duration) {
        self.parts.metrics.stepped(step, error.label());
        self.parts.events.failed(step, error, took);
        tracing::warn!(%step, %error, ?took, "cannot change route");
    }

    /// A route was changed.
    pub(super) fn changed(&self, step: &Step, took: Duration) {
        self.parts.metrics.stepped(step, "ok");
        self.parts.board.done(step);
        tracing::info!(%step, ?took, "route changed");
    }
}
