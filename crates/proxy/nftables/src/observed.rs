//! The contents of the kernel's table, as far as they were read.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
    sync::Arc,
};

use weft_host::nftables::{Element, Value};
use weft_model::IpFamily;
use weft_proxy::{ServicePort, Settings};

use crate::{
    collection::{Collection, Dispatch, FrontMap},
    entry::{Content, Entry, Numbering, read_endpoint},
    front::{Front, FrontKind},
    kernel::{Kernel, KernelError, Structure},
    program::{Branch, pick, timeout},
    scratch::{COUNT_MASK, List},
    transaction::{Phase, Step, Target},
};

/// Maps of up to this many elements are listed. The kernel's time grows with the square of the number,
/// so in larger maps the elements that fronts lead to are requested by key.
pub(crate) const LISTED: usize = 20_000;

/// The depth to which maps of endpoints are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Elements that fronts lead to: all that packets can reach.
    Reachable,
    /// Also what a process left behind that ended in the middle of a change.
    Everything,
}

/// Elements by collection and key.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub(crate) elements: HashMap<Collection, HashMap<Value, Content>>,
    /// The keys of `source-ranges` by front.
    ranges: HashMap<Phase, Vec<Value>>,
    /// Numbers of endpoints that have an intact chain.
    pub(crate) picks: BTreeSet<u32>,
    /// Timeouts that have intact chains.
    pub(crate) timeouts: BTreeSet<u32>,
    pub(crate) verdicts: BTreeMap<Dispatch, Vec<Element>>,
    pub(crate) structure: Structure,
}

impl Observed {
    /// Reads a table of this structure, whose sets are as they should be.
    pub(crate) fn read(
        kernel: &mut dyn Kernel,
        structure: Structure,
        family: IpFamily,
        depth: Depth,
    ) -> Result<Self, KernelError> {
        let mut observed = Self {
            structure,
            ..Self::default()
        };
        for dispatch in Dispatch::ALL {
            let elements = kernel.elements(dispatch.name())?;
            observed.verdicts.insert(dispatch, elements);
        }
        observed.find_branches(family);
        for collection in Collection::ALL {
            if !matches!(collection, Collection::OfFronts(_, FrontMap::Endpoints)) {
                let elements = kernel.elements(collection.name())?;
                observed.insert(collection, elements);
            }
        }
        for kind in FrontKind::ALL {
            let collection = Collection::of(kind, FrontMap::Endpoints);
            let keys = observed.endpoint_keys(kind);
            let elements = if depth == Depth::Everything || keys.len() <= LISTED {
                kernel.elements(collection.name())?
            } else {
                kernel.get_elements(collection.name(), &keys)?
            };
            observed.insert(collection, elements);
        }
        observed.find_ranges(family);
        Ok(observed)
    }

    fn find_ranges(&mut self, family: IpFamily) {
        let ranges = self.elements.get(&Collection::SourceRanges);
        for (key, content) in ranges.into_iter().flatten() {
            let step = Step::Delete(Collection::SourceRanges, Target::of(*key, content));
            let front = self.ranges.entry(step.phase(family)).or_default();
            front.push(*key);
        }
    }

    fn insert(&mut self, collection: Collection, elements: Vec<Element>) {
        let entries = elements.into_iter().map(|element| {
            let mut entry = Entry::of_element(collection, element);
            if collection == Collection::ServiceNetworks && entry.content == Content::Nothing {
                // The kernel keeps no end of a range that ends with the last address.
                let length = entry.key.as_bytes().len();
                entry.content = Content::Until(Value::EMPTY.with(&vec![0xff; length]));
            }
            (entry.key, entry.content)
        });
        self.elements.entry(collection).or_default().extend(entries);
    }

    /// The rest of a step that adds an element.
    pub(crate) fn compare(&mut self, step: Step) -> Option<Step> {
        let Step::Add(entry) = step else {
            return Some(step);
        };
        let elements = self.elements.get_mut(&entry.collection);
        match elements.and_then(|elements| elements.remove(&entry.key)) {
            Some(content) if content == entry.content => None,
            Some(content) => Some(Step::Replace(Target::of(entry.key, &content), entry)),
            None => Some(Step::Add(entry)),
        }
    }

    /// The rest of the steps that write a Service.
    ///
    /// Ranges that overlap can replace each other within one transaction only, so those that a
    /// front of the Service has no more are deleted by them.
    pub(crate) fn compare_all(&mut self, steps: Vec<Step>, family: IpFamily) -> Vec<Step> {
        let mut guarded: Vec<Vec<Value>> = Vec::new();
        let mut rest = Vec::new();
        for step in steps {
            if step.collection() == Collection::SourceRanges {
                guarded.extend(self.ranges.remove(&step.phase(family)));
            }
            rest.extend(self.compare(step));
        }
        let ranges = self.elements.get_mut(&Collection::SourceRanges);
        if let Some(ranges) = ranges {
            for key in guarded.into_iter().flatten() {
                if let Some(content) = ranges.remove(&key) {
                    let target = Target::of(key, &content);
                    rest.push(Step::Delete(Collection::SourceRanges, target));
                }
            }
        }
        rest
    }

    /// Takes the hairpin elements of addresses that were not compared with anything. Those of two
    /// different addresses are not ours.
    pub(crate) fn take_unused_hairpins(&mut self) -> Vec<Value> {
        let Some(elements) = self.elements.get_mut(&Collection::Hairpin) else {
            return Vec::new();
        };
        let is_of_one_address = |key: &Value| {
            let (source, destination) = key.as_bytes().split_at(key.as_bytes().len() / 2);
            source == destination
        };
        let unused: Vec<Value> = elements.keys().copied().filter(is_of_one_address).collect();
        for key in &unused {
            elements.remove(key);
        }
        unused
    }

    /// Deletes what was not compared with anything.
    pub(crate) fn leftovers(&mut self, family: IpFamily) -> Vec<Step> {
        let collections: Vec<Collection> = self.elements.keys().copied().collect();
        let deletes = collections.into_iter().flat_map(|c| self.take(c));
        let mut deletes: Vec<Step> = deletes.collect();
        deletes.sort_by_cached_key(|step| step.phase(family));
        deletes
    }

    /// Deletes what was not compared with anything in one collection.
    pub(crate) fn take(&mut self, collection: Collection) -> Vec<Step> {
        let elements = self.elements.remove(&collection).into_iter().flatten();
        let delete = |(key, content)| Step::Delete(collection, Target::of(key, &content));
        elements.map(delete).collect()
    }

    /// The number that a front has in a map, without flags.
    fn count(&self, kind: FrontKind, map: FrontMap, front: &Value) -> usize {
        let elements = self.elements.get(&Collection::of(kind, map));
        let content = elements.and_then(|elements| elements.get(front));
        let number = content.and_then(Content::data).and_then(Value::last_number);
        usize::try_from(number.unwrap_or(0) & COUNT_MASK).unwrap_or(0)
    }

    /// The name of the Service port that a front belongs to.
    pub(crate) fn service_name(&self, front: &Front) -> Option<&Arc<str>> {
        let elements = self
            .elements
            .get(&Collection::of(front.kind(), FrontMap::Services))?;
        match elements.get(&front.key())? {
            Content::Named(_, name) => Some(name),
            Content::Nothing | Content::Data(_) | Content::Until(_) => None,
        }
    }

    /// The keys of all endpoints that fronts lead to.
    fn endpoint_keys(&self, kind: FrontKind) -> Vec<Value> {
        let mut keys = Vec::new();
        for (map, list) in [
            (FrontMap::Services, List::Cluster),
            (FrontMap::LocalCounts, List::Local),
        ] {
            let elements = self.elements.get(&Collection::of(kind, map));
            for front in elements.into_iter().flat_map(HashMap::keys) {
                let numbers = 0..self.count(kind, map, front);
                keys.extend(numbers.map(|place| front.with_number(list.number(place))));
            }
        }
        keys
    }

    /// The former numbering of a port, as its fronts show it.
    pub(crate) fn numbering(&self, port: &ServicePort, settings: &Settings) -> Numbering {
        let internal = Front {
            address: Some(port.frontend.cluster_ip),
            protocol: port.frontend.protocol,
            port: port.frontend.port,
        };
        let node_port = port.frontend.node_port.map(|node_port| Front {
            address: None,
            protocol: port.frontend.protocol,
            port: node_port,
        });
        let loaded = port.frontend.load_balancer_ips.iter();
        let named = port.frontend.external_ips.iter().chain(loaded);
        let external = named.map(|address| Front {
            address: Some(*address),
            ..internal
        });
        let external: Vec<Front> = external.chain(node_port).collect();
        let family = settings.family;
        let read = |front: &Front, map, list| self.endpoints(front, map, list, family);
        let local_of = |front: &Front| read(front, FrontMap::LocalCounts, List::Local);
        let own = read(&internal, FrontMap::Services, List::Cluster);
        let first = |mut found: Vec<Vec<SocketAddr>>| {
            found.retain(|list| !list.is_empty());
            (!found.is_empty()).then(|| found.swap_remove(0).into_boxed_slice())
        };
        let outer = external
            .iter()
            .map(|front| read(front, FrontMap::Services, List::Cluster));
        let outer_local = external.iter().map(local_of);
        let (cluster, local) = if port.frontend.internal_local {
            let mut local = vec![own];
            local.extend(outer_local);
            (first(outer.collect()), first(local))
        } else {
            (first(vec![own]), first(outer_local.collect()))
        };
        let affinity = self
            .elements
            .get(&Collection::of(FrontKind::Address, FrontMap::Affinity));
        let identity = affinity
            .and_then(|elements| elements.get(&internal.key())?.data()?.last_number())
            .and_then(|number| u16::try_from(number >> 16).ok());
        Numbering {
            cluster,
            local,
            identity,
        }
    }

    fn endpoints(
        &self,
        front: &Front,
        map: FrontMap,
        list: List,
        family: IpFamily,
    ) -> Vec<SocketAddr> {
        let (kind, key) = (front.kind(), front.key());
        let collection = Collection::of(kind, FrontMap::Endpoints);
        let Some(elements) = self.elements.get(&collection) else {
            return Vec::new();
        };
        let numbers = 0..self.count(kind, map, &key);
        let contents = numbers.map_while(|place| {
            let content = elements.get(&key.with_number(list.number(place)))?;
            read_endpoint(family, content.data()?)
        });
        contents.collect()
    }

    /// Chains that come and go, as far as they are intact.
    fn find_branches(&mut self, family: IpFamily) {
        let of = |dispatch: Dispatch| {
            let elements = self.verdicts.get(&dispatch).into_iter().flatten();
            elements.filter_map(|element| element.key.last_number())
        };
        let picks = of(Dispatch::Pick).filter(|count| *count != 0);
        let picks: Vec<u32> = picks.collect();
        let timeouts: Vec<u32> = of(Dispatch::Sticky(FrontKind::Address)).collect();
        let is_intact = |branch: &Branch| self.contains(branch);
        let picks = picks.into_iter().filter(|n| is_intact(&pick(family, *n)));
        let picks: BTreeSet<u32> = picks.collect();
        let timeouts = timeouts
            .into_iter()
            .filter(|n| is_intact(&timeout(family, *n)));
        let timeouts: BTreeSet<u32> = timeouts.collect();
        self.picks = picks;
        self.timeouts = timeouts;
    }

    fn contains(&self, branch: &Branch) -> bool {
        let has_chains = branch
            .chains
            .iter()
            .all(|chain| self.structure.chains.contains(chain));
        let expected = rules_by_chain(&branch.rules);
        let actual = rules_by_chain(&self.structure.rules);
        let has_rules = expected
            .iter()
            .all(|(chain, rules)| actual.get(chain) == Some(rules));
        let has_verdicts = branch.verdicts.iter().all(|(dispatch, element)| {
            let elements = self.verdicts.get(dispatch);
            elements.is_some_and(|elements| elements.contains(element))
        });
        has_chains && has_rules && has_verdicts
    }
}

/// Rules under the chains they are in.
pub(crate) fn rules_by_chain(
    rules: &[weft_host::nftables::Rule],
) -> BTreeMap<&str, Vec<&weft_host::nftables::Rule>> {
    let mut chains: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for rule in rules {
        chains.entry(&rule.chain).or_default().push(rule);
    }
    chains
}
