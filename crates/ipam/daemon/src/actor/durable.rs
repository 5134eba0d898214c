//! Commits of the address store, and the replies and writes that wait for them.

use std::collections::HashSet;

use weft_ipam::pool::{Event, Key, Pool, Refusal, Reply, RequestId};
use weft_model::Moment;

use super::Actor;
use crate::{
    disk::{Disk, Done},
    outbox::{Batch, Out},
    store::{Loss, Opened, Store, StoreError},
    writer::WriteError,
};

impl Actor {
    /// Starts the next commit, if none is under way.
    pub(super) fn flush(&mut self) {
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
                    // The snapshot that ends this state contains them.
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

    pub(super) fn settle(&mut self, done: Done) {
        let kept = std::mem::take(&mut self.kept);
        match done {
            Done::Committed(Ok(store)) => {
                self.metrics.committed();
                self.metrics.synced(store.take_syncs());
                self.disk = Disk::Idle(store);
                self.release(kept);
            }
            Done::Committed(Err(error)) => {
                self.metrics.commit_failed();
                self.fail(kept, &error);
            }
            Done::Replaced(Ok(store)) => self.recovered(store),
            Done::Reopened(Ok(opened)) => {
                if let Some(loss) = &opened.loss {
                    self.lost(loss, "address store is lost, rewritten from memory");
                }
                self.recovered(opened.store);
            }
            Done::Replaced(Err(error)) | Done::Reopened(Err(error)) => self.fail(kept, &error),
            Done::Opened(Ok(opened)) => self.restore(*opened),
            Done::Opened(Err(error)) => self.closed(&error),
        }
    }

    fn recovered(&mut self, store: Store) {
        self.disk = Disk::Idle(store);
        tracing::info!("address store written");
        self.handle(Event::StoreRecovered);
    }

    fn lost(&self, loss: &Loss, event: &str) {
        self.metrics.store_lost();
        let moved_to = loss
            .moved
            .as_deref()
            .map(|path| tracing::field::display(path.display()));
        tracing::error!(flaw = loss.flaw, moved_to, "{event}");
    }

    /// Rebuilds the pool from the contents of a store. Attachments deleted in the meantime stay
    /// deleted.
    pub(super) fn restore(&mut self, opened: Opened) {
        if let Some(loss) = &opened.loss {
            self.lost(
                loss,
                "address store is lost, rebuilding from running pods before serving ADD",
            );
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
            // Answered already; the snapshot contains the rest.
            let _answered = self
                .pool
                .handle(Event::Delete(RequestId(u64::MAX), key), now);
        }
        tracing::info!(attachments = self.pool.attached(), "address store read");
        self.disk = if rewrite {
            Disk::replace(opened.store, self.pool.snapshot())
        } else {
            Disk::Idle(opened.store)
        };
        self.observe();
    }

    /// Nothing of this batch or after it is durable: an ADD in it gets no address.
    pub(super) fn fail(&mut self, mut batch: Batch, error: &StoreError) {
        batch.append(std::mem::take(&mut self.next));
        let made = batch.made();
        let keys = made.iter().cloned().collect();
        self.broken(error);
        let failed = self.pool.handle(Event::StoreFailed(keys), self.clock.now());
        for out in &mut batch.out {
            if let Out::Reply(id, reply @ Reply::Assigned(_)) = out
                && self
                    .waiters
                    .get(id)
                    .is_none_or(|waiter| made.contains(&waiter.key))
            {
                *reply = Reply::Refused(Refusal::Closed);
            }
        }
        let mut refused = Batch::default();
        refused.take_in(failed);
        batch.append(refused);
        for out in std::mem::take(&mut batch.out) {
            match out {
                // It was decided on records that are not durable.
                Out::Write(write) => self.written(&write, Err(WriteError::Timeout)),
                other => batch.out.push(other),
            }
        }
        batch.records.clear();
        self.release(batch);
    }

    pub(super) fn broken(&mut self, error: &StoreError) {
        self.metrics.store_failed();
        tracing::error!(
            error = error as &dyn std::error::Error,
            "cannot write the address store: refusing ADD, serving DEL"
        );
        let again = self.clock.now() + self.settings.store_retry;
        self.disk = Disk::Broken { again };
    }

    /// The assignments are unknown, and none can be recorded.
    pub(super) fn closed(&mut self, error: &StoreError) {
        self.broken(error);
        self.handle(Event::StoreFailed(Vec::new()));
    }

    /// Sends the effects of a durable batch.
    pub(super) fn release(&mut self, batch: Batch) {
        let made = batch.made();
        let (mut answered, mut lost) = (HashSet::new(), HashSet::new());
        for out in batch.out {
            match out {
                Out::Reply(id, reply) => {
                    let Some(waiter) = self.waiters.remove(&id) else {
                        continue;
                    };
                    self.metrics
                        .answered(&reply, self.clock.now().since(waiter.since));
                    let assigned = matches!(reply, Reply::Assigned(_));
                    match waiter.answer.send(reply) {
                        Ok(()) => answered.insert(waiter.key),
                        Err(_) => assigned && lost.insert(waiter.key),
                    };
                }
                Out::Seen(send) => send(),
                Out::Write(write) => self.write(write),
            }
        }
        for key in lost {
            let mut others = self.waiters.values();
            let wanted = answered.contains(&key) || others.any(|waiter| waiter.key == key);
            if made.contains(&key) && !wanted {
                tracing::info!(%key, "client disconnected before its ADD was answered; releasing");
                self.handle(Event::Abandon(key));
            }
        }
    }
}
