//! The election loop: acquire, renew, lose and release a Lease.

use std::{fmt, sync::Arc, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams};
use prometheus_client::{
    collector::Collector, encoding::DescriptorEncoder, metrics::MetricType, registry::Registry,
};
use serde::Serialize;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    LeaderConfig, LeaderConfigError,
    record::{JITTER, Observed},
};
use crate::{Gate, GateState};

/// Contends for a Lease until dropped. A lost lease is contended for again.
pub struct LeaderElector {
    config: LeaderConfig,
    api: Api<Lease>,
    gate: watch::Sender<GateState>,
    status: Arc<watch::Sender<LeaderStatus>>,
    observed: Observed,
}

/// Leadership as this process last observed it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaderStatus {
    /// This process is the leader.
    pub is_leader: bool,
    /// Identity of the lease holder.
    pub holder: Option<String>,
    /// Number of the leadership term, `leaseTransitions`: grows with every new leader, so that a
    /// write that carries it can be fenced.
    pub fencing_token: i32,
}

impl LeaderElector {
    /// An elector; nothing happens before [`LeaderElector::contend`].
    pub fn new(client: Client, config: LeaderConfig) -> Result<Self, LeaderConfigError> {
        config.validate()?;
        let api = Api::namespaced(client, &config.namespace);
        Ok(Self {
            config,
            api,
            gate: watch::Sender::new(GateState::Closed { by: None }),
            status: Arc::new(watch::Sender::new(LeaderStatus::default())),
            observed: Observed::default(),
        })
    }

    /// Gate of leader-only controllers.
    pub fn gate(&self) -> Gate {
        Gate::new(self.gate.subscribe())
    }

    /// Follows the leadership.
    pub fn status(&self) -> watch::Receiver<LeaderStatus> {
        self.status.subscribe()
    }

    /// Exposes `leader_election_master_status`.
    pub fn register(&self, registry: &mut Registry) {
        let name = self.config.name.clone();
        registry.register_collector(Box::new(MasterStatus {
            name,
            status: self.status.clone(),
        }));
    }

    /// Contends until dropped. A lost lease is contended for again.
    pub async fn contend(&mut self) {
        loop {
            let renewed = self.acquire().await;
            self.lead(renewed).await;
        }
    }

    /// Waits for the lease. Returns when the winning request was begun: other candidates count from
    /// then.
    async fn acquire(&mut self) -> Instant {
        loop {
            let began = Instant::now();
            let limit = began + self.config.renew_deadline / 2;
            match timeout_at(limit, self.try_acquire()).await {
                Ok(Ok(true)) => return began,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(lease = %self.config.name, %error, "cannot contend for the lease");
                }
                Err(_) => {
                    tracing::warn!(lease = %self.config.name, "timed out contending for the lease");
                }
            }
            self.publish_status();
            sleep(
                self.config
                    .retry_period
                    .mul_f64(1.0 + (JITTER - 1.0) * fastrand::f64()),
            )
            .await;
        }
    }

    async fn try_acquire(&mut self) -> kube::Result<bool> {
        self.read_lease().await?;
        if !self
            .observed
            .is_available(&self.config.identity, Instant::now())
        {
            return Ok(false);
        }
        self.claim().await
    }

    async fn read_lease(&mut self) -> kube::Result<()> {
        let lease = self.api.get_opt(&self.config.name).await?;
        self.observed.see(lease, Instant::now());
        Ok(())
    }

    /// Writes this process as holder. `false` if another candidate was faster.
    async fn claim(&mut self) -> kube::Result<bool> {
        let claim = self.observed.claim(&self.config);
        let params = PostParams::default();
        let written = match self.observed.lease() {
            None => self.api.create(&params, &claim).await,
            Some(_) => self.api.replace(&self.config.name, &params, &claim).await,
        };
        match written {
            Ok(lease) => {
                self.observed.see(Some(lease), Instant::now());
                Ok(true)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Leads until the lease is lost.
    async fn lead(&mut self, mut renewed: Instant) {
        tracing::info!(lease = %self.config.name, identity = %self.config.identity, "leading");
        let tenure = self.config.tenure();
        self.gate.send_replace(GateState::Open {
            until: Some(renewed + tenure),
        });
        self.publish_status();
        while let Some(began) = self.renew(renewed + self.config.renew_deadline).await {
            renewed = began;
            let until = Some(renewed + tenure);
            self.gate.send_replace(GateState::Open { until });
        }
        // A new holder acts already; otherwise no process acts before the lease has expired.
        let ours = self.observed.holder() == Some(self.config.identity.as_str());
        let by = if ours {
            renewed + tenure
        } else {
            Instant::now()
        };
        tracing::warn!(lease = %self.config.name, holder = ?self.observed.holder(), "no longer leading");
        self.gate.send_replace(GateState::Closed { by: Some(by) });
        self.publish_status();
    }

    /// Renews once, after the retry period, with as many tries as fit before the deadline. Returns
    /// when the successful try was begun.
    async fn renew(&mut self, deadline: Instant) -> Option<Instant> {
        loop {
            sleep_until(deadline.min(Instant::now() + self.config.retry_period)).await;
            let began = Instant::now();
            if began >= deadline {
                return None;
            }
            // Leaves time for a second request if one hangs.
            let limit = deadline.min(began + self.config.renew_deadline / 2);
            match timeout_at(limit, self.claim()).await {
                Ok(Ok(true)) => return Some(began),
                // The Lease was written by another process. It is lost only if another process
                // holds it.
                Ok(Ok(false)) => {
                    let looked = timeout_at(deadline, self.read_lease()).await;
                    let ours = self.observed.holder() == Some(self.config.identity.as_str());
                    if matches!(looked, Ok(Ok(()))) && !ours {
                        return None;
                    }
                }
                Ok(Err(error)) => {
                    tracing::warn!(lease = %self.config.name, %error, "cannot renew the lease");
                }
                Err(_) => {
                    tracing::warn!(lease = %self.config.name, "timed out renewing the lease");
                }
            }
        }
    }

    /// Renews a lease that is held, without contending for one. Resolves when it is lost or not
    /// held.
    pub(crate) async fn keep(&mut self) {
        let state = *self.gate.borrow();
        if let GateState::Open { until: Some(until) } = state {
            let renewed = until - self.config.tenure();
            self.lead(renewed).await;
        }
        std::future::pending::<()>().await;
    }

    /// Gives the lease up, so that another process need not wait for its expiry. To be called only
    /// after all work that needs leadership has ended.
    pub async fn release(&mut self) {
        if !self.gate.borrow().is_open() {
            return;
        }
        self.gate.send_replace(GateState::Closed {
            by: Some(Instant::now()),
        });
        match tokio::time::timeout(RELEASE_LIMIT, self.try_release()).await {
            Ok(Ok(())) => tracing::info!(lease = %self.config.name, "lease released"),
            Ok(Err(error)) => tracing::warn!(%error, "cannot release the lease, it will expire"),
            Err(_) => tracing::warn!("timed out releasing the lease, it will expire"),
        }
        self.publish_status();
    }

    async fn try_release(&mut self) -> kube::Result<()> {
        // A renewal may have been cancelled after the server had written it.
        self.read_lease().await?;
        let Some(released) = self.observed.release(&self.config) else {
            return Ok(());
        };
        let lease = self
            .api
            .replace(&self.config.name, &PostParams::default(), &released)
            .await?;
        self.observed.see(Some(lease), Instant::now());
        Ok(())
    }

    fn publish_status(&self) {
        let status = LeaderStatus {
            is_leader: self.gate.borrow().is_open(),
            holder: self.observed.holder().map(str::to_owned),
            fencing_token: self.observed.transitions(),
        };
        self.status.send_if_modified(|known| {
            let changed = *known != status;
            *known = status;
            changed
        });
    }
}

/// Limit for writing the release during shutdown.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

struct MasterStatus {
    name: String,
    status: Arc<watch::Sender<LeaderStatus>>,
}

impl fmt::Debug for MasterStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterStatus({})", self.name)
    }
}

impl Collector for MasterStatus {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "leader_election_master_status",
            "1 while this process leads",
            None,
            MetricType::Gauge,
        )?;
        let value = i64::from(self.status.borrow().is_leader);
        family
            .encode_family(&[("name", self.name.as_str())])?
            .encode_gauge(&value)
    }
}
