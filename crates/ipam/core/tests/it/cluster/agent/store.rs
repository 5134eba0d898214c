//! The daemon's store in the simulation: it keeps records, fails, is lost, and survives the daemon.

use std::collections::BTreeSet;

use weft_ipam::{
    Monitor, SpecWrite,
    pool::{Event, Journal, Key, Pool, Record, Refusal, Reply},
};
use weft_model::Moment;

use super::{Agent, PodPhase, Violation, identity, pod_of};

impl Agent {
    /// Makes all open steps durable, then releases replies and writes. A broken store keeps
    /// nothing, and deletions go on.
    pub(crate) fn commit(&mut self) -> Result<Vec<SpecWrite>, Violation> {
        let mut writes = Vec::new();
        let open = std::mem::take(&mut self.open);
        if let Some(log) = &mut self.log
            && !self.broken
        {
            for (step, _) in &open {
                log.extend(step.records.iter().cloned());
            }
        }
        for (step, write) in open {
            for (id, reply) in step.replies {
                self.reply(id, reply)?;
            }
            writes.extend(write);
        }
        Ok(writes)
    }

    /// Open steps cannot be made durable: an ADD in them gets no address, and their writes are not
    /// sent.
    pub(crate) fn fail_store(&mut self, exhausted: bool, now: Moment) -> Result<(), Violation> {
        let mut open = std::mem::take(&mut self.open);
        let records = open.iter().flat_map(|(step, _)| &step.records);
        let made: BTreeSet<Key> = records
            .filter_map(|record| match record {
                Record::Attachment(key, Some(_)) if !key.is_adopted() => Some(key.clone()),
                _ => None,
            })
            .collect();
        self.broken = true;
        let failed = self
            .pool
            .handle(Event::StoreFailed(made.iter().cloned().collect()), now);
        for (id, reply) in open.iter_mut().flat_map(|(step, _)| &mut step.replies) {
            let (pod, ..) = pod_of(*id);
            if matches!(reply, Reply::Assigned(_)) && made.contains(&self.key(pod)) {
                *reply = Reply::Refused(Refusal::Closed);
            }
        }
        for (_, write) in &mut open {
            if let Some(write) = write.take() {
                let step = self
                    .monitor
                    .answered(write.attempt, None, &mut self.pool, now);
                self.take(step, None);
            }
        }
        open.push((failed, None));
        for (id, reply) in open.into_iter().flat_map(|(step, _)| step.replies) {
            self.reply(id, reply)?;
        }
        if self.pool.is_ready() {
            return Err("I17: nothing can be written, and ADD is open".to_owned());
        }
        self.evaluate(exhausted, now);
        Ok(())
    }

    /// A snapshot could be written.
    pub(crate) fn recover_store(&mut self, exhausted: bool, now: Moment) {
        if !std::mem::take(&mut self.broken) {
            return;
        }
        for (step, _) in &mut self.open {
            step.records.clear();
        }
        if let Some(log) = &mut self.log {
            *log = self.pool.snapshot();
        }
        self.handle(Event::StoreRecovered, exhausted, now);
    }

    fn durable(&self) -> Vec<Record> {
        self.log.clone().unwrap_or_else(|| self.pool.snapshot())
    }

    /// The daemon crashes and restarts. Waiting clients lose their connection.
    pub(crate) fn crash(&mut self, now: Moment) -> Result<(), Violation> {
        // Attachments deleted while the store could not be written reappear until they are swept.
        if std::mem::take(&mut self.broken) {
            self.deleted.clear();
        }
        self.start(Journal::Kept(self.durable()), now);
        for pod in 0..self.pods.len() {
            let PodPhase::Running(held) = &self.pods[pod].phase else {
                continue;
            };
            let key = self.key(pod);
            let found = self.pool.attachments().get(&key);
            let kept = found.is_some_and(|attachment| {
                held.iter()
                    .eq(attachment.leases.iter().map(|lease| &lease.address))
            });
            if !kept && !self.pods[pod].unknown {
                return Err(format!("I3, I15: {key} had {held:?} and lost it"));
            }
        }
        Ok(())
    }

    /// The daemon crashes, and its store cannot be read any more: the assignments are unknown.
    pub(crate) fn lose_store(&mut self, now: Moment) -> Result<(), Violation> {
        (self.broken, self.lost) = (false, true);
        self.deleted.clear();
        self.start(Journal::Lost, now);
        for pod in &mut self.pods {
            pod.unknown = matches!(pod.phase, PodPhase::Running(_) | PodPhase::Leaving);
        }
        if self.pool.is_ready() || self.pool.attached() > 0 {
            return Err("I17: a lost store is trusted".to_owned());
        }
        Ok(())
    }

    /// A new process with the contents of the store.
    fn start(&mut self, journal: Journal, now: Moment) {
        self.open.clear();
        self.process += 1;
        let restored = Pool::restore(self.settings.clone(), identity(self.boot), journal, now);
        self.pool = restored.pool;
        if let Some(log) = &mut self.log {
            *log = self.pool.snapshot();
        }
        self.monitor = Monitor::new(self.monitoring);
        self.seen = None;
        for pod in &mut self.pods {
            if pod.phase == PodPhase::Asking {
                pod.phase = PodPhase::Absent;
            }
        }
    }

    /// The machine reboots: no sandbox is left.
    pub(crate) fn reboot(&mut self, now: Moment) -> Result<(), Violation> {
        self.boot += 1;
        self.deleted.clear();
        // The identity of a new store is written when the pods were listed. Older tombstones
        // survive a reboot, which does no harm.
        let looked = |record: &Record| matches!(record, Record::Identity(_));
        let looked = self.durable().iter().any(looked);
        for pod in &mut self.pods {
            pod.phase = match pod.phase {
                PodPhase::Gone | PodPhase::Leaving => PodPhase::Gone,
                _ => PodPhase::Absent,
            };
        }
        self.crash(now)?;
        if self.pool.attached() > 0 || (looked && !self.pool.tombstones().is_empty()) {
            return Err("I16: something outlived the reboot".to_owned());
        }
        Ok(())
    }
}
