//! The actor that owns the pool: every request and every change of the cluster passes through it,
//! in order.

mod cluster;
mod durable;

use std::{collections::HashMap, time::Duration};

use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use weft_ipam::{
    Debounce, Monitor, NodeConfig, PodSummary, SpecWrite, Uid,
    pool::{AddRequest, Event, Identity, Journal, Key, Notice, Pool, Reply, RequestId, Step},
};
use weft_model::{Moment, SharedStr};
use weft_runtime::EventRecorder;

use crate::{
    announce::Announcer,
    disk::Disk,
    feeds::Feeds,
    handle::{Message, Snapshot, Startup},
    machine::Clock,
    metrics::IpamMetrics,
    outbox::{Batch, Out},
    report,
    settings::IpamSettings,
    store::{Store, StoreError},
    writer::{WriteError, Writer},
};

pub(crate) struct ActorParts {
    pub(crate) settings: IpamSettings,
    pub(crate) identity: Identity,
    pub(crate) clock: Clock,
    pub(crate) feeds: Feeds,
    pub(crate) writer: Writer,
    pub(crate) metrics: IpamMetrics,
    pub(crate) events: Option<EventRecorder>,
    pub(crate) messages: mpsc::UnboundedReceiver<Message>,
}

struct Waiter {
    key: Key,
    since: Moment,
    answer: oneshot::Sender<Reply>,
}

type Writing = BoxFuture<'static, (SpecWrite, Result<NodeConfig, WriteError>)>;

pub(crate) struct Actor {
    settings: IpamSettings,
    identity: Identity,
    clock: Clock,
    feeds: Feeds,
    writer: Writer,
    metrics: IpamMetrics,
    messages: mpsc::UnboundedReceiver<Message>,
    pool: Pool,
    monitor: Monitor,
    node: Option<Uid>,
    container_runtime: SharedStr,
    config: Option<NodeConfig>,
    pods: Option<Vec<PodSummary>>,
    debounce: Debounce,
    sweep_at: Moment,
    disk: Disk,
    /// True once the contents of the store are in the pool. Until then they must not be replaced.
    read: bool,
    /// The batch being made durable.
    kept: Batch,
    /// The batch after it.
    next: Batch,
    waiters: HashMap<RequestId, Waiter>,
    writing: Option<Writing>,
    /// No write before this time, unless something new is observed.
    blocked: Option<Moment>,
    failures: u32,
    startup: Startup,
    announcer: Announcer,
}

/// Longest sleep. Tokio's clock stops while the machine is suspended, and the boot clock does not.
const MAX_SLEEP: Duration = Duration::from_secs(30);
/// Interval of evaluations while the monitor must not write yet, although its wake-up time has
/// passed.
const EVALUATION_INTERVAL: Duration = Duration::from_millis(500);

impl Actor {
    /// Reads the store. A store that cannot be opened closes the pool for ADD only. If another
    /// process has locked it, that one serves this node, and this process must not start.
    pub(crate) async fn open(parts: ActorParts) -> Result<Self, StoreError> {
        let directory = parts.settings.state_directory.clone();
        let boot = parts.identity.boot.clone();
        let opened = tokio::task::spawn_blocking(move || Store::open(&directory, &boot)).await;
        let now = parts.clock.now();
        let closed = Pool::restore(
            parts.settings.pool.clone(),
            parts.identity.clone(),
            Journal::Lost,
            now,
        );
        let mut actor = Self {
            monitor: Monitor::new(parts.settings.monitor),
            sweep_at: now + parts.settings.sweep,
            settings: parts.settings,
            identity: parts.identity,
            clock: parts.clock,
            feeds: parts.feeds,
            writer: parts.writer,
            metrics: parts.metrics,
            messages: parts.messages,
            pool: closed.pool,
            node: None,
            container_runtime: SharedStr::default(),
            config: None,
            pods: None,
            debounce: Debounce::default(),
            disk: Disk::Broken { again: now },
            read: false,
            kept: Batch::default(),
            next: Batch::default(),
            waiters: HashMap::new(),
            writing: None,
            blocked: None,
            failures: 0,
            startup: Startup::Pending,
            announcer: Announcer::new(parts.events),
        };
        match opened {
            Ok(Ok(opened)) => actor.restore(opened),
            Ok(Err(error)) if error.is_locked() => return Err(error),
            Ok(Err(error)) => actor.closed(&error),
            Err(error) => actor.closed(&StoreError::Task(error)),
        }
        Ok(actor)
    }

    /// Runs until cancelled; decisions made by then are made durable and answered.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        self.evaluate();
        loop {
            let wake = self.wake();
            let sleep = wake.since(self.clock.now()).min(MAX_SLEEP);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                done = self.disk.done() => self.settle(done),
                Some(message) = self.messages.recv() => self.receive(message),
                (write, result) = written(&mut self.writing) => self.written(&write, result),
                observation = self.feeds.next() => self.observed(observation),
                () = tokio::time::sleep(sleep) => self.tick(),
            }
            // One commit for all requests received by now.
            while let Ok(message) = self.messages.try_recv() {
                self.receive(message);
            }
            // Nothing leaves before the running commit has ended, and the loop comes back here
            // then: one evaluation for everything received meanwhile is soon enough.
            if !matches!(self.disk, Disk::Busy(_)) {
                self.evaluate();
                self.announce();
                self.measure();
                self.flush();
            }
        }
        while matches!(self.disk, Disk::Busy(_)) {
            let done = self.disk.done().await;
            self.settle(done);
            self.flush();
        }
    }

    fn wake(&self) -> Moment {
        let now = self.clock.now();
        let evaluation = (self.monitor.wake()).map(|at| at.max(now + EVALUATION_INTERVAL));
        let retry = match self.disk {
            Disk::Broken { again, .. } => Some(again),
            _ => None,
        };
        let wakes = [
            self.pool.wake(),
            self.config.as_ref().and(evaluation),
            self.debounce.wake(),
            Some(self.sweep_at),
            self.blocked,
            retry,
            self.announcer.wake(),
        ];
        wakes.into_iter().flatten().min().unwrap_or(now + MAX_SLEEP)
    }

    fn receive(&mut self, message: Message) {
        let now = self.clock.now();
        match message {
            Message::Add(add) => {
                let waiter = Waiter {
                    key: add.key.clone(),
                    since: now,
                    answer: add.answer,
                };
                self.waiters.insert(add.id, waiter);
                let request = AddRequest {
                    id: add.id,
                    key: add.key,
                    pod: add.pod,
                    desired: add.desired,
                    deadline: now + add.wait,
                };
                self.handle(Event::Add(request));
            }
            Message::Delete { id, key, answer } => {
                let waiter = Waiter {
                    key: key.clone(),
                    since: now,
                    answer,
                };
                self.waiters.insert(id, waiter);
                self.handle(Event::Delete(id, key));
            }
            Message::Cancel(id) => {
                self.handle(Event::Cancel(id));
                // A reply that is already in flight finds no receiver, and is undone then.
                if !self.kept.answers(id) && !self.next.answers(id) {
                    self.waiters.remove(&id);
                }
            }
            Message::Collect {
                network,
                valid,
                answer,
            } => {
                let before = self.pool.attached();
                self.handle(Event::Collect { network, valid });
                let released = u64::from(before.saturating_sub(self.pool.attached()));
                self.out(Out::Seen(Box::new(move || {
                    let _gone = answer.send(released);
                })));
            }
            Message::Read(read) => {
                let send = read(&self.snapshot());
                self.out(Out::Seen(send));
            }
        }
    }

    fn exhausted(&self) -> bool {
        let config = self.config.as_ref();
        config.is_some_and(|config| self.feeds.exhausted(config))
    }

    fn handle(&mut self, event: Event) {
        let step = self.pool.handle(event, self.clock.now());
        self.absorb(step);
    }

    fn absorb(&mut self, mut step: Step) {
        for notice in std::mem::take(&mut step.notices) {
            self.notice(&notice);
        }
        self.next.take_in(step);
    }

    fn out(&mut self, out: Out) {
        self.next.out.push(out);
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        self.handle(Event::Tick);
        if self.debounce.take(now) {
            self.count_pods();
        }
        if self.sweep_at <= now {
            self.sweep_at = now + self.settings.sweep;
            // A pod that an outdated list lacks may well exist.
            if self.feeds.pods_synced() {
                self.sweep();
            }
        }
        if self.blocked.is_some_and(|until| until <= now) {
            self.blocked = None;
        }
        if let Disk::Broken { again } = self.disk
            && again <= now
        {
            let directory = self.settings.state_directory.clone();
            let boot = self.identity.boot.clone();
            self.disk = if self.read {
                // Later changes are not in the snapshot, and are written after it.
                self.next.records.clear();
                Disk::recover(directory, boot, self.pool.snapshot())
            } else {
                Disk::open(directory, boot)
            };
        }
        // While the disk hangs this is the only measurement, and waiting requests must be visible.
        self.announce();
        self.measure();
    }

    fn notice(&mut self, notice: &Notice) {
        self.metrics.noticed(notice);
        match notice {
            Notice::Config(flaw) => tracing::warn!(%flaw, "invalid NodeNetworkConfig"),
            Notice::Quarantined(address, key) => {
                tracing::error!(%address, %key, "address in use was withdrawn from the NodeNetworkConfig");
            }
            Notice::OfferedInUse(name) => {
                tracing::error!(%name, "address in use is offered for release, withdrawing the offer");
            }
            Notice::Adopted(address, pod) => {
                tracing::warn!(%address, namespace = %pod.namespace, pod = %pod.name, "unrecorded address found in use, adopted");
            }
            Notice::Swept(key, pod) => {
                tracing::warn!(%key, namespace = %pod.namespace, pod = %pod.name, "addresses of a deleted pod released");
            }
            Notice::LateAdd(key) => tracing::info!(%key, "ADD arrived after its DEL, refused"),
            Notice::Reclaimed(names) => {
                tracing::info!(count = names.len(), "offers withdrawn");
            }
        }
    }

    fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            pool: &self.pool,
            node: self.node.as_ref(),
            container_runtime: &self.container_runtime,
            config: self.config.as_ref(),
            startup: self.startup,
            pods: self.pods.as_deref(),
            synced: self.feeds.pods_synced(),
            exhausted: self.exhausted(),
            store_open: !matches!(self.disk, Disk::Broken { .. }),
            now: self.clock.now(),
        }
    }

    fn measure(&self) {
        self.metrics.measure(&self.snapshot());
    }

    /// Reports a state in which no ADD can be served, and its end, as an event of the Node.
    fn announce(&mut self) {
        let now = self.clock.now();
        let obstacle = report::obstacle(&self.snapshot());
        if obstacle.is_none() {
            self.startup = Startup::Complete;
        }
        self.announcer
            .observe(obstacle, &self.settings.node, self.node.as_ref(), now);
    }
}

async fn written(writing: &mut Option<Writing>) -> (SpecWrite, Result<NodeConfig, WriteError>) {
    let done = match writing {
        Some(write) => write.await,
        None => std::future::pending().await,
    };
    *writing = None;
    done
}
