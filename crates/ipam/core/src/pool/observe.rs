//! Updates from the NodeNetworkConfig: which addresses the node holds.

use std::collections::BTreeMap;

use weft_model::Moment;

use super::{Notice, Pool, Record, Slot, State, Step};
use crate::{
    ConfigFlaw, ContainerId, GrantName, NodeConfig,
    config::{Grant, read_grants},
};

impl Pool {
    pub(super) fn observed(&mut self, config: &NodeConfig, now: Moment, step: &mut Step) {
        if self.is_ours(config, step) && !self.is_outdated(config) {
            self.apply(config, now, step);
        }
    }

    /// Our write changed the object, so no earlier write of ours can succeed any more: a name it
    /// does not list is not listed, and the addresses in its status are still ours.
    pub(super) fn accepted(&mut self, config: &NodeConfig, now: Moment, step: &mut Step) {
        if !self.is_ours(config, step) {
            return;
        }
        let mut reclaimed = Vec::new();
        let mut listed = config.spec.not_in_use.clone();
        if self.is_outdated(config) {
            // The watch was faster than the reply, and shows the list after our write.
            listed.extend(self.listed.iter().cloned());
        }
        let withdrawn: Vec<GrantName> = self.offered.difference(&listed).cloned().collect();
        for name in withdrawn {
            self.offered.remove(&name);
            step.records.push(Record::Releasing(name.clone(), false));
            let held = config.status.entries().any(|(_, entry)| entry.name == name);
            if held && self.grants.contains_key(&name) {
                self.reclaim(&name, now);
                reclaimed.push(name);
            }
        }
        if !reclaimed.is_empty() {
            step.notices.push(Notice::Reclaimed(reclaimed));
        }
        if !self.is_outdated(config) {
            self.apply(config, now, step);
        }
    }

    fn reclaim(&mut self, name: &GrantName, now: Moment) {
        let Some(grant) = self.grants.get(name) else {
            return;
        };
        let programmed = self.is_programmed(grant);
        for address in grant.addresses() {
            self.slots.change(address, |slot| {
                if let Ok(state) = slot.state.clone().reclaim(now) {
                    slot.state = match state {
                        State::Available { .. } if !programmed => State::Programming,
                        state => state,
                    };
                }
            });
        }
    }

    /// True if the object describes this node. If it used to and does not any more, other nodes may
    /// soon get the addresses: pods keep theirs, and none is assigned until a config of this node
    /// is observed.
    fn is_ours(&mut self, config: &NodeConfig, step: &mut Step) -> bool {
        if self.ended.as_ref() == Some(&config.uid) {
            return false;
        }
        let foreign = config.owner.as_ref() != Some(&self.settings.node);
        if foreign {
            step.notices.push(Notice::Config(ConfigFlaw::Foreign {
                config: config.name.clone(),
                owner: config.owner.clone(),
                expected: self.settings.node.clone(),
            }));
        }
        if !foreign && !config.deleting {
            return true;
        }
        if !self.is_outdated(config) {
            self.gate.config = false;
            if self.epoch.as_ref() == Some(&config.uid) {
                self.seen = Some(config.version.clone());
            }
            // An owner may be set again; a deleted object never returns.
            if config.deleting {
                self.ended = Some(config.uid.clone());
            }
        }
        false
    }

    fn is_outdated(&self, config: &NodeConfig) -> bool {
        self.epoch.as_ref() == Some(&config.uid)
            && (self.seen.as_ref()).is_some_and(|seen| config.version.is_older_than(seen))
    }

    fn apply(&mut self, config: &NodeConfig, now: Moment, step: &mut Step) {
        let (grants, flaws) = read_grants(config, &self.grants);
        step.notices.extend(flaws.into_iter().map(Notice::Config));
        let former = self.epoch.replace(config.uid.clone());
        if former.as_ref() != Some(&config.uid) {
            self.ended = former.or(self.ended.take());
        }
        self.seen = Some(config.version.clone());
        self.listed.clone_from(&config.spec.not_in_use);
        let containers = config.status.containers.iter();
        self.containers = containers
            .map(|container| {
                // Its entries continue to exist as grants.
                let mut container = container.clone();
                container.entries = Vec::new();
                (container.id.clone(), container)
            })
            .collect();
        self.drop_missing(&grants, step);
        self.take_in(grants, now);
        self.quarantine_loose(step);
        self.follow_list(config, step);
        self.gate.config = true;
    }

    /// Drops addresses whose grant is gone, except those that pods hold.
    fn drop_missing(&mut self, grants: &BTreeMap<GrantName, Grant>, step: &mut Step) {
        let gone: Vec<(GrantName, Grant)> = self
            .grants
            .iter()
            .filter(|(name, grant)| grants.get(*name).is_none_or(|now| now.net != grant.net))
            .map(|(name, grant)| (name.clone(), grant.clone()))
            .collect();
        for (name, grant) in gone {
            self.grants.remove(&name);
            for address in grant.addresses() {
                self.slots.change(address, |slot| slot.grant = None);
                let Some(slot) = self.slots.get(&address) else {
                    continue;
                };
                let cooling = match slot.state {
                    State::Cooldown { .. } => true,
                    State::Releasing { until } => until.is_some(),
                    _ => false,
                };
                if cooling {
                    step.records.push(Record::Cooldown(address, None));
                }
                if slot.state.owner().is_none() {
                    self.slots.remove(&address);
                }
            }
        }
        let gone = self
            .offered
            .iter()
            .filter(|name| !grants.contains_key(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.offered.remove(&name);
            step.records.push(Record::Releasing(name, false));
        }
    }

    fn take_in(&mut self, grants: BTreeMap<GrantName, Grant>, now: Moment) {
        let fresh = self.fresh(now);
        for (name, grant) in grants {
            let programmed = self.is_programmed(&grant);
            for address in grant.addresses() {
                let known = self.slots.get(&address).cloned();
                let slot = known.unwrap_or_else(|| Slot::loose(State::Programming));
                let mut state = slot.state.confirm();
                if programmed {
                    state = state.program(fresh.clone());
                }
                let grant = Some(name.clone());
                self.slots.insert(address, Slot { state, grant });
            }
            self.grants.insert(name, grant);
        }
    }

    /// Quarantines addresses that pods hold without a grant; forgets those that only cool down.
    fn quarantine_loose(&mut self, step: &mut Step) {
        self.slots.retain(|address, slot| {
            if slot
                .grant
                .as_ref()
                .is_some_and(|name| self.grants.contains_key(name))
            {
                return true;
            }
            slot.grant = None;
            let state = slot.state.clone();
            let Some(vanished) = state.vanish() else {
                step.records.push(Record::Cooldown(address, None));
                return false;
            };
            if let State::Assigned { owner } = &slot.state {
                step.notices
                    .push(Notice::Quarantined(address, owner.clone()));
            }
            slot.state = vanished;
            true
        });
    }

    /// Addresses that the spec lists may be withdrawn at any time, whichever process listed them.
    fn follow_list(&mut self, config: &NodeConfig, step: &mut Step) {
        let listed = config.spec.not_in_use.iter();
        let listed: Vec<GrantName> = listed
            .filter(|name| self.grants.contains_key(*name))
            .cloned()
            .collect();
        for name in &listed {
            if !self.is_idle(name) {
                step.notices.push(Notice::OfferedInUse(name.clone()));
            }
        }
        self.offer(listed, step);
        // Also what was offered before its addresses were known.
        for name in self.offered.clone() {
            if self.is_idle(&name) {
                self.release_grant(&name);
            } else {
                self.offered.remove(&name);
                step.records.push(Record::Releasing(name, false));
            }
        }
    }

    fn is_programmed(&self, grant: &Grant) -> bool {
        !self.settings.programmed_by_host
            || (self.programmed.get(&grant.container)).is_some_and(|host| *host >= grant.version)
    }

    pub(super) fn programmed(&mut self, container: &ContainerId, version: i64, now: Moment) {
        self.programmed.insert(container.clone(), version);
        let fresh = self.fresh(now);
        for (name, grant) in &self.grants {
            if grant.container != *container || grant.version > version {
                continue;
            }
            for address in grant.addresses() {
                self.slots.change(address, |slot| {
                    if slot.grant.as_ref() == Some(name) {
                        slot.state = slot.state.clone().program(fresh.clone());
                    }
                });
            }
        }
    }

    /// The state of a new, usable address. After the store was lost, being new proves nothing: the
    /// address may have been this node's before and be in use by a sandbox. The first observed
    /// NodeNetworkConfig may come from a stale cache, and addresses assigned between that and the
    /// loss come with a later one.
    fn fresh(&self, now: Moment) -> State {
        if self.lost {
            let end = now + self.settings.hold_after_loss;
            let until = self.held_until.unwrap_or(end);
            State::Cooldown { until }
        } else {
            State::Available { since: now }
        }
    }
}
