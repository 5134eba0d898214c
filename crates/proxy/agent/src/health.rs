//! Health of the syncs, as `/healthz` and `/livez` report it.
//!
//! A family is healthy unless a sync has been pending for too long. The rules are kube-proxy's, and
//! so are the bodies, byte for byte, while all is well. While syncs fail, each family also reports
//! the last error and the number of failures (kubernetes #105742); the input of the failed write is
//! kept for people to read (kubernetes #104234). Quarantined Services are listed; a family with
//! some is still healthy, since all others are served.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use weft_model::{IpFamily, ObjectKey, error_text};
use weft_proxy::SyncError;

use crate::syncs::SyncLog;

/// A point in time on both clocks: wall time to print, monotonic time to measure.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// Wall time.
    pub wall: Timestamp,
    /// Monotonic time.
    pub steady: Instant,
}

impl ClockReading {
    /// The current time.
    pub fn now() -> Self {
        Self {
            wall: Timestamp::now(),
            steady: Instant::now(),
        }
    }
}

/// The outcome of a failed sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rules are not up to date; the sync will be retried.
    Unresolved,
    /// The full sync that followed succeeded.
    Recovered,
    /// The Services at fault were quarantined, and everything else was written.
    Quarantined,
}

/// Number of quarantined Services that a body lists at most: one bad chart can have thousands.
const NAMED: usize = 16;

/// Health of all families. Reads no clock: each call passes the time.
#[derive(Clone, Debug)]
pub struct Health {
    timeout: Duration,
    node_eligible: bool,
    families: BTreeMap<IpFamily, FamilyHealth>,
}

#[derive(Clone, Debug, Default)]
struct FamilyHealth {
    /// `None` until its loop starts: before, the family does not count.
    last_updated: Option<Timestamp>,
    oldest_pending: Option<Instant>,
    consecutive_failures: u64,
    last_failure: Option<Failure>,
    /// Quarantined Services, each with the kernel's message.
    quarantined: BTreeMap<ObjectKey, String>,
}

#[derive(Clone, Debug)]
struct Failure {
    at: Timestamp,
    error: SyncError,
    outcome: Outcome,
}

/// The body of `/healthz` and `/livez`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthReport {
    last_updated: Timestamp,
    current_time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    status: BTreeMap<IpFamily, FamilyReport>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyReport {
    last_updated: Timestamp,
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consecutive_failures: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantined: Option<QuarantineReport>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct QuarantineReport {
    count: usize,
    services: Vec<String>,
}

/// The taint that the cluster autoscaler sets on a node before it deletes it.
pub const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// True if load balancers should send traffic to an existing node.
pub fn node_is_eligible<'a>(
    being_deleted: bool,
    taints: impl IntoIterator<Item = &'a str>,
) -> bool {
    !being_deleted && taints.into_iter().all(|taint| taint != TO_BE_DELETED_TAINT)
}

impl Health {
    /// A sync that is pending for `timeout` makes its family unhealthy. The node is unknown at
    /// first, and so not eligible.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            node_eligible: false,
            families: BTreeMap::new(),
        }
    }

    /// Records a requested sync.
    pub fn queued(&mut self, family: IpFamily, now: ClockReading) {
        let family = self.families.entry(family).or_default();
        family.oldest_pending.get_or_insert(now.steady);
    }

    /// Records the start of the family's loop, or a successful sync.
    pub fn updated(&mut self, family: IpFamily, now: ClockReading) {
        let family = self.families.entry(family).or_default();
        family.last_updated = Some(now.wall);
        family.oldest_pending = None;
        family.consecutive_failures = 0;
    }

    /// Records a failed sync. One that recovered is kept for people to read, but not counted.
    pub fn failed(
        &mut self,
        family: IpFamily,
        now: ClockReading,
        error: SyncError,
        outcome: Outcome,
    ) {
        let family = self.families.entry(family).or_default();
        family.consecutive_failures += u64::from(outcome == Outcome::Unresolved);
        family.last_failure = Some(Failure {
            at: now.wall,
            error,
            outcome,
        });
    }

    /// Sets the quarantined Services of a family, each with the kernel's message.
    pub fn set_quarantined(&mut self, family: IpFamily, services: BTreeMap<ObjectKey, String>) {
        self.families.entry(family).or_default().quarantined = services;
    }

    /// Sets whether the node is eligible for traffic; see [`node_is_eligible`].
    pub fn set_node_eligible(&mut self, eligible: bool) {
        self.node_eligible = eligible;
    }

    /// True if all families are healthy.
    pub fn is_healthy(&self, now: ClockReading) -> bool {
        let mut running = self.families.values().filter(|f| f.last_updated.is_some());
        running.all(|family| self.is_family_healthy(family, now))
    }

    fn is_family_healthy(&self, family: &FamilyHealth, now: ClockReading) -> bool {
        family
            .oldest_pending
            .is_none_or(|since| now.steady.saturating_duration_since(since) < self.timeout)
    }

    /// The result and body of `/livez`.
    pub fn live(&self, now: ClockReading) -> (bool, HealthReport) {
        self.report(now, None)
    }

    /// The result and body of `/healthz`.
    pub fn healthy(&self, now: ClockReading) -> (bool, HealthReport) {
        self.report(now, Some(self.node_eligible))
    }

    fn report(&self, now: ClockReading, node_eligible: Option<bool>) -> (bool, HealthReport) {
        let status: BTreeMap<IpFamily, FamilyReport> = self
            .families
            .iter()
            .filter_map(|(name, family)| {
                let failing = family.consecutive_failures > 0;
                let failure = family.last_failure.as_ref().filter(|_| failing);
                let report = FamilyReport {
                    last_updated: family.last_updated?,
                    healthy: self.is_family_healthy(family, now),
                    last_error: failure.map(|failure| error_text(&failure.error)),
                    consecutive_failures: failing.then_some(family.consecutive_failures),
                    quarantined: family.quarantine_report(),
                };
                Some((*name, report))
            })
            .collect();
        let healthy = status.values().all(|family| family.healthy);
        let good = healthy && node_eligible.unwrap_or(true);
        let newest = status.values().map(|family| family.last_updated).max();
        let report = HealthReport {
            // As in kube-proxy, a healthy response is always as of now.
            last_updated: newest.filter(|_| !good).unwrap_or(now.wall),
            current_time: now.wall,
            node_eligible,
            healthy,
            status,
        };
        (good, report)
    }

    /// The last failure of each family with its input, as text for people.
    pub fn last_failures(&self) -> String {
        let mut text = String::new();
        for (name, family) in &self.families {
            let Some(failure) = &family.last_failure else {
                continue;
            };
            let state = match (failure.outcome, family.consecutive_failures) {
                (Outcome::Recovered, _) => "the full sync that followed succeeded".to_owned(),
                (Outcome::Quarantined, _) => "everything else was written".to_owned(),
                (Outcome::Unresolved, 0) => "a later sync succeeded".to_owned(),
                (Outcome::Unresolved, 1) => "not resolved".to_owned(),
                (Outcome::Unresolved, times) => format!("{times} times in a row, not resolved"),
            };
            let _infallible = writeln!(
                text,
                "{name}: a sync failed at {}; {state}\n{}",
                failure.at,
                error_text(&failure.error)
            );
            if let Some(input) = failure.error.input() {
                let _infallible = writeln!(text, "input:\n{}", input.trim_end());
            }
            text.push('\n');
        }
        for (name, family) in &self.families {
            for (service, message) in &family.quarantined {
                let _infallible =
                    writeln!(text, "{name}: Service {service} is quarantined: {message}");
            }
        }
        if text.is_empty() {
            text.push_str("no sync has failed\n");
        }
        text
    }
}

impl FamilyHealth {
    fn quarantine_report(&self) -> Option<QuarantineReport> {
        let names = self.quarantined.keys().take(NAMED);
        (!self.quarantined.is_empty()).then(|| QuarantineReport {
            count: self.quarantined.len(),
            services: names.map(ToString::to_string).collect(),
        })
    }
}

impl HealthReport {
    /// The body as JSON, without a line end.
    pub fn to_body(&self) -> String {
        serde_json::to_string(self)
            .unwrap_or_else(|_| unreachable!("a report has text for keys and plain values"))
    }
}

/// The health of this process, shared by the loops that update it and the servers that report it.
#[derive(Clone, Debug)]
pub struct HealthMonitor {
    health: Arc<Mutex<Health>>,
    syncs: SyncLog,
}

impl HealthMonitor {
    /// Wraps a health state.
    pub fn new(health: Health) -> Self {
        Self {
            health: Arc::new(Mutex::new(health)),
            syncs: SyncLog::default(),
        }
    }

    /// The last syncs.
    pub fn syncs(&self) -> &SyncLog {
        &self.syncs
    }

    /// Reads or changes it under a lock; `look` must not block.
    pub fn with<T>(&self, look: impl FnOnce(&mut Health) -> T) -> T {
        look(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Health> {
        // No method panics between two assignments, so the state after a panic is sound.
        self.health.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Times in seconds after the start.
    struct Time {
        wall: Timestamp,
        steady: Instant,
    }

    impl Time {
        fn new() -> Self {
            Self {
                wall: "2026-01-02T03:04:05.1204Z".parse().unwrap(),
                steady: Instant::now(),
            }
        }

        fn at(&self, seconds: u64) -> ClockReading {
            let passed = Duration::from_secs(seconds);
            ClockReading {
                wall: self.wall.checked_add(passed).unwrap(),
                steady: self.steady + passed,
            }
        }
    }

    fn started(time: &Time) -> Health {
        let mut health = Health::new(TIMEOUT);
        health.set_node_eligible(true);
        for family in IpFamily::ALL {
            health.updated(family, time.at(0));
        }
        health
    }

    fn error(message: &str, input: Option<&str>) -> SyncError {
        match input {
            Some(input) => SyncError::unavailable(message, input),
            None => SyncError::unreadable(message),
        }
    }

    #[test]
    fn quarantined_services_are_named_and_make_nothing_unhealthy() {
        let time = Time::new();
        let mut health = started(&time);
        let name = |number: usize| ObjectKey::namespaced("shop", &format!("s{number:03}"));
        let held = (0..100).map(|number| (name(number), "line 3 failed".to_owned()));
        health.set_quarantined(IpFamily::V4, held.collect());
        let refused = error("line 3 failed", Some("*nat\n"));
        health.failed(IpFamily::V4, time.at(1), refused, Outcome::Quarantined);
        health.updated(IpFamily::V4, time.at(1));
        for (good, report) in [health.healthy(time.at(2)), health.live(time.at(2))] {
            assert!(good);
            let body = report.to_body();
            let named =
                "\"healthy\":true,\"quarantined\":{\"count\":100,\"services\":[\"shop/s000\",";
            assert!(body.contains(named), "{body}");
            assert!(
                !body.contains("shop/s016") && !body.contains("lastError"),
                "{body}"
            );
        }
        let text = health.last_failures();
        assert!(
            text.contains(
                "; everything else was written\ncannot write rules: line 3 failed\ninput:\n*nat\n"
            ),
            "{text}"
        );
        let named = "IPv4: Service shop/s099 is quarantined: line 3 failed\n";
        assert!(text.contains(named), "{text}");
        health.set_quarantined(IpFamily::V4, BTreeMap::new());
        assert!(!health.live(time.at(3)).1.to_body().contains("quarantined"));
    }

    #[test]
    fn bodies_are_kube_proxys_to_the_byte() {
        let time = Time::new();
        let mut health = started(&time);
        health.updated(IpFamily::V6, time.at(2));
        let (good, report) = health.healthy(time.at(3));
        assert!(good);
        assert_eq!(
            report.to_body(),
            "{\"lastUpdated\":\"2026-01-02T03:04:08.1204Z\",\
             \"currentTime\":\"2026-01-02T03:04:08.1204Z\",\"nodeEligible\":true,\
             \"healthy\":true,\"status\":{\
             \"IPv4\":{\"lastUpdated\":\"2026-01-02T03:04:05.1204Z\",\"healthy\":true},\
             \"IPv6\":{\"lastUpdated\":\"2026-01-02T03:04:07.1204Z\",\"healthy\":true}}}"
        );
        health.queued(IpFamily::V4, time.at(4));
        let (good, report) = health.live(time.at(64));
        assert!(!good);
        assert_eq!(
            report.to_body(),
            "{\"lastUpdated\":\"2026-01-02T03:04:07.1204Z\",\
             \"currentTime\":\"2026-01-02T03:05:09.1204Z\",\"healthy\":false,\"status\":{\
             \"IPv4\":{\"lastUpdated\":\"2026-01-02T03:04:05.1204Z\",\"healthy\":false},\
             \"IPv6\":{\"lastUpdated\":\"2026-01-02T03:04:07.1204Z\",\"healthy\":true}}}"
        );
    }

    #[test]
    fn a_family_is_well_until_its_oldest_request_has_waited_too_long() {
        let time = Time::new();
        let mut health = started(&time);
        assert!(health.is_healthy(time.at(10_000)), "nothing waits");
        health.queued(IpFamily::V4, time.at(100));
        health.queued(IpFamily::V4, time.at(150));
        assert!(health.is_healthy(time.at(159)));
        assert!(!health.is_healthy(time.at(160)));
        health.updated(IpFamily::V6, time.at(161));
        assert!(
            !health.is_healthy(time.at(161)),
            "the other family's success"
        );
        health.updated(IpFamily::V4, time.at(162));
        assert!(health.is_healthy(time.at(10_000)));
    }

    #[test]
    fn a_family_whose_loop_has_not_begun_does_not_count() {
        let time = Time::new();
        let mut health = Health::new(TIMEOUT);
        health.queued(IpFamily::V4, time.at(0));
        assert!(health.is_healthy(time.at(1000)));
        let (good, report) = health.live(time.at(1000));
        assert!(good && report.status.is_empty());
    }

    #[test]
    fn an_unknown_or_leaving_node_fails_healthz_but_not_livez() {
        assert!(node_is_eligible(false, ["x"]));
        assert!(!node_is_eligible(true, []));
        assert!(!node_is_eligible(false, ["x", TO_BE_DELETED_TAINT]));
        let time = Time::new();
        let mut health = started(&time);
        health.set_node_eligible(false);
        let (good, report) = health.healthy(time.at(1));
        assert!(!good);
        assert!(report.healthy, "the body shows the syncs' health alone");
        assert_eq!(report.last_updated, time.at(0).wall);
        assert!(health.live(time.at(1)).0);
        assert!(!Health::new(TIMEOUT).healthy(time.at(0)).0, "not known yet");
    }

    #[test]
    fn failures_are_reported_after_kube_proxys_keys_until_a_sync_succeeds() {
        let time = Time::new();
        let mut health = started(&time);
        for second in 1..=2 {
            let error = error("line 3 failed", Some("*nat\n"));
            health.failed(IpFamily::V4, time.at(second), error, Outcome::Unresolved);
        }
        let body = health.live(time.at(3)).1.to_body();
        let shown = "\"healthy\":true,\"lastError\":\"cannot write rules: line 3 failed\",\
                     \"consecutiveFailures\":2}";
        assert!(body.contains(shown), "{body}");
        health.updated(IpFamily::V4, time.at(4));
        let body = health.live(time.at(5)).1.to_body();
        assert!(!body.contains("lastError"), "{body}");
    }

    #[test]
    fn the_last_failure_can_be_looked_at_with_its_input() {
        let time = Time::new();
        let mut health = started(&time);
        assert_eq!(health.last_failures(), "no sync has failed\n");
        let refused = error("line 2 failed", Some("*nat\n-A X\nCOMMIT\n"));
        health.failed(IpFamily::V4, time.at(1), refused, Outcome::Unresolved);
        let busy = error("lock is busy", None);
        health.failed(IpFamily::V6, time.at(2), busy, Outcome::Recovered);
        assert_eq!(
            health.last_failures(),
            "IPv4: a sync failed at 2026-01-02T03:04:06.1204Z; not resolved\n\
             cannot write rules: line 2 failed\ninput:\n*nat\n-A X\nCOMMIT\n\n\
             IPv6: a sync failed at 2026-01-02T03:04:07.1204Z; the full sync that followed succeeded\n\
             cannot read the kernel's rules: lock is busy\n\n"
        );
        health.updated(IpFamily::V4, time.at(3));
        let text = health.last_failures();
        assert!(text.contains("; a later sync succeeded\n"), "{text}");
    }
}
