//! Health checks behind `/livez` and `/readyz`.

use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use thiserror::Error;

use super::Manager;
use crate::ControllerState;

/// Limits beyond which `/livez` fails. None by default: a restart rarely cures a server that does
/// not answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct HealthLimits {
    /// Longest time that an informer may fail to follow the server.
    pub stuck_watch: Option<Duration>,
    /// Longest time that one reconcile may take.
    pub stuck_reconcile: Option<Duration>,
}

/// Reason of a failed health check, in words for `/readyz?verbose`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Unhealthy(String);

impl<T: Into<String>> From<T> for Unhealthy {
    fn from(reason: T) -> Self {
        Self(reason.into())
    }
}

type Check = Arc<dyn Fn() -> Result<(), Unhealthy> + Send + Sync>;

/// A named check of `/readyz`, and of `/livez` if built with [`HealthCheck::liveness`].
#[derive(Clone)]
pub struct HealthCheck {
    name: String,
    affects_liveness: bool,
    check: Check,
}

impl HealthCheck {
    /// A check of readiness only.
    pub fn readiness(
        name: &str,
        check: impl Fn() -> Result<(), Unhealthy> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            affects_liveness: false,
            check: Arc::new(check),
        }
    }

    /// A check of liveness and of readiness.
    pub fn liveness(
        name: &str,
        check: impl Fn() -> Result<(), Unhealthy> + Send + Sync + 'static,
    ) -> Self {
        Self {
            affects_liveness: true,
            ..Self::readiness(name, check)
        }
    }
}

pub(super) struct Health {
    limits: HealthLimits,
    draining: AtomicBool,
    checks: Mutex<Vec<HealthCheck>>,
}

/// The result of all checks of a path.
#[derive(Debug)]
pub(super) struct Verdict {
    path: &'static str,
    results: Vec<(String, Result<(), Unhealthy>)>,
}

impl Verdict {
    pub(super) fn is_healthy(&self) -> bool {
        self.results.iter().all(|(_, result)| result.is_ok())
    }

    /// The format of Kubernetes components.
    pub(super) fn render(&self, verbose: bool) -> String {
        if self.is_healthy() && !verbose {
            return "ok".to_owned();
        }
        let mut text = String::new();
        for (name, result) in &self.results {
            let _infallible = match result {
                Ok(()) => writeln!(text, "[+]{name} ok"),
                Err(why) => writeln!(text, "[-]{name} failed: {why}"),
            };
        }
        let outcome = if self.is_healthy() {
            "passed"
        } else {
            "failed"
        };
        let _infallible = writeln!(text, "{} check {outcome}", self.path);
        text
    }
}

impl Health {
    pub(super) fn new(limits: HealthLimits) -> Self {
        Self {
            limits,
            draining: AtomicBool::new(false),
            checks: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn add(&self, check: HealthCheck) {
        self.checks.lock().push(check);
    }

    pub(super) fn set_draining(&self) {
        self.draining.store(true, Relaxed);
    }

    pub(super) fn live(&self, manager: &Manager) -> Verdict {
        let mut results = vec![
            ("ping".to_owned(), Ok(())),
            ("watches".to_owned(), self.watches(manager)),
            ("reconciles".to_owned(), self.reconciles(manager)),
        ];
        results.extend(self.added(|check| check.affects_liveness));
        Verdict {
            path: "livez",
            results,
        }
    }

    pub(super) fn ready(&self, manager: &Manager) -> Verdict {
        let draining = self.draining.load(Relaxed);
        let mut results = vec![
            ("ping".to_owned(), Ok(())),
            (
                "shutdown".to_owned(),
                if draining {
                    Err("draining".into())
                } else {
                    Ok(())
                },
            ),
            ("start".to_owned(), started(manager)),
            ("controllers".to_owned(), controllers(manager)),
        ];
        results.extend(self.added(|_| true));
        Verdict {
            path: "readyz",
            results,
        }
    }

    fn added(&self, wanted: impl Fn(&HealthCheck) -> bool) -> Vec<(String, Result<(), Unhealthy>)> {
        let checks = self.checks.lock().clone();
        checks
            .iter()
            .filter(|check| wanted(check))
            .map(|check| (check.name.clone(), (check.check)()))
            .collect()
    }

    fn watches(&self, manager: &Manager) -> Result<(), Unhealthy> {
        let Some(limit) = self.limits.stuck_watch else {
            return Ok(());
        };
        let clusters = manager.clusters().list();
        let mut informers = clusters
            .iter()
            .flat_map(|cluster| cluster.cache().snapshot());
        match informers.find(|info| info.is_stuck(limit)) {
            Some(info) => {
                Err(format!("{} could not be followed for over {limit:?}", info.kind).into())
            }
            None => Ok(()),
        }
    }

    fn reconciles(&self, manager: &Manager) -> Result<(), Unhealthy> {
        let Some(limit) = self.limits.stuck_reconcile else {
            return Ok(());
        };
        let stuck = manager
            .controllers()
            .into_iter()
            .find(|c| c.longest_reconcile() > limit);
        match stuck {
            Some(controller) => Err(format!(
                "a reconcile of {} has run for over {limit:?}",
                controller.name()
            )
            .into()),
            None => Ok(()),
        }
    }
}

/// The status server starts first and answers before the rest has started.
fn started(manager: &Manager) -> Result<(), Unhealthy> {
    let started = manager.inner.members.has_started();
    if started {
        Ok(())
    } else {
        Err("startup is not complete".into())
    }
}

/// Ready once every controller that can run has seen the whole state.
fn controllers(manager: &Manager) -> Result<(), Unhealthy> {
    for controller in manager.controllers() {
        let state = controller.state().borrow().clone();
        match state {
            ControllerState::Syncing
            | ControllerState::Draining
            | ControllerState::Degraded(_)
            | ControllerState::Failed(_) => {
                return Err(format!("{} is {state}", controller.name()).into());
            }
            ControllerState::Stopped if controller.is_wanted() => {
                return Err(format!("{} has not started", controller.name()).into());
            }
            ControllerState::Stopped | ControllerState::Waiting(_) | ControllerState::Running => {}
        }
    }
    Ok(())
}
