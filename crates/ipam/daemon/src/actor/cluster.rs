//! What is seen of the cluster, and what is asked of it.

use std::time::Duration;

use weft_ipam::{NodeConfig, Outlook, SpecWrite, pool::Event};

use super::Actor;
use crate::{feeds::Sighting, outbox::Out, writer::WriteError};

const BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

impl Actor {
    pub(super) fn saw(&mut self, sighting: Sighting) {
        let now = self.clock.now();
        match sighting {
            Sighting::Node(uid) => {
                if self.node.as_ref() != Some(&uid) {
                    tracing::info!(node = self.settings.node, %uid, "this node is known");
                    self.pool.set_node(uid.clone());
                    self.node = Some(uid);
                    self.observe();
                }
            }
            Sighting::Network(config) => {
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
            Sighting::NetworkGone => {
                tracing::warn!("the NodeNetworkConfig is gone; pods keep their addresses");
                // Nothing is asked of an object that is not there, and nothing of it handed out.
                if let Some(config) = &mut self.config {
                    config.deleting = true;
                }
                self.observe();
            }
            Sighting::Pods if self.pods.is_none() => self.count_pods(),
            Sighting::Pods => self.gathering.changed(now),
            Sighting::Subnets => {}
        }
    }

    /// Nothing is believed of a NodeNetworkConfig before it is known whose it must be.
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

    /// Decides whether the cluster is to be asked for more, or offered some.
    pub(super) fn look(&mut self) {
        if self.blocked.is_some() || self.node.is_none() {
            return;
        }
        let Some(config) = &self.config else {
            return;
        };
        let pods = self.pods.as_ref().map(Vec::len);
        let outlook = Outlook {
            config,
            pods: pods.map(|pods| u32::try_from(pods).unwrap_or(u32::MAX)),
            synced: self.feeds.pods_synced(),
            exhausted: self.feeds.exhausted(config),
        };
        let now = self.clock.now();
        let verdict = self.monitor.look(&mut self.pool, outlook, now);
        for flaw in &verdict.flaws {
            tracing::debug!(%flaw, "a parameter of the scaler is not used");
        }
        self.absorb(verdict.step);
        if let Some(write) = verdict.write {
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
                if !fresh || self.failures > 0 {
                    let factor = 1 << self.failures.min(5);
                    self.blocked = Some(now + (BACKOFF * factor).min(LONGEST_BACKOFF));
                }
                self.failures = self.failures.saturating_add(1);
                None
            }
        };
        let step = self
            .monitor
            .answered(write.attempt, accepted, &mut self.pool, now);
        self.absorb(step);
    }
}
