//! The loop of one family: syncs after changes, audits in between.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::Notify,
    task::JoinError,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use weft_model::{IpFamily, ObjectKey, error_text};
use weft_proxy::{
    AuditReport, Backend, Desired, LoopbackNodePorts, NodePortTail, Quarantine, ReadBudget,
    Settings, SyncError, SyncReport,
    schedule::{Due, Schedule, SyncKind, SyncResult},
};
use weft_runtime::{EventLevel, EventNote};

use crate::{
    health::{ClockReading, HealthMonitor, Outcome},
    inbox::Inbox,
    localhost::{LocalhostPorts, LocalhostTargets},
    metrics::ProxyMetrics,
    service_health::{LocalEndpoints, ServiceHealth},
    sync_state::{Flows, SyncState},
};

/// Repeated failures of a Service are reported once in this time.
const REPORT_EVERY: Duration = Duration::from_mins(10);

/// Records an event about a Service, for its users to see.
pub(crate) type EventSink = Arc<dyn Fn(&ObjectKey, EventNote) + Send + Sync>;

/// The dependencies of a family's loop.
pub(crate) struct FamilyParts {
    pub(crate) family: IpFamily,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) flows: Box<dyn Flows>,
    /// Notified when another process changed what the backend wrote.
    pub(crate) disturbed: Arc<Notify>,
    pub(crate) metrics: ProxyMetrics,
    pub(crate) health: HealthMonitor,
    pub(crate) event_sink: EventSink,
    pub(crate) node: String,
    pub(crate) min_sync_period: Duration,
    pub(crate) sync_period: Duration,
}

/// One family's loop.
pub(crate) struct FamilyLoop {
    family: IpFamily,
    inbox: Arc<Inbox>,
    disturbed: Arc<Notify>,
    metrics: ProxyMetrics,
    health: HealthMonitor,
    event_sink: EventSink,
    node: String,
    service_health: ServiceHealth,
    /// Listeners for NodePorts on the loopback address, if those are served.
    localhost: Option<LocalhostPorts>,
    schedule: Schedule,
    /// Times of the changes that are not in the kernel yet.
    triggers: BTreeMap<ObjectKey, Vec<Timestamp>>,
    /// Time of the last report of each failure of a Service, by event reason.
    reported: BTreeMap<(ObjectKey, &'static str), Instant>,
    /// State of the loop; `None` only while a blocking thread has it.
    work: Option<Box<SyncState>>,
}

impl FamilyLoop {
    pub(crate) fn new(parts: FamilyParts) -> Self {
        let settings = parts.inbox.lock().settings.clone();
        let restricted = restricted(&settings);
        let localhost = (settings.loopback == LoopbackNodePorts::TcpServed)
            .then(|| LocalhostPorts::new(parts.family, parts.metrics.clone()));
        Self {
            family: parts.family,
            inbox: parts.inbox,
            disturbed: parts.disturbed,
            metrics: parts.metrics,
            health: parts.health.clone(),
            event_sink: parts.event_sink,
            node: parts.node,
            service_health: ServiceHealth::new(parts.family, restricted, parts.health),
            localhost,
            schedule: Schedule::new(parts.min_sync_period, parts.sync_period, instant()),
            triggers: BTreeMap::new(),
            reported: BTreeMap::new(),
            work: Some(Box::new(SyncState {
                family: parts.family,
                backend: parts.backend,
                flows: parts.flows,
                desired: Desired::new(),
                quarantine: Quarantine::default(),
                health_checks: LocalEndpoints::new(),
                localhost: LocalhostTargets::new(),
                settings,
                pending: BTreeSet::new(),
                former: Vec::new(),
                flows_due: false,
            })),
        }
    }

    /// Runs until `stop`, and then finishes a running sync.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), JoinError> {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = self.inbox.completed() => {}
        }
        let now = ClockReading::now();
        self.health.with(|health| health.updated(self.family, now));
        self.queued();
        loop {
            match self.schedule.due(instant()) {
                Due::Sync(kind) => self.sync(kind).await?,
                Due::Audit(budget) => self.audit(budget).await?,
                Due::Nothing => {
                    tokio::select! {
                        () = stop.cancelled() => return Ok(()),
                        () = self.inbox.arrived() => self.schedule.request(),
                        () = self.disturbed.notified() => self.schedule.disturbed(instant()),
                        () = sleep_until(Instant::from_std(self.schedule.deadline())) => {}
                    }
                }
            }
            if stop.is_cancelled() {
                return Ok(());
            }
        }
    }

    fn queued(&self) {
        let now = ClockReading::now();
        self.health.with(|health| health.queued(self.family, now));
        self.metrics
            .sync_queued(self.family, now.wall.as_duration().as_secs_f64());
    }

    async fn sync(&mut self, kind: SyncKind) -> Result<(), JoinError> {
        self.schedule.begin_sync();
        let Some(mut work) = self.work.take() else {
            return Ok(());
        };
        let moved = self.take_changes(&mut work).await;
        // Before the sync, even if that fails: it may need the descriptors of deleted Services.
        self.service_health
            .close_unwanted(&work.health_checks)
            .await;
        let now = instant();
        let next = work.quarantine.next_trial();
        let has_trials = next.is_some_and(|next| now >= next);
        if work.pending.is_empty() && kind == SyncKind::Partial && !moved && !has_trials {
            self.schedule.set_trial(next);
            self.work = Some(work);
            // Nothing changed, so there is no latency to measure.
            self.triggers.clear();
            self.health
                .with(|health| health.updated(self.family, ClockReading::now()));
            return Ok(());
        }
        let started = Instant::now();
        let (mut work, result) = tokio::task::spawn_blocking(move || {
            let result = work.sync(kind, now);
            (work, result)
        })
        .await?;
        let took = started.elapsed();
        self.report_quarantine(&mut work);
        let summary = match &result {
            Ok(report) if report.full => SyncResult::Full,
            Ok(_) => SyncResult::Partial,
            Err(_) => SyncResult::Failed,
        };
        let worked = summary != SyncResult::Failed;
        match result {
            Ok(report) => {
                self.succeeded(&report, took);
                self.open_health_checks(&work.health_checks).await;
                self.open_localhost_ports(&work.localhost);
            }
            Err(failure) => self.failed(failure, took),
        }
        let next = work.quarantine.next_trial();
        // A failed sync tries all Services again after the retry period.
        self.schedule.set_trial(next.filter(|_| worked));
        self.work = Some(work);
        self.schedule.synced(instant(), summary);
        if worked {
            self.delete_stale_flows().await?;
        }
        Ok(())
    }

    /// Applies the changes from the inbox. Returns whether settings changed.
    async fn take_changes(&mut self, work: &mut SyncState) -> bool {
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
        let now = ClockReading::now();
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
            if let Some(refusal) = report.refusals.last() {
                health.failed(self.family, now, refusal.clone(), Outcome::Quarantined);
            }
            health.updated(self.family, now);
        });
        if let Some(failure) = &report.partial_failure {
            tracing::warn!(family = %self.family, error = error_text(failure), "partial sync failed, full sync succeeded");
        }
        tracing::debug!(
            family = %self.family, full = report.full, bytes = report.bytes, ?took,
            children = ?report.children, "synced"
        );
    }

    /// Reports quarantined Services in log, events, metrics and health.
    fn report_quarantine(&mut self, work: &mut SyncState) {
        let new = work.take_quarantine_changes();
        let held: BTreeMap<ObjectKey, String> = work
            .quarantine
            .held()
            .map(|(key, held)| (key.clone(), held.message.clone()))
            .collect();
        for key in &new {
            let Some(message) = held.get(key) else {
                continue;
            };
            let event = refusal_event(&self.node, self.family, message);
            if self.may_report(key, event.reason) {
                tracing::error!(
                    family = %self.family, service = %key, error = message,
                    "Service refused by the kernel, quarantined"
                );
                (self.event_sink)(key, event);
            }
        }
        self.metrics.quarantined(self.family, held.len(), new.len());
        self.health
            .with(|health| health.set_quarantined(self.family, held));
    }

    async fn open_health_checks(&mut self, wanted: &LocalEndpoints) {
        for failure in self.service_health.sync(wanted).await {
            let event = failure.event(&self.node);
            if self.may_report(&failure.service, event.reason) {
                tracing::warn!(
                    error = %failure, cause = %failure.source,
                    "cannot answer health checks of a load balancer"
                );
                (self.event_sink)(&failure.service, event);
            }
        }
    }

    fn open_localhost_ports(&mut self, wanted: &LocalhostTargets) {
        let failures = match &mut self.localhost {
            Some(localhost) => localhost.sync(wanted),
            None => return,
        };
        for (service, port, error) in failures {
            if self.may_report(&service, "FailedToListenOnLocalhost") {
                tracing::warn!(
                    family = %self.family, %service, port, %error,
                    "cannot serve a NodePort on localhost"
                );
            }
        }
    }

    /// True if this failure of a Service was not reported within [`REPORT_EVERY`]; records the
    /// report.
    fn may_report(&mut self, key: &ObjectKey, reason: &'static str) -> bool {
        let now = Instant::now();
        self.reported
            .retain(|_, at| now.duration_since(*at) < REPORT_EVERY);
        let subject = (key.clone(), reason);
        let is_due = !self.reported.contains_key(&subject);
        if is_due {
            self.reported.insert(subject, now);
        }
        is_due
    }

    /// Records a failed sync. It always ended with a full one, even if a partial one came first.
    fn failed(&mut self, failure: SyncError, took: Duration) {
        self.metrics.sync_ended(self.family, SyncKind::Full, took);
        self.metrics.sync_failed(self.family, &failure);
        if let Some(partial) = failure.partial() {
            tracing::warn!(family = %self.family, error = error_text(partial), "partial sync failed before the full sync");
        }
        tracing::error!(family = %self.family, error = error_text(&failure), "sync failed, will retry");
        let now = ClockReading::now();
        self.health.with(|health| {
            health.failed(self.family, now, failure, Outcome::Unresolved);
            health.queued(self.family, now);
        });
    }

    async fn delete_stale_flows(&mut self) -> Result<(), JoinError> {
        let Some(mut work) = self.work.take() else {
            return Ok(());
        };
        if !work.flows_due {
            self.work = Some(work);
            return Ok(());
        }
        let started = Instant::now();
        let (work, result) = tokio::task::spawn_blocking(move || {
            let result = work.delete_stale_flows();
            (work, result)
        })
        .await?;
        self.work = Some(work);
        match result {
            Ok(count) => self
                .metrics
                .conntrack_cleaned(self.family, started.elapsed(), count),
            // They stay due, and the next sync tries again.
            Err(error) => {
                tracing::error!(family = %self.family, error = error_text(&error), "cannot delete stale conntrack entries");
            }
        }
        Ok(())
    }

    async fn audit(&mut self, budget: ReadBudget) -> Result<(), JoinError> {
        let Some(mut work) = self.work.take() else {
            return Ok(());
        };
        let (work, result, own) = tokio::task::spawn_blocking(move || {
            let before = thread_time();
            let result = work.backend.audit(budget);
            (work, result, thread_time().saturating_sub(before))
        })
        .await?;
        self.work = Some(work);
        let now = instant();
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
                    let first = repaired.iter().take(20).map(ToString::to_string);
                    let first: Vec<String> = first.collect();
                    tracing::warn!(
                        family = %self.family, count = repaired.len(), ?first,
                        "rules were changed by another process, repaired"
                    );
                }
            }
            Err(error) => {
                tracing::error!(family = %self.family, error = error_text(&error), "audit failed");
                self.schedule.audit_failed(now);
            }
        }
        Ok(())
    }
}

/// The event about a Service that the kernel refuses.
fn refusal_event(node: &str, family: IpFamily, message: &str) -> EventNote {
    EventNote {
        level: EventLevel::Warning,
        reason: "FailedToProgram",
        action: "Program",
        note: format!(
            "cannot program the {family} rules of this Service on node {node}: {}; the Service is not \
             served there, and is tried again when it changes or after a while",
            refusal_reason(message)
        ),
    }
}

/// The kernel's reason in a message of iptables, as in `RULE_APPEND failed (Invalid argument)`, or
/// of nftables, as in `cannot add 3 elements of services: the set is full`. Lines, chains and numbers
/// of elements differ with each attempt and would make each event a new one.
fn refusal_reason(message: &str) -> &str {
    if !message.contains("failed (") {
        let elements = message.split_once(" elements of ");
        return elements.map_or(message, |(_, reason)| reason);
    }
    let reasons = message.split("failed (").skip(1);
    let mut reasons = reasons.filter_map(|rest| Some(rest.split_once(')')?.0));
    let is_reason = |reason: &&str| !reason.starts_with("exit") && !reason.starts_with("signal");
    reasons.find(is_reason).unwrap_or("refused by the kernel")
}

/// The clock of schedules, which tests can pause.
fn instant() -> std::time::Instant {
    Instant::now().into_std()
}

/// CPU time of the calling thread.
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use prometheus_client::registry::Registry;
    use serde_json::json;
    use weft_host::NetlinkError;
    use weft_proxy::{
        LocalDetector, Model, NodeFacts, RuleOwner, Scope, config::Mode, conntrack::FlowEnds,
        objects::Object,
    };
    use weft_runtime::prometheus_text;

    use super::*;
    use crate::health::Health;

    #[test]
    fn a_refusal_has_the_reason_of_either_backend_and_nothing_that_differs_by_attempt() {
        for (message, reason) in [
            (
                "iptables-restore failed (exit status: 1): line 4: RULE_APPEND failed (Invalid \
                 argument): rule in chain KUBE-SVC-1",
                "Invalid argument",
            ),
            (
                "iptables-restore failed (exit status: 2): bad argument",
                "refused by the kernel",
            ),
            (
                "cannot add 3 elements of services: the set is full",
                "services: the set is full",
            ),
            (
                "cannot add 12 elements of endpoints: Invalid argument (os error 22)",
                "endpoints: Invalid argument (os error 22)",
            ),
            (
                "endpoint 224.0.0.1:80 of shop/web:http is not a unicast address",
                "endpoint 224.0.0.1:80 of shop/web:http is not a unicast address",
            ),
        ] {
            assert_eq!(refusal_reason(message), reason);
            let note = refusal_event("here", IpFamily::V4, message).note;
            assert!(note.contains(&format!(": {reason}; the Service")), "{note}");
        }
    }

    /// Refuses each Service whose ClusterIP is this, and keeps the names of the others.
    #[derive(Clone, Default)]
    struct RefusingBackend {
        refused: Arc<Mutex<Option<std::net::IpAddr>>>,
        written: Arc<Mutex<Vec<String>>>,
    }

    impl Backend for RefusingBackend {
        fn sync(
            &mut self,
            desired: &Desired,
            _: &Settings,
            scope: Scope<'_>,
        ) -> Result<SyncReport, SyncError> {
            let refused = *self.refused.lock().unwrap();
            for (key, service) in desired {
                if service
                    .ports
                    .iter()
                    .any(|port| Some(port.frontend.cluster_ip) == refused)
                {
                    let owner = RuleOwner::Service(key.clone());
                    return Err(SyncError::refused(
                        "line 2 failed (exit status: 4): line 2: RULE_APPEND failed (Invalid \
                         argument): rule in chain X",
                        Some(2),
                        owner,
                        "*nat\n",
                    ));
                }
            }
            *self.written.lock().unwrap() = desired.keys().map(ToString::to_string).collect();
            Ok(SyncReport {
                full: matches!(scope, Scope::Full),
                ..SyncReport::default()
            })
        }

        fn audit(&mut self, _: ReadBudget) -> Result<AuditReport, SyncError> {
            Ok(AuditReport::Unchanged)
        }
    }

    struct NoFlows;

    impl Flows for NoFlows {
        fn delete_stale(
            &mut self,
            _: IpFamily,
            _: &dyn Fn(FlowEnds) -> bool,
        ) -> Result<u64, NetlinkError> {
            Ok(0)
        }
    }

    fn service(name: &str, address: &str) -> Object {
        let object = json!({"kind": "Service", "metadata": {"namespace": "shop", "name": name},
            "spec": {"type": "ClusterIP", "clusterIP": address,
                     "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}});
        Object::decode(&object).unwrap().unwrap()
    }

    #[tokio::test]
    async fn a_refused_service_is_reported_and_the_others_are_written() {
        let facts = NodeFacts {
            name: "here".into(),
            zone: None,
        };
        let settings = Settings {
            family: IpFamily::V4,
            masquerade_all: false,
            masquerade_bit: 14,
            local_detector: Some(LocalDetector::Network("10.244.0.0/16".parse().unwrap())),
            node_ip: "127.0.0.1".parse().unwrap(),
            node_port_tail: NodePortTail::AnyLocal,
            localhost_node_ports: true,
            external_ips: true,
            loopback: LoopbackNodePorts::Untouched,
            service_networks: Vec::new(),
        };
        let inbox = Arc::new(Inbox::new(Model::new(IpFamily::V4, facts), settings));
        for (name, address) in [("cart", "10.96.0.1"), ("poison", "10.96.0.66")] {
            inbox.lock().model.set(&service(name, address));
        }
        let backend = RefusingBackend::default();
        *backend.refused.lock().unwrap() = Some("10.96.0.66".parse().unwrap());
        let mut registry = Registry::default();
        let events: Arc<Mutex<Vec<(String, EventNote)>>> = Arc::default();
        let sink = events.clone();
        let health = HealthMonitor::new(Health::new(Duration::from_secs(60)));
        let mut family = FamilyLoop::new(FamilyParts {
            family: IpFamily::V4,
            inbox: inbox.clone(),
            backend: Box::new(backend.clone()),
            flows: Box::new(NoFlows),
            disturbed: Arc::default(),
            metrics: ProxyMetrics::register(&mut registry, Mode::Iptables, Arc::new(())),
            health: health.clone(),
            event_sink: Arc::new(move |key, note| {
                sink.lock().unwrap().push((key.to_string(), note));
            }),
            node: "here".to_owned(),
            min_sync_period: Duration::ZERO,
            sync_period: Duration::from_secs(30),
        });
        health.with(|health| {
            health.set_node_eligible(true);
            health.updated(IpFamily::V4, ClockReading::now());
        });
        let body = || {
            let (good, report) = health.with(|health| health.healthy(ClockReading::now()));
            assert!(good, "the others are served");
            report.to_body()
        };
        let gauge = |registry: &Registry| {
            let text = prometheus_text(registry);
            let name = "weft_proxy_quarantined_services{ip_family=\"IPv4\"} ";
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or("none").to_owned()
        };

        for kind in [SyncKind::Full, SyncKind::Partial] {
            family.sync(kind).await.unwrap();
            assert_eq!(*backend.written.lock().unwrap(), ["shop/cart"]);
            assert_eq!(gauge(&registry), "1");
        }
        let named = "\"quarantined\":{\"count\":1,\"services\":[\"shop/poison\"]}";
        assert!(body().contains(named), "{}", body());
        let failures = health.with(|health| health.last_failures());
        assert!(
            failures.contains("Service shop/poison is quarantined: line 2 failed"),
            "{failures}"
        );
        {
            let events = events.lock().unwrap();
            assert_eq!(events.len(), 1, "reported once, not with each sync");
            let (about, note) = &events[0];
            assert_eq!(
                (about.as_str(), note.reason),
                ("shop/poison", "FailedToProgram")
            );
            assert!(
                note.note
                    .contains(": Invalid argument; the Service is not served there"),
                "{}",
                note.note
            );
        }
        let work = family.work.as_ref().unwrap();
        assert!(work.pending.is_empty(), "nothing waits for it");

        inbox.lock().model.set(&service("poison", "10.96.0.67"));
        family.sync(SyncKind::Partial).await.unwrap();
        assert_eq!(
            *backend.written.lock().unwrap(),
            ["shop/cart", "shop/poison"]
        );
        assert_eq!(gauge(&registry), "0");
        assert!(!body().contains("quarantined"), "{}", body());

        // Refused again soon after: not reported again.
        inbox.lock().model.set(&service("poison", "10.96.0.66"));
        family.sync(SyncKind::Partial).await.unwrap();
        assert_eq!(*backend.written.lock().unwrap(), ["shop/cart"]);
        assert_eq!(gauge(&registry), "1");
        assert_eq!(events.lock().unwrap().len(), 1);
    }
}
