//! The record of what was written, Service by Service, and of what several Services share.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    net::SocketAddr,
    sync::Arc,
};

use weft_host::nftables::Value;
use weft_model::ObjectKey;
use weft_proxy::{Service, ServicePort, Settings, backend::WithoutLocalEndpoints};

use crate::{
    collection::Collection,
    entry::{Content, Entries, Entry, Numbering, entries, fronts},
    front::Front,
    order::order,
    scratch::{AFFINITY_IDS, List},
    transaction::{Step, Target},
};

/// Number of hairpin elements that are kept after their endpoints are gone.
///
/// A packet is translated in prerouting and masqueraded in postrouting. If the endpoint is removed in
/// between, the element must still be there: without masquerading the pod would get a packet from its
/// own address, and drop it. An element that no endpoint needs matches nothing else.
const KEPT_HAIRPINS: usize = 1_024;

/// A Service as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) service: Arc<Service>,
    /// For each port.
    pub(crate) numbering: Box<[Numbering]>,
}

/// The record of what was written.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) services: HashMap<ObjectKey, Applied>,
    /// The owner of each front: the first Service that named it.
    claims: HashMap<Front, ObjectKey>,
    /// Services that name a front of another.
    waiting: BTreeMap<Front, BTreeSet<ObjectKey>>,
    /// Number of ports that need an element.
    shared: HashMap<(Collection, Value), u32>,
    /// Hairpin elements without an endpoint, oldest first.
    kept_hairpins: VecDeque<Value>,
    /// Number of fronts by number of endpoints.
    pub(crate) counts: BTreeMap<u32, usize>,
    /// Number of fronts by timeout.
    pub(crate) timeouts: BTreeMap<u32, usize>,
    identities: HashMap<u16, u32>,
    pub(crate) element_count: usize,
    pub(crate) without_local_endpoints: WithoutLocalEndpoints,
}

/// The change of a Service.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    pub(crate) steps: Vec<Step>,
    /// Services that get fronts which this one gave up.
    pub(crate) heirs: BTreeSet<ObjectKey>,
    /// Fronts that the Service names and another one has.
    pub(crate) refused_fronts: Vec<(Front, ObjectKey)>,
}

impl State {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            services: HashMap::new(),
            claims: HashMap::new(),
            waiting: BTreeMap::new(),
            shared: HashMap::new(),
            kept_hairpins: VecDeque::new(),
            counts: BTreeMap::new(),
            timeouts: BTreeMap::new(),
            identities: HashMap::new(),
            element_count: 0,
            without_local_endpoints: WithoutLocalEndpoints::default(),
        }
    }

    /// Numbers the endpoints of a Service: as they were, as far as possible.
    pub(crate) fn number(
        &self,
        service: &Arc<Service>,
        previous: &dyn Fn(&ServicePort) -> Option<Numbering>,
    ) -> Applied {
        let mut taken = BTreeSet::new();
        let ports = service.ports.iter().map(|port| {
            let previous = previous(port).unwrap_or_default();
            let numbered = |before: Option<&[SocketAddr]>, desired: &[SocketAddr]| {
                let before = before?;
                if before == desired {
                    return None;
                }
                let ordered = order(before, desired);
                (ordered != desired).then(|| ordered.into_boxed_slice())
            };
            let identity = port.frontend.affinity.map(|_| {
                let id = service.port_id(port);
                let known = previous.identity.filter(|known| taken.insert(*known));
                known.unwrap_or_else(|| {
                    let identity = self.new_identity(&id, &taken);
                    taken.insert(identity);
                    identity
                })
            });
            Numbering {
                cluster: numbered(previous.cluster.as_deref(), &port.cluster),
                local: numbered(previous.local.as_deref(), &port.local),
                identity,
            }
        });
        let numbering = ports.collect();
        Applied {
            service: service.clone(),
            numbering,
        }
    }

    /// Numbers the endpoints of a Service as they were when it was last written.
    pub(crate) fn renumber(&self, service: &Arc<Service>) -> Applied {
        let applied = self.services.get(&service.key);
        self.number(service, &|port| {
            let applied = applied?;
            let mut ports = applied.service.ports.iter().zip(&applied.numbering);
            let is_same = |other: &ServicePort| {
                (&other.frontend.name, other.frontend.protocol)
                    == (&port.frontend.name, port.frontend.protocol)
            };
            let (old, numbering) = ports.find(|(other, _)| is_same(other))?;
            Some(Numbering {
                cluster: Some(numbering.list(old, List::Cluster).into()),
                local: Some(numbering.list(old, List::Local).into()),
                identity: numbering.identity,
            })
        })
    }

    fn new_identity(&self, id: &weft_proxy::PortId, taken: &BTreeSet<u16>) -> u16 {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let (first, last) = (*AFFINITY_IDS.start(), *AFFINITY_IDS.end());
        let span = u64::from(last - first) + 1;
        let start = hasher.hash_one(id) % span;
        let candidates = (0..span).map(|step| (start + step) % span);
        let mut candidates = candidates
            .filter_map(|offset| Some(first + u16::try_from(offset).ok()?))
            .filter(|identity| {
                !self.identities.contains_key(identity) && !taken.contains(identity)
            });
        // With more Services than identities, some share one and affinity works by chance.
        candidates.next().unwrap_or(first)
    }

    /// Replaces a Service, and says which elements change by it.
    pub(crate) fn swap(&mut self, key: &ObjectKey, new: Option<Applied>) -> Delta {
        let mut delta = Delta::default();
        let old = self.services.remove(key);
        let old_entries = old
            .as_ref()
            .map_or_else(Entries::default, |old| self.entries(key, old));
        self.move_claims(key, old.as_ref(), new.as_ref(), &mut delta);
        if let Some(old) = &old {
            self.without_local_endpoints -= WithoutLocalEndpoints::of(&old.service);
            self.release_identities(old);
        }
        if let Some(new) = &new {
            self.without_local_endpoints += WithoutLocalEndpoints::of(&new.service);
            self.use_identities(new);
        }
        let new_entries = new
            .as_ref()
            .map_or_else(Entries::default, |new| self.entries(key, new));
        self.element_count += new_entries.own.len();
        self.element_count -= old_entries.own.len();
        let mut steps = difference(old_entries.own, new_entries.own);
        self.move_shared(old_entries.shared, new_entries.shared, &mut steps);
        for (uses, old, new) in [
            (&mut self.counts, old_entries.counts, new_entries.counts),
            (
                &mut self.timeouts,
                old_entries.timeouts,
                new_entries.timeouts,
            ),
        ] {
            for number in new {
                *uses.entry(number).or_default() += 1;
            }
            for number in old {
                if let Some(count) = uses.get_mut(&number) {
                    *count -= 1;
                    if *count == 0 {
                        uses.remove(&number);
                    }
                }
            }
        }
        if let Some(new) = new {
            self.services.insert(key.clone(), new);
        }
        delta.steps = steps;
        delta
    }

    /// The elements of a Service, as far as its fronts are its own.
    pub(crate) fn entries(&self, key: &ObjectKey, applied: &Applied) -> Entries {
        entries(
            &applied.service,
            &applied.numbering,
            &self.settings,
            &|front| self.claims.get(front) == Some(key),
        )
    }

    /// Gives a front to a Service before any other names it.
    pub(crate) fn claim(&mut self, front: Front, owner: ObjectKey) {
        self.claims.insert(front, owner);
    }

    /// Number of fronts that Services name and others have.
    pub(crate) fn contested(&self) -> usize {
        self.waiting.values().map(BTreeSet::len).sum()
    }

    /// Elements that Services share.
    pub(crate) fn shared_entries(&self) -> impl Iterator<Item = Entry> {
        let places = self.shared.keys();
        places.map(|(collection, key)| Entry::bare(*collection, *key))
    }

    /// The kernel has lost the hairpin elements that no endpoint needs.
    pub(crate) fn forget_kept_hairpins(&mut self) {
        self.element_count -= self.kept_hairpins.len();
        self.kept_hairpins.clear();
    }

    fn move_claims(
        &mut self,
        key: &ObjectKey,
        old: Option<&Applied>,
        new: Option<&Applied>,
        delta: &mut Delta,
    ) {
        let of = |applied: Option<&Applied>| -> BTreeSet<Front> {
            let all = applied.iter().flat_map(|applied| {
                let all = fronts(&applied.service, &self.settings);
                all.map(|(_, front)| front)
            });
            all.collect()
        };
        let (old, new) = (of(old), of(new));
        for front in old.difference(&new) {
            if self.claims.get(front) == Some(key) {
                self.claims.remove(front);
                delta
                    .heirs
                    .extend(self.waiting.remove(front).unwrap_or_default());
            } else if let Some(waiting) = self.waiting.get_mut(front) {
                waiting.remove(key);
                if waiting.is_empty() {
                    self.waiting.remove(front);
                }
            }
        }
        for front in new {
            let owner = self.claims.entry(front).or_insert_with(|| key.clone());
            if owner != key {
                delta.refused_fronts.push((front, owner.clone()));
                let waiting = self.waiting.entry(front).or_default();
                waiting.insert(key.clone());
            } else if let Some(waiting) = self.waiting.get_mut(&front) {
                waiting.remove(key);
            }
        }
    }

    fn use_identities(&mut self, applied: &Applied) {
        for identity in applied.numbering.iter().filter_map(|n| n.identity) {
            *self.identities.entry(identity).or_default() += 1;
        }
    }

    fn release_identities(&mut self, applied: &Applied) {
        for identity in applied.numbering.iter().filter_map(|n| n.identity) {
            let uses = self.identities.entry(identity).or_default();
            *uses = uses.saturating_sub(1);
            if *uses == 0 {
                self.identities.remove(&identity);
            }
        }
    }

    fn move_shared(&mut self, old: Vec<Entry>, new: Vec<Entry>, steps: &mut Vec<Step>) {
        let mut fresh = Vec::new();
        for entry in new {
            let uses = self
                .shared
                .entry((entry.collection, entry.key))
                .or_default();
            *uses += 1;
            if *uses == 1 {
                fresh.push(entry);
            }
        }
        let mut gone = Vec::new();
        for entry in old {
            let place = (entry.collection, entry.key);
            if let Some(uses) = self.shared.get_mut(&place) {
                *uses -= 1;
                if *uses == 0 {
                    self.shared.remove(&place);
                    gone.push(place);
                }
            }
        }
        fresh.retain(|entry| !self.take_kept(entry));
        self.element_count += fresh.len();
        for (collection, key) in gone {
            let delete = match collection {
                Collection::Hairpin => self.keep(key),
                _ => Some(key),
            };
            if let Some(key) = delete {
                self.element_count -= 1;
                steps.push(Step::Delete(collection, key.into()));
            }
        }
        steps.extend(fresh.into_iter().map(Step::Add));
    }

    /// Keeps a hairpin element for a while, and returns the one to delete in its place.
    fn keep(&mut self, key: Value) -> Option<Value> {
        self.kept_hairpins.push_back(key);
        if self.kept_hairpins.len() > KEPT_HAIRPINS {
            return self.kept_hairpins.pop_front();
        }
        None
    }

    /// Keeps a hairpin element that an earlier process wrote. False if too many are kept.
    pub(crate) fn take_over_hairpin(&mut self, key: Value) -> bool {
        let has_room = self.kept_hairpins.len() < KEPT_HAIRPINS;
        if has_room {
            self.kept_hairpins.push_back(key);
            self.element_count += 1;
        }
        has_room
    }

    /// True if the element was kept, and so is there already.
    fn take_kept(&mut self, entry: &Entry) -> bool {
        if entry.collection != Collection::Hairpin {
            return false;
        }
        let kept = self.kept_hairpins.iter();
        let place = kept.enumerate().find(|(_, key)| **key == entry.key);
        match place.map(|(place, _)| place) {
            Some(place) => self.kept_hairpins.remove(place).is_some(),
            None => false,
        }
    }
}

/// Leads from one set of elements to another.
///
/// Most elements are in the same place of both lists, counted from the beginning or from the end:
/// only what is between is searched for.
pub(crate) fn difference(mut old: Vec<Entry>, mut new: Vec<Entry>) -> Vec<Step> {
    let mut steps = Vec::new();
    let is_same_key = |a: &Entry, b: &Entry| a.collection == b.collection && a.key == b.key;
    let mut pairs = old.iter().zip(&new);
    let same_start = pairs.position(|(a, b)| !is_same_key(a, b));
    let same_start = same_start.unwrap_or_else(|| old.len().min(new.len()));
    let shorter = old.len().min(new.len()) - same_start;
    let mut pairs = old.iter().rev().zip(new.iter().rev()).take(shorter);
    let same_end = pairs
        .position(|(a, b)| !is_same_key(a, b))
        .unwrap_or(shorter);
    let (old_end, new_end) = (old.len() - same_end, new.len() - same_end);
    let mut compare =
        |old: Vec<Entry>, new: Vec<Entry>| {
            let changed = old
                .into_iter()
                .zip(new)
                .filter(|(a, b)| a.content != b.content);
            steps.extend(changed.map(|(former, entry)| {
                Step::Replace(Target::of(former.key, &former.content), entry)
            }));
        };
    compare(old.split_off(old_end), new.split_off(new_end));
    let (old_middle, new_middle) = (old.split_off(same_start), new.split_off(same_start));
    compare(old, new);
    steps.extend(search(old_middle, new_middle));
    steps
}

/// The difference between elements in any order.
fn search(old: Vec<Entry>, new: Vec<Entry>) -> Vec<Step> {
    let old = old
        .into_iter()
        .map(|entry| ((entry.collection, entry.key), entry.content));
    let mut old: HashMap<(Collection, Value), Content> = old.collect();
    let mut steps = Vec::with_capacity(new.len());
    for entry in new {
        match old.remove(&(entry.collection, entry.key)) {
            None => steps.push(Step::Add(entry)),
            Some(content) if content != entry.content => {
                steps.push(Step::Replace(Target::of(entry.key, &content), entry));
            }
            Some(_) => {}
        }
    }
    let gone = old
        .into_iter()
        .map(|((collection, key), content)| Step::Delete(collection, Target::of(key, &content)));
    steps.extend(gone);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(random: &mut fastrand::Rng) -> Vec<Entry> {
        let mut keys: Vec<u32> = (0..random.u32(0..9)).map(|_| random.u32(0..12)).collect();
        if random.bool() {
            keys.sort_unstable();
        }
        let mut seen = BTreeSet::new();
        keys.retain(|key| seen.insert(*key));
        let entry = |key: u32, content: u32| Entry {
            collection: Collection::StickyEndpoints,
            key: Value::EMPTY.with_number(key),
            content: Content::Data(Value::EMPTY.with_number(content)),
        };
        let keys = keys.into_iter();
        keys.map(|key| entry(key, random.u32(0..3))).collect()
    }

    #[test]
    fn a_difference_leads_from_one_to_the_other_and_touches_nothing_else() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..5000 {
            let (old, new) = (entries(&mut random), entries(&mut random));
            let map = |entries: &[Entry]| -> HashMap<Value, Content> {
                let pairs = entries
                    .iter()
                    .map(|entry| (entry.key, entry.content.clone()));
                pairs.collect()
            };
            let (mut state, wanted) = (map(&old), map(&new));
            for step in difference(old.clone(), new.clone()) {
                match step {
                    Step::Add(entry) => {
                        assert!(state.insert(entry.key, entry.content).is_none());
                    }
                    Step::Replace(former, entry) => {
                        assert_eq!(former.key, entry.key);
                        let former = state.insert(entry.key, entry.content.clone());
                        assert!(former.is_some_and(|former| former != entry.content));
                    }
                    Step::Delete(_, target) => assert!(state.remove(&target.key).is_some()),
                }
            }
            assert_eq!(state, wanted, "{old:?} {new:?}");
        }
    }
}
