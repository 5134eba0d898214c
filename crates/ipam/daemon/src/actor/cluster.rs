//! The actor's view of the cluster: watched objects, pod counts, and spec writes.

use std::time::Duration;

use weft_ipam::{MonitorInput, NodeConfig, SpecWrite, pool::Event};
use weft_model::ExponentialDelay;

use super::Actor;
use crate::{feeds::Observation, outbox::Out, writer::WriteError};

const BACKOFF: ExponentialDelay =
    ExponentialDelay::new(Duration::from_secs(1), Duration::from_secs(30));

impl Actor {
    pub(super) fn observed(&mut self, observation: Observation) {
        let now = self.clock.now();
        match observation {
            Observation::Node {
                uid,
                container_runtime,
            } => {
                self.container_runtime = container_runtime;
                if self.node.as_ref() != Some(&uid) {
                    tracing::info!(node = self.settings.node, %uid, "node UID learned");
                    self.pool.set_node(uid.clone());
                    self.node = Some(uid);
                    self.observe();
                }
            }
            Observation::Network(config) => {
                self.metrics.network_seen();
                let older = |known: &NodeConfig| {
                    known.uid == config.uid && config.version.is_older_than(&known.version)
                };
                if !self.config.as_ref().is_some_and(older) {
                    self.config = Some(*config);
                    self.blocked = None;
                }
                self.observe();
            }
            Observation::NetworkGone => {
                tracing::warn!("NodeNetworkConfig deleted, pods keep their addresses");
                // A deleted object gets no writes, and none of its addresses is assigned.
                if let Some(config) = &mut self.config {
                    config.deleting = true;
                }
                self.observe();
            }
            Observation::Pods if self.pods.is_none() => self.count_pods(),
            Observation::Pods => self.debounce.changed(now),
            Observation::Subnets => {}
        }
    }

    /// A NodeNetworkConfig is ignored until the UID of the Node that must own it is known.
    pub(super) fn observe(&mut self) {
        if let (Some(config), Some(_)) = (self.config.clone(), &self.node) {
            self.handle(Event::Observed(Box::new(config)));
            self.adopt();
        }
    }

    pub(super) fn adopt(&mut self) {
        if self.pool.awaits_pods() && self.feeds.pods_synced() {
            self.sweep();
        }
    }

    pub(super) fn sweep(&mut self) {
        if let Some(pods) = self.feeds.pods() {
            self.handle(Event::Sweep(pods));
        }
    }

    pub(super) fn count_pods(&mut self) {
        if let Some(pods) = self.feeds.pods() {
            self.pods = Some(pods);
        }
        self.adopt();
    }

    /// Decides whether to request addresses from the cluster, or to offer some for release.
    pub(super) fn evaluate(&mut self) {
        if self.blocked.is_some() || self.node.is_none() {
            return;
        }
        let Some(config) = &self.config else {
            return;
        };
        let pods = self.pods.as_ref().map(Vec::len);
        let input = MonitorInput {
            config,
            pods: pods.map(|pods| u32::try_from(pods).unwrap_or(u32::MAX)),
            synced: self.feeds.pods_synced(),
            exhausted: self.feeds.exhausted(config),
        };
        let now = self.clock.now();
        let decision = self.monitor.evaluate(&mut self.pool, input, now);
        for flaw in &decision.flaws {
            tracing::debug!(%flaw, "invalid scaler parameter replaced");
        }
        self.absorb(decision.step);
        if let Some(write) = decision.write {
            self.out(Out::Write(write));
        }
    }

    pub(super) fn write(&mut self, write: SpecWrite) {
        tracing::info!(%write, "writing the NodeNetworkConfig");
        let writer = self.writer.clone();
        self.writing = Some(Box::pin(async move {
            let result = writer.send(write.clone()).await;
            (write, result)
        }));
    }

    pub(super) fn written(&mut self, write: &SpecWrite, result: Result<NodeConfig, WriteError>) {
        let now = self.clock.now();
        let accepted = match result {
            Ok(config) => {
                self.metrics.written("ok");
                self.failures = 0;
                let older = |known: &NodeConfig| {
                    known.uid != config.uid
                        || known.deleting
                        || config.version.is_older_than(&known.version)
                };
                if !self.config.as_ref().is_some_and(older) {
                    self.config = Some(config.clone());
                }
                Some(config)
            }
            Err(error) => {
                self.metrics.written(error.outcome());
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot write the NodeNetworkConfig"
                );
                let fresh = (self.config.as_ref())
                    .is_some_and(|known| known.version != write.precondition.version);
                let first = self.failures == 0;
                self.failures = self.failures.saturating_add(1);
                if !fresh || !first {
                    self.blocked = Some(now + BACKOFF.after(self.failures));
                }
                None
            }
        };
        let step = self
            .monitor
            .answered(write.attempt, accepted, &mut self.pool, now);
        self.absorb(step);
    }
}
