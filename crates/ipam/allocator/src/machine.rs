//! A controller of addresses as a machine: objects in, planned writes out. Shared by the allocator of
//! blocks and that of pod CIDRs.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use serde_json::Value;
use tokio::time::Instant;
use weft_ipam::{
    PoolName,
    allocator::{Plan, WallTime, Write},
    objects::PoolFlaw,
};
use weft_model::{Moment, error_text};
use weft_runtime::{Effects, Failure, Machine, MachineScope};

use crate::{
    AllocatorEvents, AllocatorMetrics, WallClock,
    announce::Reported,
    objects::{ObjectChange, Objects},
    retries::{Ending, Retries},
    writer::{Facts, WriteError, Writer},
};

/// Number of concurrent writes.
const PARALLEL: usize = 32;
/// Minimum interval between writes of the pools' figures while there are other writes.
const FIGURES: Duration = Duration::from_secs(5);
/// Longest time by which the caches may lag behind our own writes before planning goes on anyway.
/// That would do no harm, but every write would fail.
pub(super) const CACHE_LAG_LIMIT: Duration = Duration::from_secs(10);

/// The decisions of a controller of addresses.
pub(super) trait Planner: Send + 'static {
    /// Reasons of all notices that it can report.
    const REASONS: &'static [&'static str];

    /// Returns whether a change may change the plan.
    fn matters(&self, change: &ObjectChange) -> bool;

    /// The writes to make.
    fn plan(&mut self, objects: &Objects, now: Moment, wall: WallTime) -> Result<Planned, Failure>;

    /// The status of pools to write, as of the last plan.
    fn statuses(&mut self, _wall: WallTime) -> Vec<StatusWrite> {
        Vec::new()
    }
}

/// A plan, and what is needed to carry it out.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) facts: Arc<dyn Facts>,
    /// Errors in pools.
    pub(super) flaws: Vec<(PoolName, PoolFlaw)>,
    /// Time until a plan may change without a change of an object.
    pub(super) next: Duration,
}

/// The status of a pool to write.
pub(super) struct StatusWrite {
    pub(super) pool: PoolName,
    pub(super) body: Value,
}

/// Tools of the machines, which last for all runs.
pub(super) struct Tools {
    pub(super) writer: Writer,
    pub(super) metrics: AllocatorMetrics,
    pub(super) events: AllocatorEvents,
    pub(super) clock: WallClock,
}

/// An input of the machine.
pub(super) enum Event {
    Object(ObjectChange),
    /// The writes of a plan ended.
    Ended(Vec<(Write, Ending)>),
}

/// One run of a controller of addresses. Nothing outlives it: the next starts from the objects
/// observed then.
pub(super) struct AddressMachine<P> {
    tools: Arc<Tools>,
    planner: P,
    objects: Objects,
    retries: Retries,
    reported: Reported,
    /// Something changed since the last plan.
    changed: bool,
    next_plan: Moment,
    figures_at: Option<Moment>,
}

impl<P: Planner> AddressMachine<P> {
    pub(super) fn new(tools: Arc<Tools>, planner: P) -> Self {
        Self {
            tools,
            planner,
            objects: Objects::default(),
            retries: Retries::default(),
            reported: Reported::default(),
            changed: true,
            next_plan: Moment::START,
            figures_at: None,
        }
    }
}

impl<P: Planner> Machine for AddressMachine<P> {
    type Event = Event;

    fn handle(&mut self, event: Event, now: Moment) {
        match event {
            Event::Object(change) => {
                self.changed |= !change.is_heartbeat() && self.planner.matters(&change);
                self.objects.apply(change);
            }
            Event::Ended(endings) => {
                if let Some(again) = self.retries.ended(endings, now) {
                    self.next_plan = again;
                }
            }
        }
    }

    fn poll(&mut self, now: Moment, effects: &mut Effects<Event>) {
        // The writes of one plan end before the next one is made.
        if !effects.is_idle() || !self.changed && now < self.next_plan {
            return;
        }
        self.changed = false;
        let tools = &self.tools;
        let wall = tools.clock.now();
        let begun = Instant::now();
        let planned = match self.planner.plan(&self.objects, now, wall) {
            Ok(planned) => planned,
            Err(error) => {
                tracing::warn!(error = error_text(&*error), "cannot plan");
                self.next_plan = self.retries.plan_failed(now);
                return;
            }
        };
        let Plan { writes, notices } = planned.plan;
        tools.metrics.planned(begun.elapsed(), &notices, P::REASONS);
        tools.events.notices(&mut self.reported, &notices);
        tools.events.flaws(&mut self.reported, &planned.flaws);
        let settled = writes.is_empty();
        let writes = self.retries.due(writes, now);
        self.next_plan = match self.retries.wake() {
            Some(again) => again,
            None => now + planned.next,
        };
        let due = |at: Moment| now.since(at) >= FIGURES;
        let mut statuses = Vec::new();
        if settled || self.figures_at.is_none_or(due) {
            self.figures_at = Some(now);
            statuses = self.planner.statuses(wall);
        }
        if writes.is_empty() && statuses.is_empty() {
            return;
        }
        let (tools, scope) = (tools.clone(), effects.scope().clone());
        effects.call(async move {
            let endings = tools.write_all(&scope, writes, &*planned.facts).await;
            tools.write_statuses(&scope, statuses).await;
            Event::Ended(endings)
        });
    }

    fn wake(&self, _now: Moment, effects: &Effects<Event>) -> Option<Moment> {
        effects.is_idle().then_some(self.next_plan)
    }
}

impl Tools {
    /// Carries out writes for as long as this process leads.
    async fn write_all(
        &self,
        scope: &MachineScope,
        writes: Vec<Write>,
        facts: &dyn Facts,
    ) -> Vec<(Write, Ending)> {
        let one = async |write: Write| {
            let outcome = if scope.is_stopping() {
                None
            } else {
                scope.fenced(self.writer.write(&write, facts)).await
            };
            self.metrics
                .wrote(&write, WriteError::label(outcome.as_ref()));
            let ending = match outcome {
                Some(Ok(written)) => {
                    tracing::debug!(%write, "written");
                    if let Some(written) = written {
                        scope.wrote(written.kind, written.key, &written.version);
                    }
                    Ending::Written
                }
                Some(Err(error @ WriteError::Refused(_))) => {
                    tracing::warn!(error = error_text(&error), %write, "API server refused a write");
                    Ending::Refused
                }
                Some(Err(error)) => {
                    tracing::debug!(error = error_text(&error), %write, "write failed, planning again");
                    Ending::Failed
                }
                None => Ending::Failed,
            };
            (write, ending)
        };
        let writes = stream::iter(writes).map(one);
        writes.buffer_unordered(PARALLEL).collect().await
    }

    async fn write_statuses(&self, scope: &MachineScope, statuses: Vec<StatusWrite>) {
        for status in statuses {
            let name = &status.pool;
            let write = self.writer.pool_status(name, &status.body);
            let outcome = scope.fenced(write).await;
            let label = WriteError::label(outcome.as_ref());
            self.metrics.wrote_object("pool_status", label);
            match outcome {
                Some(Ok(written)) => {
                    if let Some(written) = written {
                        scope.wrote(written.kind, written.key, &written.version);
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(error = error_text(&error), %name, "cannot write the pool status");
                }
                None => return,
            }
        }
    }
}
