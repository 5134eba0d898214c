//! The one who owns the pool: everything that happens on a node passes through here, in order.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use weft_ipam::{
    Gathering, Monitor, NodeConfig, Outlook, PodSketch, SpecWrite, Uid,
    pool::{AddRequest, Event, Identity, Journal, Key, Notice, Pool, Refusal, Reply, Step, Ticket},
};
use weft_model::Moment;

use super::{
    desk::{Message, Picture},
    disk::{Disk, Done},
    feeds::{Feeds, Sighting},
    machine::Clock,
    metrics::IpamMetrics,
    outbox::{Batch, Out},
    settings::IpamSettings,
    store::{Opened, Store, StoreError},
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
const BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

impl Actor {
    /// Reads the store. A store that cannot be opened closes the pool for ADD, and for nothing else.
    pub(crate) async fn open(parts: ActorParts) -> Self {
        let directory = parts.settings.state_directory.clone();
        let opened = tokio::task::spawn_blocking(move || Store::open(&directory)).await;
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
            Ok(Err(error)) => actor.closed(&error),
            Err(error) => {
                let path = actor.settings.state_directory.display().to_string();
                let source = std::io::Error::other(error);
                actor.closed(&StoreError::Directory { path, source });
            }
        }
        actor
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
            self.look();
            self.flush();
            self.measure();
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

    fn saw(&mut self, sighting: Sighting) {
        let now = self.clock.now();
        match sighting {
            Sighting::Node(uid) => {
                if self.node.as_ref() != Some(&uid) {
                    tracing::info!(node = self.settings.node, %uid, "this node is known");
                    self.pool.set_node(uid.clone());
                    self.node = Some(uid);
                    self.observe();
                }
            }
            Sighting::Network(config) => {
                self.metrics.network_seen();
                let older = |known: &NodeConfig| {
                    known.uid == config.uid && config.version.is_older_than(&known.version)
                };
                if !self.config.as_ref().is_some_and(older) {
                    self.config = Some(*config);
                    self.blocked = None;
                }
                self.observe();
            }
            Sighting::NetworkGone => {
                tracing::warn!("the NodeNetworkConfig is gone; pods keep their addresses");
                // Nothing is asked of an object that is not there.
                if let Some(config) = &mut self.config {
                    config.deleting = true;
                }
            }
            Sighting::Pods if self.pods.is_none() => self.count_pods(),
            Sighting::Pods => self.gathering.changed(now),
            Sighting::Subnets => {}
        }
    }

    /// Nothing is believed of a NodeNetworkConfig before it is known whose it must be.
    fn observe(&mut self) {
        if let (Some(config), Some(_)) = (self.config.clone(), &self.node) {
            self.handle(Event::Observed(Box::new(config)));
            self.adopt();
        }
    }

    fn adopt(&mut self) {
        if self.pool.awaits_pods() && self.feeds.pods_synced() {
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        if let Some(pods) = self.feeds.pods() {
            self.handle(Event::Sweep(pods));
        }
    }

    fn count_pods(&mut self) {
        if let Some(pods) = self.feeds.pods() {
            self.pods = Some(pods);
        }
        self.adopt();
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
            self.disk = if self.read {
                // What happens from here on is not in the snapshot, and is kept after it.
                self.next.records.clear();
                Disk::recover(directory, self.pool.snapshot())
            } else {
                Disk::open(directory)
            };
        }
    }

    /// Decides whether the cluster is to be asked for more, or offered some.
    fn look(&mut self) {
        if self.blocked.is_some() || self.node.is_none() {
            return;
        }
        let Some(config) = &self.config else {
            return;
        };
        let pods = self.pods.as_ref().map(Vec::len);
        let outlook = Outlook {
            config,
            pods: pods.map(|pods| u32::try_from(pods).unwrap_or(u32::MAX)),
            synced: self.feeds.pods_synced(),
            exhausted: self.feeds.exhausted(config),
        };
        let now = self.clock.now();
        let verdict = self.monitor.look(&mut self.pool, outlook, now);
        for flaw in &verdict.flaws {
            tracing::debug!(%flaw, "a parameter of the scaler is not used");
        }
        self.absorb(verdict.step);
        if let Some(write) = verdict.write {
            self.out(Out::Write(write));
        }
    }

    /// Begins the next commit, if none is under way.
    fn flush(&mut self) {
        loop {
            if self.next.is_empty() {
                return;
            }
            match std::mem::replace(
                &mut self.disk,
                Disk::Broken {
                    again: Moment::START,
                },
            ) {
                Disk::Idle(store) if self.next.records.is_empty() => {
                    self.disk = Disk::Idle(store);
                    let batch = std::mem::take(&mut self.next);
                    self.release(batch);
                }
                Disk::Idle(store) => {
                    self.kept = std::mem::take(&mut self.next);
                    let records = self.kept.records.clone();
                    self.metrics.commit_begins(records.len());
                    self.disk = Disk::commit(store, records);
                    return;
                }
                broken @ Disk::Broken { .. } => {
                    self.disk = broken;
                    let mut batch = std::mem::take(&mut self.next);
                    // The snapshot that ends this state has them.
                    batch.records.clear();
                    self.release(batch);
                }
                busy @ Disk::Busy(_) => {
                    self.disk = busy;
                    return;
                }
            }
        }
    }

    fn settle(&mut self, done: Done) {
        let kept = std::mem::take(&mut self.kept);
        match done {
            Done::Committed(Ok(store)) => {
                self.metrics.commit_ends(true);
                self.disk = Disk::Idle(store);
                self.release(kept);
            }
            Done::Committed(Err(error)) => {
                self.metrics.commit_ends(false);
                self.fail(kept, &error);
            }
            Done::Replaced(Ok(store)) => {
                self.disk = Disk::Idle(store);
                tracing::info!("the state of addresses is written");
                self.handle(Event::StoreRecovered);
            }
            Done::Replaced(Err(error)) => self.fail(kept, &error),
            Done::Opened(Ok(opened)) => self.restore(*opened),
            Done::Opened(Err(error)) => self.closed(&error),
        }
    }

    /// Makes the pool of what a store had. What was deleted in the meantime stays deleted.
    fn restore(&mut self, opened: Opened) {
        if let Some((path, flaw)) = &opened.moved {
            self.metrics.store_lost();
            tracing::error!(path = %path.display(), flaw, "the state of addresses cannot be believed and was moved aside; pods are looked at before addresses are handed out");
        }
        let now = self.clock.now();
        let mut settings = self.settings.pool.clone();
        settings.node = self.node.clone().unwrap_or_default();
        self.read = true;
        let restored = Pool::restore(settings, self.identity.clone(), opened.journal, now);
        let closed = std::mem::replace(&mut self.pool, restored.pool);
        let deleted: Vec<Key> = closed.tombstones().keys().cloned().collect();
        let rewrite = restored.rewrite || !deleted.is_empty();
        for key in deleted {
            // Answered already; the snapshot has the rest.
            let _answered = self.pool.handle(Event::Delete(Ticket(u64::MAX), key), now);
        }
        tracing::info!(
            attachments = self.pool.attached(),
            "the state of addresses is read"
        );
        self.disk = if rewrite {
            Disk::replace(opened.store, self.pool.snapshot())
        } else {
            Disk::Idle(opened.store)
        };
        self.observe();
    }

    /// Nothing of this batch or after it is durable: whoever got an address in it gets none.
    fn fail(&mut self, mut batch: Batch, error: &StoreError) {
        batch.append(std::mem::take(&mut self.next));
        let made = batch.made();
        let keys = made.iter().cloned().collect();
        self.broken(error);
        let failed = self.pool.handle(Event::StoreFailed(keys), self.clock.now());
        for out in &mut batch.out {
            if let Out::Reply(ticket, reply @ Reply::Assigned(_)) = out
                && self
                    .askers
                    .get(ticket)
                    .is_none_or(|asker| made.contains(&asker.key))
            {
                *reply = Reply::Refused(Refusal::Closed);
            }
        }
        let mut refused = Batch::default();
        refused.take_in(failed);
        batch.append(refused);
        for out in std::mem::take(&mut batch.out) {
            match out {
                // It was decided on what is not durable.
                Out::Write(write) => self.written(&write, Err(WriteError::Timeout)),
                other => batch.out.push(other),
            }
        }
        batch.records.clear();
        self.release(batch);
    }

    fn broken(&mut self, error: &StoreError) {
        self.metrics.store_failed();
        tracing::error!(
            error = error as &dyn std::error::Error,
            "the state of addresses cannot be written: no new addresses, deletions go on"
        );
        let again = self.clock.now() + self.settings.store_retry;
        self.disk = Disk::Broken { again };
    }

    /// Nothing is known of who has which address, and nothing can be remembered.
    fn closed(&mut self, error: &StoreError) {
        self.broken(error);
        self.handle(Event::StoreFailed(Vec::new()));
    }

    /// Lets out what was kept back.
    fn release(&mut self, batch: Batch) {
        let made = batch.made();
        let (mut answered, mut lost) = (HashSet::new(), HashSet::new());
        for out in batch.out {
            match out {
                Out::Reply(ticket, reply) => {
                    let Some(asker) = self.askers.remove(&ticket) else {
                        continue;
                    };
                    self.metrics
                        .answered(&reply, self.clock.now().since(asker.since));
                    let assigned = matches!(reply, Reply::Assigned(_));
                    match asker.answer.send(reply) {
                        Ok(()) => answered.insert(asker.key),
                        Err(_) => assigned && lost.insert(asker.key),
                    };
                }
                Out::Seen(send) => send(),
                Out::Write(write) => self.write(write),
            }
        }
        for key in lost {
            let mut others = self.askers.values();
            let wanted = answered.contains(&key) || others.any(|asker| asker.key == key);
            if made.contains(&key) && !wanted {
                tracing::info!(%key, "whoever asked for addresses has gone");
                self.handle(Event::Abandon(key));
            }
        }
    }

    fn write(&mut self, write: SpecWrite) {
        tracing::info!(%write, "writing the NodeNetworkConfig");
        let writer = self.writer.clone();
        self.writing = Some(Box::pin(async move {
            let result = writer.send(write.clone()).await;
            (write, result)
        }));
    }

    fn written(&mut self, write: &SpecWrite, result: Result<NodeConfig, WriteError>) {
        let now = self.clock.now();
        let accepted = match result {
            Ok(config) => {
                self.metrics.written("ok");
                self.failures = 0;
                let older = |known: &NodeConfig| {
                    known.uid != config.uid || config.version.is_older_than(&known.version)
                };
                if !self.config.as_ref().is_some_and(older) {
                    self.config = Some(config.clone());
                }
                Some(config)
            }
            Err(error) => {
                self.metrics.written(error.outcome());
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot write the NodeNetworkConfig"
                );
                let fresh = (self.config.as_ref())
                    .is_some_and(|known| known.version != write.precondition.version);
                if !fresh || self.failures > 0 {
                    let factor = 1 << self.failures.min(5);
                    self.blocked = Some(now + (BACKOFF * factor).min(LONGEST_BACKOFF));
                }
                self.failures = self.failures.saturating_add(1);
                None
            }
        };
        let step = self
            .monitor
            .answered(write.attempt, accepted, &mut self.pool, now);
        self.absorb(step);
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
