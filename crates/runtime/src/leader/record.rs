//! The rules of an election as pure functions of the Lease and the time.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use thiserror::Error;
use tokio::time::Instant;

/// Lease, identity and timing of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderConfig {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity of this process; must be unique among the candidates.
    pub identity: String,
    /// Time without a renewal after which another candidate may take the lease.
    pub lease_duration: Duration,
    /// Time for renewing, after which this process gives leadership up.
    pub renew_deadline: Duration,
    /// Interval between tries.
    pub retry_period: Duration,
}

/// A timing that could let two processes lead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LeaderConfigError {
    /// Another candidate could take over while this process still tries to renew.
    #[error("lease duration {lease:?} must be longer than renew deadline {renew:?}")]
    LeaseTooShort {
        /// The lease duration.
        lease: Duration,
        /// The renew deadline.
        renew: Duration,
    },
    /// One failed try would already end the leadership.
    #[error("renew deadline {renew:?} must be longer than 1.2 times the retry period {retry:?}")]
    DeadlineTooShort {
        /// The renew deadline.
        renew: Duration,
        /// The retry period.
        retry: Duration,
    },
    /// Leases count whole seconds: other candidates would wait for less than this process assumes.
    #[error("lease duration {0:?} must be a whole number of seconds, at least one")]
    NotWholeSeconds(Duration),
}

/// Spread of the retry period while waiting for the lease.
pub(super) const JITTER: f64 = 1.2;

impl LeaderConfig {
    /// The timing of Kubernetes' own components: 15 s, 10 s, 2 s.
    pub fn new(namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// Checks the timing.
    pub fn validate(&self) -> Result<(), LeaderConfigError> {
        let (lease, renew, retry) = (self.lease_duration, self.renew_deadline, self.retry_period);
        if lease.as_secs() == 0 || lease.subsec_nanos() != 0 {
            return Err(LeaderConfigError::NotWholeSeconds(lease));
        }
        if lease <= renew {
            return Err(LeaderConfigError::LeaseTooShort { lease, renew });
        }
        if renew <= retry.mul_f64(JITTER) {
            return Err(LeaderConfigError::DeadlineTooShort { renew, retry });
        }
        Ok(())
    }

    /// Time after the start of a renewal during which the leader may act: a little less than other
    /// candidates wait.
    pub(super) fn tenure(&self) -> Duration {
        let margin = self.lease_duration.saturating_sub(self.renew_deadline) / 5;
        self.lease_duration.saturating_sub(margin)
    }
}

/// The Lease as last seen, and the time of its last change.
#[derive(Debug, Default)]
pub(super) struct Observed {
    lease: Option<Lease>,
    changed_at: Option<Instant>,
}

impl Observed {
    /// Stores the Lease as the server returned it.
    pub(super) fn see(&mut self, lease: Option<Lease>, now: Instant) {
        let record = |lease: &Option<Lease>| lease.as_ref().and_then(|lease| lease.spec.clone());
        if self.changed_at.is_none() || record(&self.lease) != record(&lease) {
            self.changed_at = Some(now);
        }
        self.lease = lease;
    }

    pub(super) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    fn spec(&self) -> Option<&LeaseSpec> {
        self.lease.as_ref()?.spec.as_ref()
    }

    /// The lease holder; `None` after a release.
    pub(super) fn holder(&self) -> Option<&str> {
        self.spec()?
            .holder_identity
            .as_deref()
            .filter(|holder| !holder.is_empty())
    }

    /// Returns whether a candidate may take the lease: it is free, its own, or not renewed for the
    /// duration in it.
    pub(super) fn is_available(&self, identity: &str, now: Instant) -> bool {
        let Some(holder) = self.holder() else {
            return true;
        };
        let seconds = self
            .spec()
            .and_then(|spec| spec.lease_duration_seconds)
            .unwrap_or(0);
        let promised = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let expired = self
            .changed_at
            .is_some_and(|changed| now >= changed + promised);
        holder == identity || expired
    }

    /// Number of times the lease changed hands: grows with every new leader, so it can fence
    /// writes.
    pub(super) fn transitions(&self) -> i32 {
        self.spec()
            .and_then(|spec| spec.lease_transitions)
            .unwrap_or(0)
    }

    /// The Lease with this process as holder, renewed now.
    pub(super) fn claim(&self, config: &LeaderConfig) -> Lease {
        let now = MicroTime(Timestamp::now());
        let before = self.spec();
        let ours = self.holder() == Some(config.identity.as_str());
        let acquired = before
            .filter(|_| ours)
            .and_then(|spec| spec.acquire_time.clone());
        let mut lease = self.lease.clone().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(config.name.clone()),
                namespace: Some(config.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let transitions = match before {
            None => 0,
            Some(_) => self.transitions() + i32::from(!ours),
        };
        let mut spec = lease.spec.take().unwrap_or_default();
        spec.holder_identity = Some(config.identity.clone());
        spec.lease_duration_seconds = i32::try_from(config.lease_duration.as_secs()).ok();
        spec.acquire_time = Some(acquired.unwrap_or_else(|| now.clone()));
        spec.renew_time = Some(now);
        spec.lease_transitions = Some(transitions);
        lease.spec = Some(spec);
        lease
    }

    /// The Lease without a holder, if this process holds it.
    pub(super) fn release(&self, config: &LeaderConfig) -> Option<Lease> {
        if self.holder() != Some(config.identity.as_str()) {
            return None;
        }
        let mut lease = self.lease.clone()?;
        let spec = lease.spec.as_mut()?;
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        Some(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(identity: &str) -> LeaderConfig {
        LeaderConfig::new("kube-system", "weft-controller", identity)
    }

    #[test]
    fn a_timing_that_could_let_two_lead_is_refused() {
        let with = |lease, renew, retry| LeaderConfig {
            lease_duration: Duration::from_secs(lease),
            renew_deadline: Duration::from_secs(renew),
            retry_period: Duration::from_secs(retry),
            ..config("a")
        };
        assert_eq!(with(15, 10, 2).validate(), Ok(()));
        assert!(matches!(
            with(10, 10, 2).validate(),
            Err(LeaderConfigError::LeaseTooShort { .. })
        ));
        assert!(matches!(
            with(15, 2, 2).validate(),
            Err(LeaderConfigError::DeadlineTooShort { .. })
        ));
        assert!(matches!(
            with(0, 0, 0).validate(),
            Err(LeaderConfigError::NotWholeSeconds(_))
        ));
        let fraction = LeaderConfig {
            lease_duration: Duration::from_millis(15_900),
            ..config("a")
        };
        assert!(
            fraction.validate().is_err(),
            "other candidates would wait 15 s, not 15.9 s"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn expiry_counts_from_when_the_record_was_seen_to_change_not_from_its_times() {
        let mut observed = Observed::default();
        let mut lease = Observed::default().claim(&config("other"));
        // A holder whose clock is a day behind.
        let yesterday = Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_hours(24);
        lease.spec.as_mut().unwrap().renew_time = Some(MicroTime(yesterday));
        observed.see(Some(lease.clone()), Instant::now());
        tokio::time::advance(Duration::from_secs(14)).await;
        observed.see(Some(lease.clone()), Instant::now());
        assert!(!observed.is_available("us", Instant::now()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(
            observed.is_available("us", Instant::now()),
            "not renewed for its duration"
        );
        lease.spec.as_mut().unwrap().renew_time = Some(MicroTime(Timestamp::now()));
        observed.see(Some(lease), Instant::now());
        assert!(!observed.is_available("us", Instant::now()), "renewed");
        assert!(observed.is_available("other", Instant::now()), "its own");
    }

    #[test]
    fn transitions_grow_with_each_new_holder_only() {
        let mut observed = Observed::default();
        let now = Instant::now();
        observed.see(Some(observed.claim(&config("a"))), now);
        assert_eq!(observed.transitions(), 0);
        observed.see(Some(observed.claim(&config("a"))), now);
        assert_eq!(observed.transitions(), 0, "a renewal");
        observed.see(Some(observed.claim(&config("b"))), now);
        assert_eq!((observed.holder(), observed.transitions()), (Some("b"), 1));
        assert!(
            observed.release(&config("a")).is_none(),
            "only the holder may release"
        );
        observed.see(observed.release(&config("b")), now);
        assert_eq!(observed.holder(), None);
        observed.see(Some(observed.claim(&config("b"))), now);
        assert_eq!(observed.transitions(), 2, "another term");
    }
}
