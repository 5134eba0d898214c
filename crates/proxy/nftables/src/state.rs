//! What was written, Service by Service, and what several Services share.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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
    transaction::Step,
};

/// A Service as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) service: Arc<Service>,
    /// For each port.
    pub(crate) numbering: Box<[Numbering]>,
}

/// What was written.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) services: HashMap<ObjectKey, Applied>,
    /// Whose each front is. The first Service that names a front has it.
    claims: HashMap<Front, ObjectKey>,
    /// Services that name a front of another.
    waiting: BTreeMap<Front, BTreeSet<ObjectKey>>,
    /// How many ports need an element.
    shared: HashMap<(Collection, Value), u32>,
    /// How many fronts have so many endpoints.
    pub(crate) counts: BTreeMap<u32, usize>,
    /// How many fronts have this timeout.
    pub(crate) timeouts: BTreeMap<u32, usize>,
    identities: HashMap<u16, u32>,
    pub(crate) element_count: usize,
    pub(crate) without_local_endpoints: WithoutLocalEndpoints,
}

/// How a Service changes.
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
                let ordered = order(before?, desired);
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
            self.move_identities(old, false);
        }
        if let Some(new) = &new {
            self.without_local_endpoints += WithoutLocalEndpoints::of(&new.service);
            self.move_identities(new, true);
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

    fn move_identities(&mut self, applied: &Applied, add: bool) {
        for identity in applied.numbering.iter().filter_map(|n| n.identity) {
            let uses = self.identities.entry(identity).or_default();
            if add {
                *uses += 1;
            } else {
                *uses = uses.saturating_sub(1);
                if *uses == 0 {
                    self.identities.remove(&identity);
                }
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
        for entry in old {
            let place = (entry.collection, entry.key);
            if let Some(uses) = self.shared.get_mut(&place) {
                *uses -= 1;
                if *uses == 0 {
                    self.shared.remove(&place);
                    self.element_count -= 1;
                    steps.push(Step::Delete(entry.collection, entry.key));
                }
            }
        }
        self.element_count += fresh.len();
        steps.extend(fresh.into_iter().map(Step::Add));
    }
}

/// Leads from one set of elements to another.
fn difference(old: Vec<Entry>, new: Vec<Entry>) -> Vec<Step> {
    let old_len = old.len();
    let old = old
        .into_iter()
        .map(|entry| ((entry.collection, entry.key), entry.content));
    let mut old: HashMap<(Collection, Value), Content> = old.collect();
    let mut steps = Vec::with_capacity(new.len().abs_diff(old_len) + 4);
    for entry in new {
        match old.remove(&(entry.collection, entry.key)) {
            None => steps.push(Step::Add(entry)),
            Some(content) if content != entry.content => steps.push(Step::Replace(entry)),
            Some(_) => {}
        }
    }
    let gone = old.into_keys();
    steps.extend(gone.map(|(collection, key)| Step::Delete(collection, key)));
    steps
}
