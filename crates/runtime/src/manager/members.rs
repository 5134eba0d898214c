//! The controllers and components of a manager, and the phases they belong to.

use std::{collections::BTreeMap, fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::join_all};
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::{
    collector::Collector, encoding::DescriptorEncoder, metrics::MetricType, registry::Registry,
};
use thiserror::Error;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{Component, ComponentScope, Phase};
use crate::{ControllerHandle, Failure, Gate, GateState};

/// Identifies a member of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComponentId(u64);

/// Another member has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a controller or component named {0:?} already exists")]
pub struct DuplicateName(pub String);

type FailedMember = (String, Failure);

#[derive(Clone)]
pub(super) struct Members {
    manager: String,
    state: Arc<Mutex<State>>,
    begun: watch::Sender<Option<Phase>>,
}

#[derive(Default)]
struct State {
    members: BTreeMap<ComponentId, Member>,
    next: u64,
    failures: Option<mpsc::UnboundedSender<FailedMember>>,
}

struct Member {
    name: String,
    phase: Phase,
    role: Role,
}

enum Role {
    Controller(ControllerHandle),
    Component {
        /// Dropped when the member leaves: it may hold the manager itself.
        component: Option<Arc<dyn Component>>,
        gate: Option<Gate>,
        task: Option<Task>,
    },
}

struct Task {
    scope: ComponentScope,
    handle: JoinHandle<()>,
}

impl Members {
    pub(super) fn new(manager: &str) -> Self {
        Self {
            manager: manager.to_owned(),
            state: Arc::default(),
            begun: watch::Sender::new(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn report_failures_to(&self, failures: mpsc::UnboundedSender<FailedMember>) {
        self.lock().failures = Some(failures);
    }

    pub(super) fn add_controller(
        &self,
        controller: ControllerHandle,
    ) -> Result<ComponentId, DuplicateName> {
        let phase = if controller.leader_only() {
            Phase::Leader
        } else {
            Phase::Always
        };
        let name = controller.name().to_owned();
        self.insert(Member {
            name,
            phase,
            role: Role::Controller(controller),
        })
    }

    pub(super) fn add_component(
        &self,
        component: Arc<dyn Component>,
        gate: Option<Gate>,
    ) -> Result<ComponentId, DuplicateName> {
        let (name, phase) = (component.name().to_owned(), component.phase());
        self.insert(Member {
            name,
            phase,
            role: Role::Component {
                component: Some(component),
                gate,
                task: None,
            },
        })
    }

    fn insert(&self, mut member: Member) -> Result<ComponentId, DuplicateName> {
        let mut state = self.lock();
        if state
            .members
            .values()
            .any(|known| known.name == member.name)
        {
            return Err(DuplicateName(member.name));
        }
        let id = ComponentId(state.next);
        state.next += 1;
        if self
            .begun
            .borrow()
            .is_some_and(|begun| member.phase <= begun)
        {
            member.start(state.failures.clone());
        }
        state.members.insert(id, member);
        Ok(id)
    }

    pub(super) fn controllers(&self) -> Vec<ControllerHandle> {
        let state = self.lock();
        let mut controllers: Vec<ControllerHandle> = state
            .members
            .values()
            .filter_map(|member| match &member.role {
                Role::Controller(controller) => Some(controller.clone()),
                Role::Component { .. } => None,
            })
            .collect();
        controllers.sort_by(|left, right| left.name().cmp(right.name()));
        controllers
    }

    /// The controllers that work on a cluster.
    pub(super) fn of_cluster(&self, cluster: &str) -> Vec<ComponentId> {
        let state = self.lock();
        let members = state
            .members
            .iter()
            .filter(|(_, member)| match &member.role {
                Role::Controller(controller) => controller.cluster() == cluster,
                Role::Component { .. } => false,
            });
        members.map(|(id, _)| *id).collect()
    }

    /// Starts the members of a phase and waits until its components are ready.
    pub(super) async fn begin(&self, phase: Phase) {
        let ready: Vec<CancellationToken> = {
            let mut state = self.lock();
            let failures = state.failures.clone();
            self.begun.send_replace(Some(phase));
            let members = state
                .members
                .values_mut()
                .filter(|member| member.phase == phase);
            members
                .filter_map(|member| member.start(failures.clone()))
                .collect()
        };
        for ready in ready {
            ready.cancelled().await;
        }
    }

    /// Returns whether every phase has begun.
    pub(super) fn has_started(&self) -> bool {
        *self.begun.borrow() == Some(Phase::Leader)
    }

    /// Resolves when a phase has begun.
    pub(super) async fn begun(&self, phase: Phase) {
        let mut begun = self.begun.subscribe();
        if begun.wait_for(|begun| *begun >= Some(phase)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Stops the members of a phase. Returns the controllers whose reconciles were dropped.
    pub(super) async fn end(&self, phase: Phase, deadline: Instant) -> Vec<(String, usize)> {
        let before = Phase::ALL
            .into_iter()
            .rev()
            .find(|earlier| *earlier < phase);
        let leaving: Vec<Leaving> = {
            let mut state = self.lock();
            // A member added from now on does not start.
            self.begun.send_replace(before);
            let members = state
                .members
                .values_mut()
                .filter(|member| member.phase == phase);
            members.map(Member::leave).collect()
        };
        let stopped = join_all(leaving.into_iter().map(|leaving| leaving.stop(deadline))).await;
        stopped.into_iter().flatten().collect()
    }

    pub(super) async fn remove(&self, id: ComponentId, grace: Duration) -> bool {
        let Some(leaving) = self.lock().members.get_mut(&id).map(Member::leave) else {
            return false;
        };
        let _aborted = leaving.stop(Instant::now() + grace).await;
        // Only now: a member that has not ended must not escape a shutdown of the manager.
        self.lock().members.remove(&id).is_some()
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }
}

impl Member {
    /// Starts the member. Returns the readiness of a component.
    fn start(
        &mut self,
        failures: Option<mpsc::UnboundedSender<FailedMember>>,
    ) -> Option<CancellationToken> {
        match &mut self.role {
            Role::Controller(controller) => {
                controller.start();
                None
            }
            Role::Component { task: Some(_), .. } => None,
            Role::Component {
                component,
                gate,
                task,
            } => {
                let component = component.clone()?;
                let scope = ComponentScope::new();
                let ready = scope.ready.clone();
                let handle = match (self.phase, gate) {
                    (Phase::Leader, Some(gate)) => {
                        ready.cancel();
                        let gate = gate.clone();
                        tokio::spawn(run_terms(component, scope.clone(), gate, failures))
                    }
                    _ => tokio::spawn(run_component(component, scope.clone(), failures)),
                };
                *task = Some(Task { scope, handle });
                Some(ready)
            }
        }
    }

    fn leave(&mut self) -> Leaving {
        match &mut self.role {
            Role::Controller(controller) => Leaving::Controller(controller.clone()),
            Role::Component {
                component, task, ..
            } => {
                *component = None;
                Leaving::Component(self.name.clone(), task.take())
            }
        }
    }
}

async fn run_component(
    component: Arc<dyn Component>,
    scope: ComponentScope,
    failures: Option<mpsc::UnboundedSender<FailedMember>>,
) {
    let name = component.name().to_owned();
    let result = run_caught(component, scope.clone()).await;
    // A waiter for a component that ended must not wait for ever.
    scope.ready();
    if let Err(error) = result {
        report(failures.as_ref(), name, error);
    }
}

/// Turns a panic into a failure of the component, which stops the process in order.
async fn run_caught(component: Arc<dyn Component>, scope: ComponentScope) -> Result<(), Failure> {
    let run = AssertUnwindSafe(async move { component.run(scope).await });
    run.catch_unwind()
        .await
        .unwrap_or_else(|_| Err("component panicked".into()))
}

fn report(failures: Option<&mpsc::UnboundedSender<FailedMember>>, name: String, error: Failure) {
    tracing::error!(component = name, %error, "component failed");
    if let Some(failures) = failures {
        // The manager may already be stopping; then the error is dropped.
        let _ = failures.send((name, error));
    }
}

/// Runs a component once per leadership term, in this very task: dropping it drops the component's
/// work.
async fn run_terms(
    component: Arc<dyn Component>,
    scope: ComponentScope,
    mut gate: Gate,
    failures: Option<mpsc::UnboundedSender<FailedMember>>,
) {
    loop {
        while !gate.state().is_open() {
            tokio::select! {
                () = gate.changed() => {}
                () = scope.stopped() => return,
            }
        }
        let term = ComponentScope {
            stop: scope.stop.child_token(),
            ready: CancellationToken::new(),
        };
        let mut run = Box::pin(run_caught(component.clone(), term.clone()));
        let mut result = None;
        loop {
            tokio::select! {
                ended = &mut run, if result.is_none() => result = Some(ended),
                () = gate.changed() => {}
                () = scope.stopped(), if result.is_some() => return,
            }
            if let Some(Err(error)) = result {
                return report(failures.as_ref(), component.name().to_owned(), error);
            }
            if let GateState::Closed { by } = gate.state() {
                term.stop.cancel();
                if result.is_none() {
                    // At the deadline the work is dropped.
                    let by = by.unwrap_or_else(Instant::now);
                    let _in_time = tokio::time::timeout_at(by, &mut run).await;
                }
                break;
            }
        }
    }
}

enum Leaving {
    Controller(ControllerHandle),
    Component(String, Option<Task>),
}

impl Leaving {
    async fn stop(self, deadline: Instant) -> Option<(String, usize)> {
        match self {
            Self::Controller(controller) => {
                let grace = deadline.saturating_duration_since(Instant::now());
                let report = controller.stop_within(grace).await;
                (report.aborted > 0).then(|| (controller.name().to_owned(), report.aborted))
            }
            Self::Component(_, None) => None,
            Self::Component(name, Some(Task { scope, mut handle })) => {
                scope.stop.cancel();
                if tokio::time::timeout_at(deadline, &mut handle).await.is_ok() {
                    return None;
                }
                handle.abort();
                // Waits for the cancelled task to be dropped.
                let _cancelled = handle.await;
                Some((name, 1))
            }
        }
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Members({})", self.manager)
    }
}

impl Collector for Members {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "running_managed_controllers",
            "1 while a controller of this manager runs",
            None,
            MetricType::Gauge,
        )?;
        for controller in self.controllers() {
            let running = controller.state().borrow().is_reconciling();
            let labels = [
                ("name", controller.name()),
                ("manager", self.manager.as_str()),
            ];
            family
                .encode_family(&labels)?
                .encode_gauge(&i64::from(running))?;
        }
        Ok(())
    }
}
