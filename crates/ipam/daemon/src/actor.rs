//! The one who owns the pool: everything that happens on a node passes through here, in order.

mod cluster;
mod durable;

use std::{collections::HashMap, time::Duration};

use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use weft_ipam::{
    Gathering, Monitor, NodeConfig, PodSketch, SpecWrite, Uid,
    pool::{AddRequest, Event, Identity, Journal, Key, Notice, Pool, Reply, Step, Ticket},
};
use weft_model::Moment;

use crate::{
    desk::{Message, Picture},
    disk::Disk,
    feeds::Feeds,
    machine::Clock,
    metrics::IpamMetrics,
    outbox::{Batch, Out},
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
    pub(crate) messages: mpsc::UnboundedReceiver<Message>,
}

struct Asker {
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
    config: Option<NodeConfig>,
    pods: Option<Vec<PodSketch>>,
    gathering: Gathering,
    sweep_at: Moment,
    disk: Disk,
    /// Whether the contents of the store are in the pool. If not, they must not be replaced.
    read: bool,
    /// What is being made durable.
    kept: Batch,
    /// What comes after it.
    next: Batch,
    askers: HashMap<Ticket, Asker>,
    writing: Option<Writing>,
    /// No write before then, unless something new is seen.
    blocked: Option<Moment>,
    failures: u32,
}

/// The longest sleep. Tokio's clock stands still while the machine is suspended, and ours does not.
const NAP: Duration = Duration::from_secs(30);
/// A monitor that may not write yet asks to be woken for what is long due.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

impl Actor {
    /// Reads the store. A store that cannot be opened closes the pool for ADD, and for nothing else;
    /// but where another process has it, that one serves this node, and we must not.
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
            config: None,
            pods: None,
            gathering: Gathering::default(),
            disk: Disk::Broken { again: now },
            read: false,
            kept: Batch::default(),
            next: Batch::default(),
            askers: HashMap::new(),
            writing: None,
            blocked: None,
            failures: 0,
        };
        match opened {
            Ok(Ok(opened)) => actor.restore(opened),
            Ok(Err(error)) if error.is_taken() => return Err(error),
            Ok(Err(error)) => actor.closed(&error),
            Err(error) => {
                let path = actor.settings.state_directory.display().to_string();
                let source = std::io::Error::other(error);
                actor.closed(&StoreError::Directory { path, source });
            }
        }
        Ok(actor)
    }

    /// Runs until it is told to stop; what was promised by then is made durable and answered.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        self.look();
        loop {
            let wake = self.wake();
            let nap = wake.since(self.clock.now()).min(NAP);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                done = self.disk.done() => self.settle(done),
                Some(message) = self.messages.recv() => self.receive(message),
                (write, result) = written(&mut self.writing) => self.written(&write, result),
                sighting = self.feeds.next() => self.saw(sighting),
                () = tokio::time::sleep(nap) => self.tick(),
            }
            // One commit for all that have asked by now.
            while let Ok(message) = self.messages.try_recv() {
                self.receive(message);
            }
            // Nothing leaves before the commit that is under way has ended, and then we are here
            // again: to look once for all that came meanwhile is soon enough.
            if !matches!(self.disk, Disk::Busy(_)) {
                self.look();
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
        let look = (self.monitor.wake()).map(|at| at.max(now + LOOK_AGAIN));
        let retry = match self.disk {
            Disk::Broken { again, .. } => Some(again),
            _ => None,
        };
        let wakes = [
            self.pool.wake(),
            self.config.as_ref().and(look),
            self.gathering.wake(),
            Some(self.sweep_at),
            self.blocked,
            retry,
        ];
        wakes.into_iter().flatten().min().unwrap_or(now + NAP)
    }

    fn receive(&mut self, message: Message) {
        let now = self.clock.now();
        match message {
            Message::Add(add) => {
                let asker = Asker {
                    key: add.key.clone(),
                    since: now,
                    answer: add.answer,
                };
                self.askers.insert(add.ticket, asker);
                let request = AddRequest {
                    ticket: add.ticket,
                    key: add.key,
                    pod: add.pod,
                    desired: add.desired,
                    deadline: now + add.wait,
                };
                self.handle(Event::Add(request));
            }
            Message::Delete {
                ticket,
                key,
                answer,
            } => {
                let asker = Asker {
                    key: key.clone(),
                    since: now,
                    answer,
                };
                self.askers.insert(ticket, asker);
                self.handle(Event::Delete(ticket, key));
            }
            Message::Cancel(ticket) => {
                self.handle(Event::Cancel(ticket));
                // An answer that is on its way finds nobody, and is taken back then.
                if !self.kept.answers(ticket) && !self.next.answers(ticket) {
                    self.askers.remove(&ticket);
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
            Message::Look(look) => {
                let exhausted = self.exhausted();
                let send = look(&Picture {
                    pool: &self.pool,
                    config: self.config.as_ref(),
                    pods: self.pods.as_deref(),
                    synced: self.feeds.pods_synced(),
                    exhausted,
                    store_open: !matches!(self.disk, Disk::Broken { .. }),
                    now,
                });
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
        if self.gathering.take(now) {
            self.count_pods();
        }
        if self.sweep_at <= now {
            self.sweep_at = now + self.settings.sweep;
            // What an old list lacks may well be there.
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
                // What happens from here on is not in the snapshot, and is kept after it.
                self.next.records.clear();
                Disk::recover(directory, boot, self.pool.snapshot())
            } else {
                Disk::open(directory, boot)
            };
        }
        // While a disk hangs nothing else measures, and who waits for it should be seen.
        self.measure();
    }

    fn notice(&mut self, notice: &Notice) {
        self.metrics.noticed(notice);
        match notice {
            Notice::Config(flaw) => tracing::warn!(%flaw, "the NodeNetworkConfig has a flaw"),
            Notice::Quarantined(address, key) => {
                tracing::error!(%address, %key, "a pod's address is gone from the NodeNetworkConfig");
            }
            Notice::OfferedInUse(name) => {
                tracing::error!(%name, "a pod's address is offered for release; taking it back");
            }
            Notice::Adopted(address, pod) => {
                tracing::warn!(%address, namespace = %pod.namespace, pod = %pod.name, "an address is in use that no record knew");
            }
            Notice::Swept(key, pod) => {
                tracing::warn!(%key, namespace = %pod.namespace, pod = %pod.name, "took back the addresses of a pod that is gone");
            }
            Notice::LateAdd(key) => tracing::info!(%key, "an ADD came after its DEL"),
            Notice::Reclaimed(names) => {
                tracing::info!(count = names.len(), "took back what was offered");
            }
        }
    }

    fn measure(&self) {
        self.metrics.measure(&Picture {
            pool: &self.pool,
            config: self.config.as_ref(),
            pods: self.pods.as_deref(),
            synced: self.feeds.pods_synced(),
            exhausted: self.exhausted(),
            store_open: !matches!(self.disk, Disk::Broken { .. }),
            now: self.clock.now(),
        });
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
