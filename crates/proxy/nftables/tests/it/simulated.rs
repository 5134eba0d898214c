//! A kernel in memory that keeps one table, and fails on demand.

use std::{collections::BTreeMap, fmt::Write as _};

use rustix::io::Errno;
use weft_host::{
    NetlinkError,
    nftables::{
        Chain, Change, CommitError, Element, Place, Reason, Refused, Rule, Set, TableChange,
        Value as Key,
    },
};
use weft_nftables::{Kernel, KernelError, Structure};

/// A failure of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The kernel refuses the commit.
    Refused(Reason),
    /// The call fails and nothing was done: ENOBUFS or EPERM of the request.
    NotDone,
    /// The commit was done and its answer lost: ENOBUFS of the answer.
    AnswerLost,
}

/// The table, as values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    comment: Option<String>,
    chains: Vec<Chain>,
    rules: Vec<Rule>,
    sets: Vec<Set>,
    elements: BTreeMap<String, BTreeMap<Vec<u8>, String>>,
}

impl Contents {
    /// Number of elements of a map or set.
    pub(crate) fn count(&self, set: &str) -> usize {
        self.elements.get(set).map_or(0, BTreeMap::len)
    }

    pub(crate) fn chain_names(&self) -> impl Iterator<Item = &str> {
        self.chains.iter().map(|chain| &*chain.name)
    }

    /// The part that does not depend on the way there: fronts with their numbers of endpoints, and the rules
    /// that are always there. Of endpoints only how many there are.
    pub(crate) fn fronts(&self) -> String {
        let mut words = String::new();
        for (set, elements) in &self.elements {
            let is_history = ["pick", "sticky", "hairpin", "affinity", "affinity-slots"];
            if is_history.iter().any(|name| set.ends_with(name)) || set == "sticky-local" {
                continue;
            }
            if set.ends_with("endpoints") {
                writeln!(words, "{set}: {}", elements.len()).unwrap();
            } else {
                writeln!(words, "{set}: {elements:?}").unwrap();
            }
        }
        let is_constant = |rule: &&Rule| {
            let chain = rule.chain.as_str();
            !["pick-", "sticky-", "node-port-sticky-", "remember-"]
                .iter()
                .any(|prefix| chain.starts_with(prefix))
        };
        let rules: Vec<&Rule> = self.rules.iter().filter(is_constant).collect();
        write!(words, "{rules:?}").unwrap();
        words
    }
}

/// Bytes that a commit may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimit {
    pub(crate) believed: usize,
    pub(crate) actual: usize,
    /// The limit in use is not lowered below this.
    pub(crate) least: usize,
}

/// A table in memory.
#[derive(Debug, Default)]
pub(crate) struct Simulated {
    pub(crate) table: Option<Contents>,
    values: BTreeMap<String, BTreeMap<Vec<u8>, Element>>,
    /// A fault, and the number of calls before it.
    pub(crate) fault: Option<(usize, Fault)>,
    /// Number of reads that fail from now on, as dumps that EINTR always interrupts.
    pub(crate) failing_reads: usize,
    pub(crate) commits: usize,
    /// Instead of the default for a load that takes several commits.
    pub(crate) element_limit: Option<usize>,
    pub(crate) send_limit: Option<SendLimit>,
    /// Bytes of each commit, and of those that were too large.
    pub(crate) bytes: Vec<usize>,
    /// The elements after each commit, from when it is set.
    pub(crate) states: Option<Vec<Elements>>,
}

pub(crate) type Elements = BTreeMap<String, BTreeMap<Vec<u8>, Element>>;

impl Simulated {
    /// The table without the order in which things were added.
    pub(crate) fn contents(&self) -> Contents {
        let mut contents = self.table.clone().unwrap_or_default();
        contents.chains.sort_by(|a, b| a.name.cmp(&b.name));
        // The sort is stable: the order within a chain stays.
        contents.rules.sort_by(|a, b| a.chain.cmp(&b.chain));
        contents.sets.sort_by(|a, b| a.name.cmp(&b.name));
        for (set, elements) in &self.values {
            let words = elements
                .iter()
                .map(|(key, element)| (key.clone(), format!("{element:?}")));
            contents.elements.insert(set.clone(), words.collect());
        }
        contents
    }

    /// The same table with elements as they were after a commit.
    pub(crate) fn with_elements(&self, elements: Elements) -> Self {
        Self {
            table: self.table.clone(),
            values: elements,
            ..Self::default()
        }
    }

    pub(crate) fn lose_elements(&mut self) {
        self.values.clear();
    }

    /// Elements by set and key.
    pub(crate) fn values(&self) -> &Elements {
        &self.values
    }

    fn apply(
        &self,
        changes: &[Change],
    ) -> Result<(Option<Contents>, Elements), (usize, usize, Reason)> {
        let mut table = self.table.clone();
        let mut values = self.values.clone();
        for (index, change) in changes.iter().enumerate() {
            let refuse = |element: usize, reason| (index, element, reason);
            let change = match change {
                Change::AddTable(new) => {
                    table.get_or_insert_with(|| Contents {
                        comment: new.comment.clone(),
                        ..Contents::default()
                    });
                    continue;
                }
                Change::DeleteTable { .. } => {
                    table.take().ok_or_else(|| refuse(0, Reason::Missing))?;
                    values.clear();
                    continue;
                }
                Change::Within { change, .. } => change,
            };
            let table = table.as_mut().ok_or_else(|| refuse(0, Reason::Missing))?;
            match change {
                TableChange::AddChain(chain) => {
                    if table.chains.iter().any(|other| other.name == chain.name) {
                        return Err(refuse(0, Reason::Exists));
                    }
                    table.chains.push(chain.clone());
                }
                TableChange::DeleteChain(name) => {
                    let before = table.chains.len();
                    table.chains.retain(|chain| chain.name != *name);
                    if table.chains.len() == before {
                        return Err(refuse(0, Reason::Missing));
                    }
                }
                TableChange::AddRule(rule) => {
                    if !table.chains.iter().any(|chain| chain.name == rule.chain) {
                        return Err(refuse(0, Reason::Missing));
                    }
                    table.rules.push(rule.clone());
                }
                TableChange::FlushChain(name) => table.rules.retain(|rule| rule.chain != *name),
                TableChange::AddSet(set) => {
                    if table.sets.iter().any(|other| other.name == set.name) {
                        return Err(refuse(0, Reason::Exists));
                    }
                    values.insert(set.name.clone(), BTreeMap::new());
                    table.sets.push(set.clone());
                }
                TableChange::AddElements { set, elements, .. } => {
                    let there = values
                        .get_mut(set)
                        .ok_or_else(|| refuse(0, Reason::Missing))?;
                    for (place, element) in elements.iter().enumerate() {
                        let key = element.key.as_bytes().to_vec();
                        let is_range = element.end.is_some();
                        if is_range && there.values().any(|o| is_overlapping(element, o)) {
                            return Err(refuse(place, Reason::Exists));
                        }
                        match there.get(&key) {
                            Some(other) if other.datum != element.datum => {
                                return Err(refuse(place, Reason::Exists));
                            }
                            Some(_) => {}
                            None => {
                                there.insert(key, element.clone());
                            }
                        }
                    }
                }
                TableChange::DeleteElements { set, elements, .. } => {
                    let there = values
                        .get_mut(set)
                        .ok_or_else(|| refuse(0, Reason::Missing))?;
                    for (place, element) in elements.iter().enumerate() {
                        let gone = there.remove(element.key.as_bytes());
                        gone.ok_or_else(|| refuse(place, Reason::Missing))?;
                    }
                }
            }
        }
        Ok((table, values))
    }

    /// The fault that is due now, if any.
    fn due(&mut self) -> Option<Fault> {
        match self.fault.take() {
            Some((0, fault)) => Some(fault),
            Some((calls, fault)) => {
                self.fault = Some((calls - 1, fault));
                None
            }
            None => None,
        }
    }

    fn read<T>(&mut self, value: impl FnOnce(&Self) -> T) -> Result<T, KernelError> {
        if let Some(left) = self.failing_reads.checked_sub(1) {
            self.failing_reads = left;
            return Err(KernelError::Netlink(NetlinkError {
                operation: "list nftables elements",
                source: std::io::ErrorKind::Interrupted.into(),
            }));
        }
        Ok(value(self))
    }
}

pub(crate) fn refused(change: usize, element: usize, reason: Reason) -> KernelError {
    KernelError::Refused {
        operation: "commit a change".to_owned(),
        cause: Refused {
            place: Place {
                change,
                element: Some(element),
            },
            reason,
            errno: Errno::INVAL,
        },
    }
}

impl Kernel for Simulated {
    fn commit(&mut self, changes: &[Change]) -> Result<usize, KernelError> {
        let failed = || KernelError::Commit(CommitError::Unknown);
        self.commits += 1;
        if let Some(limit) = &mut self.send_limit {
            let mut batch = weft_host::nftables::Batch::new();
            for change in changes {
                batch.push(change);
            }
            self.bytes.push(batch.len());
            if batch.len() > limit.actual {
                limit.believed = limit.believed.min((batch.len() / 2).max(limit.least));
                return Err(KernelError::TooLarge(batch.len()));
            }
        }
        let fault = self.due();
        match fault {
            Some(Fault::Refused(reason)) => {
                return Err(refused(changes.len() - 1, 0, reason));
            }
            Some(Fault::NotDone) => return Err(failed()),
            Some(Fault::AnswerLost) | None => {}
        }
        match self.apply(changes) {
            Ok((table, values)) => {
                self.table = table;
                self.values = values;
                if let Some(states) = &mut self.states {
                    states.push(self.values.clone());
                }
            }
            Err((change, element, reason)) => {
                return Err(refused(change, element, reason));
            }
        }
        if fault == Some(Fault::AnswerLost) {
            return Err(failed());
        }
        Ok(1)
    }

    fn structure(&mut self) -> Result<Option<Structure>, KernelError> {
        self.read(|kernel| {
            kernel.table.as_ref().map(|table| Structure {
                comment: table.comment.clone(),
                ownership: weft_host::nftables::Ownership::Shared,
                sets: table.sets.clone(),
                chains: table.chains.clone(),
                rules: table.rules.clone(),
            })
        })
    }

    fn elements(&mut self, set: &str) -> Result<Vec<Element>, KernelError> {
        self.read(|kernel| {
            let elements = kernel.values.get(set).into_iter().flatten();
            elements.map(|(_, element)| element.clone()).collect()
        })
    }

    fn get_elements(&mut self, set: &str, keys: &[Key]) -> Result<Vec<Element>, KernelError> {
        self.read(|kernel| {
            let elements = kernel.values.get(set);
            let find = |key: &Key| elements?.get(key.as_bytes()).cloned();
            keys.iter().filter_map(find).collect()
        })
    }

    fn element_limit(&self) -> usize {
        // Small, so that loads and large Services take several commits.
        self.element_limit.unwrap_or(20)
    }

    fn byte_limit(&self) -> usize {
        self.send_limit.map_or(usize::MAX, |limit| limit.believed)
    }

    fn foreign_changes(&mut self) -> Option<u64> {
        None
    }
}

/// True of two ranges that share a key and are not the same.
fn is_overlapping(one: &Element, other: &Element) -> bool {
    match (one.end, other.end) {
        (Some(end), Some(other_end)) => {
            let is_same = (one.key, end) == (other.key, other_end);
            one.key <= other_end && other.key <= end && !is_same
        }
        _ => false,
    }
}
