//! A component with the lifecycle and states of a controller.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    ControllerHandle, Failure,
    handle::NewController,
    lifecycle::{OnFailure, Settings, Tasks, Work},
    scope::RunScope,
};
use crate::{Cluster, Component, ComponentScope, Metrics};

/// Default time for a run to end.
const GRACE: Duration = Duration::from_secs(30);

/// A component that starts, stops and restarts as a controller does, with the same states.
///
/// Each start runs the component again. A run that ends with an error, by a panic, or without a
/// stop leaves the unit failed and everything else as it is. Cloning is cheap; when the last clone
/// and handle is dropped, the unit stops for good.
#[derive(Clone)]
pub struct Unit(ControllerHandle);

impl Unit {
    /// A unit that is restarted after a failure, with back-off. Must be called within a tokio
    /// runtime.
    pub fn new(component: impl Component, cluster: &Cluster) -> Self {
        Self::build(Arc::new(component), cluster, OnFailure::Restart)
    }

    /// A unit that reports its first failure and is not restarted by itself: for processes with
    /// only one component.
    pub fn once(
        component: impl Component,
        cluster: &Cluster,
    ) -> (Self, oneshot::Receiver<Failure>) {
        let (sender, failure) = oneshot::channel();
        let on_failure = OnFailure::Report(Some(sender));
        let unit = Self::build(Arc::new(component), cluster, on_failure);
        (unit, failure)
    }

    fn build(component: Arc<dyn Component>, cluster: &Cluster, on_failure: OnFailure) -> Self {
        let settings = Settings {
            name: component.name().into(),
            sync_timeout: None,
            grace: GRACE,
            leader_only: false,
            warm: false,
        };
        let work = Arc::new(ComponentWork(component));
        Self(NewController::new(cluster, settings, work, on_failure).spawn())
    }

    /// Exposes its metrics.
    #[must_use]
    pub fn metrics(self, metrics: &Metrics) -> Self {
        metrics.observe_controller(&self.0);
        self
    }

    /// The unit as managers hold controllers.
    pub fn handle(&self) -> ControllerHandle {
        self.0.clone()
    }
}

impl From<Unit> for ControllerHandle {
    fn from(unit: Unit) -> Self {
        unit.0
    }
}

struct ComponentWork(Arc<dyn Component>);

impl Work for ComponentWork {
    fn spawn(self: Arc<Self>, scope: &Arc<RunScope>, tasks: &mut Tasks) {
        let component = self.0.clone();
        let scope = ComponentScope {
            stop: scope.stop.clone(),
            ready: scope.ready.clone(),
        };
        // Spawned as a whole, so that a panic anywhere in it ends only this task.
        tasks.spawn(async move { component.run(scope).await });
    }
}
