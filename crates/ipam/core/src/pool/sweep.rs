//! Garbage collection of attachments whose pods are gone, so that lost DELs leak no addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use weft_model::{Moment, SharedStr};

use super::{Attachment, Key, Notice, Pool, Record, State, Step};
use crate::PodSummary;

impl Pool {
    /// Releases attachments whose pod is gone, or has a newer sandbox, for long enough. The first
    /// sweep also adopts unrecorded addresses in use. After a store was lost, later sweeps do so
    /// too while addresses are held back, because kubelet reports late.
    pub(super) fn sweep(&mut self, pods: &[PodSummary], now: Moment, step: &mut Step) {
        if self.gate.config && (self.lost || !self.gate.pods) {
            self.adopt(pods, now, step);
            if !self.gate.pods {
                if self.lost {
                    self.hold_back(now, step);
                }
                self.gate.pods = true;
                step.records.push(Record::Identity(self.identity.clone()));
            }
            self.end_recovery(now, step);
        }
        let superseded = self.superseded();
        let keys: Vec<Key> = self.attachments.keys().cloned().collect();
        for key in keys {
            let Some(attachment) = self.attachments.get(&key) else {
                continue;
            };
            let pod = attachment.pod.clone();
            let lives = pods
                .iter()
                .any(|live| live.needs_address() && live.is(&pod));
            if lives && !superseded.contains(&key) {
                self.missing.remove(&key);
                continue;
            }
            let (since, times) = self.missing.entry(key.clone()).or_insert((now, 0));
            *times += 1;
            if *times > self.settings.sweeps && now.since(*since) >= self.settings.sweep_after {
                self.detach(&key, now, step);
                step.notices.push(Notice::Swept(key, pod));
            }
        }
    }

    /// Attachments of pods that have a newer one for the same interface.
    fn superseded(&self) -> BTreeSet<Key> {
        let placed = || {
            self.attachments.iter().filter_map(|(key, held)| {
                let uid = held.pod.uid.as_ref()?;
                Some(((uid, &key.network, &key.interface), key, held.at))
            })
        };
        let mut newest: BTreeMap<_, Moment> = BTreeMap::new();
        for (place, _, at) in placed() {
            let latest = newest.entry(place).or_insert(at);
            *latest = at.max(*latest);
        }
        let old = placed().filter(|(place, _, at)| *at < newest[place]);
        old.map(|(_, key, _)| key.clone()).collect()
    }

    /// A pod that reports an address of this node holds it, even without a record.
    fn adopt(&mut self, pods: &[PodSummary], now: Moment, step: &mut Step) {
        for pod in pods.iter().filter(|pod| pod.needs_address()) {
            let Some(uid) = &pod.identity.uid else {
                continue;
            };
            let key = Key::adopted(uid);
            let free = |address: &&IpAddr| {
                let slot = self.slots.get(address);
                slot.is_some_and(|slot| slot.state.owner().is_none())
            };
            let found: Vec<IpAddr> = pod.addresses.iter().filter(free).copied().collect();
            // A pod with an attachment may still report the address of its previous sandbox.
            let known = self.attachments.values().any(|held| pod.is(&held.pod));
            if found.is_empty() || known {
                continue;
            }
            for address in &found {
                let owner = key.clone();
                self.slots
                    .change(*address, |slot| slot.state = State::Assigned { owner });
                step.notices
                    .push(Notice::Adopted(*address, pod.identity.clone()));
            }
            let attachment = Attachment {
                pod: pod.identity.clone(),
                leases: found.iter().map(|address| self.lease(*address)).collect(),
                epoch: self.epoch.clone().unwrap_or_default(),
                at: now,
            };
            step.records
                .push(Record::Attachment(key.clone(), Some(attachment.clone())));
            self.attachments.insert(key, attachment);
        }
    }

    /// An address that no pod reports may belong to a sandbox that kubelet has not reported yet.
    fn hold_back(&mut self, now: Moment, step: &mut Step) {
        let until = now + self.settings.hold_after_loss;
        self.slots.retain(|address, slot| {
            let held = slot.state.clone().hold_until(until);
            if held != slot.state
                && let State::Cooldown { until } | State::Releasing { until: Some(until) } = held
            {
                step.records.push(Record::Cooldown(address, Some(until)));
            }
            slot.state = held;
            true
        });
    }

    /// Ends the recovery from a lost store once every address was held back since the first sweep
    /// of this process.
    fn end_recovery(&mut self, now: Moment, step: &mut Step) {
        if !self.lost {
            return;
        }
        let end = now + self.settings.hold_after_loss;
        if *self.held_until.get_or_insert(end) <= now {
            (self.lost, self.held_until) = (false, None);
            step.records.push(Record::Lost(false));
        }
    }

    /// CNI GC. An ADD in flight is not in the runtime's list yet, so young attachments are kept. So
    /// are placeholders: their sandbox is unknown and cannot be in the list.
    pub(super) fn collect(
        &mut self,
        network: &SharedStr,
        valid: &BTreeSet<(SharedStr, SharedStr)>,
        now: Moment,
        step: &mut Step,
    ) {
        let stale: Vec<Key> = self
            .attachments
            .iter()
            .filter(|(key, held)| {
                key.network == *network
                    && !key.is_adopted()
                    && !valid.contains(&(key.container.clone(), key.interface.clone()))
                    && now.since(held.at) >= self.settings.collect_after
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in stale {
            self.detach(&key, now, step);
        }
    }
}
