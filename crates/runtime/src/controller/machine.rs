//! Machines: controllers whose decisions are a state machine without I/O.

use std::{sync::Arc, time::Duration};

use weft_model::Moment;

use super::{
    ControllerHandle, Failure, WatchId, WatchOptions,
    driver::{ChangeSink, Effects, EventQueue, MachineScope, MachineWork},
    handle::NewController,
    lifecycle::{OnFailure, Settings},
    source::AnySource,
    statistics::ControllerStatistics,
};
use crate::{Change, Cluster, Kind, Kinded, Metrics, Object, WatchSpec};

/// A state machine that a driver feeds with events and time, and whose effects it carries out.
///
/// The time is counted from the start of the run.
pub trait Machine: Send + 'static {
    /// Changes of watched objects and results of effects.
    type Event: Send + 'static;

    /// Takes in an event.
    fn handle(&mut self, event: Self::Event, now: Moment);

    /// Starts the effects that are due. Called after events and at [`Machine::wake`], but not before
    /// all required kinds were delivered, not while own writes are missing from the caches, and not
    /// after a stop.
    fn poll(&mut self, now: Moment, effects: &mut Effects<Self::Event>);

    /// Time at which to poll if no event comes before; `None` to wait for one. Called after
    /// [`Machine::poll`], with the effects that are under way then.
    fn wake(&self, now: Moment, effects: &Effects<Self::Event>) -> Option<Moment>;
}

/// Construction of a controller that runs a [`Machine`].
pub struct MachineBuilder<E> {
    queue_name: Option<String>,
    cluster: Cluster,
    events: Arc<EventQueue<E>>,
    sources: Vec<Arc<dyn AnySource>>,
    requires: Vec<Kind>,
    read_own_writes: Option<Duration>,
    metrics: Option<Metrics>,
    settings: Settings,
}

impl<E: Send + 'static> MachineBuilder<E> {
    /// Begins a machine of that name on a cluster.
    pub fn new(name: &str, cluster: &Cluster) -> Self {
        Self {
            queue_name: None,
            cluster: cluster.clone(),
            events: Arc::default(),
            sources: Vec::new(),
            requires: Vec::new(),
            read_own_writes: None,
            metrics: None,
            settings: Settings::of_a_controller(name),
        }
    }

    /// Delivers changes of this kind, as the events that `event` makes of them.
    #[must_use]
    pub fn watches<K: Kinded>(self, spec: WatchSpec, event: fn(Change<K>) -> E) -> Self {
        self.watches_with(K::resource_kind(), spec, event, WatchOptions::default())
    }

    /// As [`MachineBuilder::watches`] for any kind and options. Predicates have no effect: a machine
    /// decides itself what matters. An optional kind that is no longer served is reported as
    /// [`Change::Closed`].
    #[must_use]
    pub fn watches_with<K: Object>(
        mut self,
        kind: Kind,
        spec: WatchSpec,
        event: fn(Change<K>) -> E,
        options: WatchOptions<K>,
    ) -> Self {
        let id = WatchId(u32::try_from(self.sources.len()).unwrap_or(u32::MAX));
        let sink = ChangeSink {
            event,
            events: self.events.clone(),
        };
        self.sources.push(options.with_sink(id, kind, spec, sink));
        self
    }

    /// Runs only while the kind is served.
    #[must_use]
    pub fn requires_kind(mut self, kind: Kind) -> Self {
        self.requires.push(kind);
        self
    }

    /// Runs only while this process is the leader.
    #[must_use]
    pub fn leader_only(mut self) -> Self {
        self.settings.leader_only = true;
        self
    }

    /// Does not poll the machine while the caches are older than its writes that were reported with
    /// [`MachineScope::wrote`], for at most `patience`.
    #[must_use]
    pub fn read_own_writes(mut self, patience: Duration) -> Self {
        self.read_own_writes = Some(patience);
        self
    }

    /// Value of the label `name` in `workqueue_*`, if it differs from the machine's name.
    #[must_use]
    pub fn queue_name(mut self, name: &str) -> Self {
        self.queue_name = Some(name.to_owned());
        self
    }

    /// Registry of its metrics.
    #[must_use]
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// Builds the controller, stopped, on the current tokio runtime. Every run begins with a new
    /// machine; a run that cannot begin has failed.
    pub fn build<M, F>(
        self,
        begin: impl Fn(MachineScope) -> F + Send + Sync + 'static,
    ) -> ControllerHandle
    where
        M: Machine<Event = E>,
        F: Future<Output = Result<M, Failure>> + Send + 'static,
    {
        if let Some(metrics) = &self.metrics {
            let name = self.queue_name.as_deref().unwrap_or(&self.settings.name);
            self.events.expose(name, metrics.workqueues());
        }
        let statistics = Arc::new(ControllerStatistics::new());
        let work = Arc::new(MachineWork::new(
            self.events,
            begin,
            self.read_own_writes,
            statistics.clone(),
        ));
        let handle = NewController {
            sources: self.sources,
            requires: self.requires,
            statistics,
            ..NewController::new(&self.cluster, self.settings, work, OnFailure::Restart)
        }
        .spawn();
        if let Some(metrics) = &self.metrics {
            metrics.observe_controller(&handle);
        }
        handle
    }
}
