//! The loop of one family: sync when something changed, audit when nothing did.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    task::JoinError,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use weft_model::{IpFamily, ObjectKey};
use weft_proxy::{
    AuditReport, Backend, Desired, NodePortTail, Scope, Service, Settings, SyncError, SyncReport,
    conntrack::{self, FlowEnds, Reconciler},
};
use weft_runtime::EventNote;

use super::{
    health::{HealthMonitor, Moment, Outcome},
    inbox::Inbox,
    metrics::{ProxyMetrics, SyncKind},
    schedule::{Due, Schedule},
    service_health::{LocalEndpoints, ServiceHealth},
};

/// The UDP flows that the kernel tracks.
pub trait Flows: Send {
    /// Forgets the flows that are stale, and says how many these were.
    fn forget(
        &mut self,
        family: IpFamily,
        is_stale: &dyn Fn(FlowEnds) -> bool,
    ) -> Result<u64, String>;
}

/// Where one can say something about a Service that its users see.
pub(crate) type Announce = Arc<dyn Fn(&ObjectKey, EventNote) + Send + Sync>;

/// What a family's loop needs.
pub(crate) struct FamilyParts {
    pub(crate) family: IpFamily,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) flows: Box<dyn Flows>,
    pub(crate) metrics: ProxyMetrics,
    pub(crate) health: HealthMonitor,
    pub(crate) announce: Announce,
    pub(crate) node: String,
    pub(crate) min_sync_period: Duration,
    pub(crate) sync_period: Duration,
}

/// One family's loop.
pub(crate) struct FamilyLoop {
    family: IpFamily,
    inbox: Arc<Inbox>,
    metrics: ProxyMetrics,
    health: HealthMonitor,
    announce: Announce,
    node: String,
    service_health: ServiceHealth,
    schedule: Schedule,
    /// When changes happened that are not in the kernel yet.
    triggers: BTreeMap<ObjectKey, Vec<Timestamp>>,
    /// What is worked on, in a thread that may block; absent only while it is there.
    work: Option<Box<Work>>,
}

/// What goes to and fro between the loop and the threads that may block.
struct Work {
    family: IpFamily,
    backend: Box<dyn Backend>,
    flows: Box<dyn Flows>,
    desired: Desired,
    /// The health checks that load balancers make, of all Services.
    health_checks: LocalEndpoints,
    settings: Settings,
    /// Services that changed since the last sync that worked.
    pending: BTreeSet<ObjectKey>,
    /// UDP Services as they were before they changed or went, since flows were last forgotten.
    /// Kept until that worked: a failed sync must not lose it.
    former: Vec<Arc<Service>>,
    flows_due: bool,
}

impl FamilyLoop {
    pub(crate) fn new(parts: FamilyParts) -> Self {
        let settings = parts.inbox.lock().settings.clone();
        let restricted = restricted(&settings);
        Self {
            family: parts.family,
            inbox: parts.inbox,
            metrics: parts.metrics,
            health: parts.health.clone(),
            announce: parts.announce,
            node: parts.node,
            service_health: ServiceHealth::new(parts.family, restricted, parts.health),
            schedule: Schedule::new(parts.min_sync_period, parts.sync_period, Instant::now()),
            triggers: BTreeMap::new(),
            work: Some(Box::new(Work {
                family: parts.family,
                backend: parts.backend,
                flows: parts.flows,
                desired: Desired::new(),
                health_checks: LocalEndpoints::new(),
                settings,
                pending: BTreeSet::new(),
                former: Vec::new(),
                flows_due: false,
            })),
        }
    }

    /// Runs until told to stop, which waits for a sync that is under way.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), JoinError> {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = self.inbox.completed() => {}
        }
        let now = Moment::now();
        self.health.with(|health| health.updated(self.family, now));
        self.queued();
        loop {
            match self.schedule.due(Instant::now()) {
                Due::Sync { full } => self.sync(full).await?,
                Due::Audit { may_read } => self.audit(may_read).await?,
                Due::Nothing => {
                    tokio::select! {
                        () = stop.cancelled() => return Ok(()),
                        () = self.inbox.arrived() => self.schedule.request(),
                        () = sleep_until(self.schedule.deadline()) => {}
                    }
                }
            }
            if stop.is_cancelled() {
                return Ok(());
            }
        }
    }

    fn queued(&self) {
        let now = Moment::now();
        self.health.with(|health| health.queued(self.family, now));
        self.metrics
            .sync_queued(self.family, now.wall.as_duration().as_secs_f64());
    }

    async fn sync(&mut self, full: bool) -> Result<(), JoinError> {
        self.schedule.begin_sync();
        let Some(mut work) = self.work.take() else {
            return Ok(());
        };
        let moved = self.take_news(&mut work).await;
        if work.pending.is_empty() && !full && !moved {
            self.work = Some(work);
            // Whatever triggered this changed nothing: there is no latency to tell of.
            self.triggers.clear();
            self.health
                .with(|health| health.updated(self.family, Moment::now()));
            return Ok(());
        }
        let started = Instant::now();
        let (work, result) = tokio::task::spawn_blocking(move || {
            let result = work.sync(full);
            (work, result)
        })
        .await?;
        let took = started.elapsed();
        let worked = result.is_ok();
        let was_full = match &result {
            Ok(report) => report.full,
            Err(_) => true,
        };
        match result {
            Ok(report) => {
                self.succeeded(&report, took);
                self.open_health_checks(&work.health_checks.clone()).await;
            }
            Err(failure) => self.failed(failure, took),
        }
        self.work = Some(work);
        self.schedule.synced(Instant::now(), was_full, worked);
        if worked {
            self.forget_flows().await?;
        }
        Ok(())
    }

    /// Moves what came in over to what is wanted. Says whether settings changed.
    async fn take_news(&mut self, work: &mut Work) -> bool {
        let (changes, settings) = {
            let mut content = self.inbox.lock();
            let triggers = std::mem::take(&mut content.triggers);
            for (service, mut times) in triggers {
                self.triggers.entry(service).or_default().append(&mut times);
            }
            (content.model.take_changes(), content.settings.clone())
        };
        self.metrics.endpoints_taken();
        self.metrics.services_taken();
        for (key, service) in changes {
            work.change(key, service.as_ref());
        }
        let moved = work.settings != settings;
        if moved {
            let restricted = restricted(&settings);
            self.service_health
                .set_addresses(self.family, restricted)
                .await;
            work.settings = settings;
        }
        moved
    }

    fn succeeded(&mut self, report: &SyncReport, took: Duration) {
        let now = Moment::now();
        let seconds = now.wall.as_duration().as_secs_f64();
        let kind = if report.full {
            SyncKind::Full
        } else {
            SyncKind::Partial
        };
        self.metrics.sync_ended(self.family, kind, took);
        self.metrics.sync_succeeded(self.family, seconds, report);
        let syncs = self.health.syncs();
        syncs.add(self.family, report, took, now.wall);
        for time in std::mem::take(&mut self.triggers).into_values().flatten() {
            let took = now.wall.duration_since(time);
            if let Ok(took) = Duration::try_from(took) {
                self.metrics.network_programmed(self.family, took);
            }
        }
        self.health.with(|health| {
            if let Some(failure) = &report.partial_failure {
                health.failed(self.family, now, failure.clone(), Outcome::Recovered);
            }
            health.updated(self.family, now);
        });
        if let Some(failure) = &report.partial_failure {
            tracing::warn!(family = %self.family, error = %failure, "a partial sync failed; a full one worked");
        }
        tracing::debug!(
            family = %self.family, full = report.full, bytes = report.bytes, ?took,
            children = ?report.children, "synced"
        );
    }

    async fn open_health_checks(&mut self, wanted: &LocalEndpoints) {
        for failure in self.service_health.sync(wanted).await {
            tracing::warn!(error = %failure, "cannot answer health checks of a load balancer");
            (self.announce)(&failure.service, failure.event(&self.node));
        }
    }

    /// What failed last was a full sync, whatever was tried before it.
    fn failed(&mut self, failure: SyncError, took: Duration) {
        self.metrics.sync_ended(self.family, SyncKind::Full, took);
        self.metrics.sync_failed(self.family, &failure);
        if let Some(earlier) = &failure.earlier {
            tracing::warn!(family = %self.family, error = %earlier, "a partial sync failed first");
        }
        tracing::error!(family = %self.family, error = %failure, "cannot write the rules; trying again");
        let now = Moment::now();
        self.health.with(|health| {
            health.failed(self.family, now, failure, Outcome::Unresolved);
            health.queued(self.family, now);
        });
    }

    async fn forget_flows(&mut self) -> Result<(), JoinError> {
        let Some(mut work) = self.work.take() else {
            return Ok(());
        };
        if !work.flows_due {
            self.work = Some(work);
            return Ok(());
        }
        let started = Instant::now();
        let (work, result) = tokio::task::spawn_blocking(move || {
            let result = work.forget_flows();
            (work, result)
        })
        .await?;
        self.work = Some(work);
        match result {
            Ok(count) => self
                .metrics
                .conntrack_cleaned(self.family, started.elapsed(), count),
            // It stays due, and is tried again with the next sync.
            Err(error) => {
                tracing::error!(family = %self.family, error, "cannot clean connection tracking");
            }
        }
        Ok(())
    }

    async fn audit(&mut self, may_read: bool) -> Result<(), JoinError> {
        let Some(mut work) = self.work.take() else {
            return Ok(());
        };
        let (work, result, own) = tokio::task::spawn_blocking(move || {
            let before = thread_time();
            let result = work.backend.audit(may_read);
            (work, result, thread_time().saturating_sub(before))
        })
        .await?;
        self.work = Some(work);
        let now = Instant::now();
        self.metrics.audited(self.family, result.as_ref().ok());
        match result {
            Ok(report) => {
                let reading = match &report {
                    AuditReport::Read { children, .. } => Some(own + *children),
                    AuditReport::Unchanged | AuditReport::Postponed => None,
                };
                self.schedule.audited(now, reading);
                if let AuditReport::Read { repaired, .. } = report
                    && !repaired.is_empty()
                {
                    let first = &repaired[..repaired.len().min(20)];
                    tracing::warn!(
                        family = %self.family, count = repaired.len(), ?first,
                        "somebody changed our rules; repaired"
                    );
                }
            }
            Err(error) => {
                tracing::error!(family = %self.family, %error, "an audit failed");
                self.schedule.audit_failed(now);
            }
        }
        Ok(())
    }
}

impl Work {
    fn change(&mut self, key: ObjectKey, service: Option<&Arc<Service>>) {
        let former = match service {
            Some(service) => self.desired.insert(key.clone(), service.clone()),
            None => self.desired.remove(&key),
        };
        if let Some(check) = former.as_deref().and_then(health_check) {
            self.health_checks.remove(&check);
        }
        if let Some((service, check)) = service.and_then(|s| Some((s, health_check(s)?))) {
            self.health_checks.insert(check, service.local_ready);
        }
        if conntrack::is_concerned(former.as_deref(), service.map(|service| &**service)) {
            self.flows_due = true;
            if let Some(former) = former {
                // One for each set of addresses: more would not tell more.
                self.former
                    .retain(|known| !conntrack::have_same_addresses(known, &former));
                self.former.push(former);
            }
        }
        self.pending.insert(key);
    }

    fn sync(&mut self, full: bool) -> Result<SyncReport, SyncError> {
        let scope = if full {
            Scope::Full
        } else {
            Scope::Changed(&self.pending)
        };
        let report = self.backend.sync(&self.desired, &self.settings, scope)?;
        self.pending.clear();
        Ok(report)
    }

    fn forget_flows(&mut self) -> Result<u64, String> {
        let former = self.former.iter().map(|service| &**service);
        let reconciler = Reconciler::new(&self.desired, former);
        let count = self
            .flows
            .forget(self.family, &|flow| reconciler.is_stale(flow))?;
        self.former.clear();
        self.flows_due = false;
        Ok(count)
    }
}

/// Processor time of the calling thread.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// The addresses that NodePorts are restricted to.
fn restricted(settings: &Settings) -> Option<Vec<std::net::IpAddr>> {
    match &settings.node_port_tail {
        NodePortTail::AnyLocal => None,
        NodePortTail::Addresses(addresses) => Some(addresses.clone()),
    }
}

fn health_check(service: &Service) -> Option<(ObjectKey, u16)> {
    Some((service.key.clone(), service.health_check_node_port()?))
}
