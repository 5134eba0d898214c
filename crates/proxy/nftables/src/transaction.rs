//! Changes that are committed together, and the Services that own them.

use std::collections::BTreeMap;

use weft_host::nftables::{Batch, Change, Element, Ownership, Table, TableChange, Value};
use weft_model::{IpFamily, ObjectKey};

use crate::{
    collection::{Collection, Dispatch, FrontMap},
    entry::{Content, Entry},
    kernel::describe,
    program::{Branch, TABLE, TABLE_COMMENT},
};

/// A change of one element.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Add(Entry),
    /// An element of that key exists with other content, which is the target.
    Replace(Target, Entry),
    Delete(Collection, Target),
}

/// The element to delete: a key, or a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) key: Value,
    pub(crate) end: Option<Value>,
}

impl From<Value> for Target {
    fn from(key: Value) -> Self {
        Self { key, end: None }
    }
}

impl Target {
    pub(crate) fn of(key: Value, content: &Content) -> Self {
        Self {
            key,
            end: content.end(),
        }
    }

    fn element(&self) -> Element {
        Element {
            end: self.end,
            ..Element::of_key(self.key)
        }
    }
}

impl Step {
    pub(crate) fn collection(&self) -> Collection {
        match self {
            Self::Add(entry) | Self::Replace(_, entry) => entry.collection,
            Self::Delete(collection, _) => *collection,
        }
    }

    fn key(&self) -> &Value {
        match self {
            Self::Add(entry) | Self::Replace(_, entry) => &entry.key,
            Self::Delete(_, target) => &target.key,
        }
    }

    /// Number of bytes that it takes in a commit.
    pub(crate) fn bytes(&self) -> usize {
        let is_concatenation = self.collection().is_concatenation();
        let add = |entry: &Entry| entry.element().size(is_concatenation);
        let delete = |target: &Target| target.element().size(is_concatenation);
        match self {
            Self::Add(entry) => add(entry),
            Self::Replace(target, entry) => delete(target) + add(entry),
            Self::Delete(_, target) => delete(target),
        }
    }

    /// True of the element by which packets find a front: it comes last of those of the front.
    pub(crate) fn is_front(&self) -> bool {
        matches!(
            self.collection(),
            Collection::OfFronts(_, FrontMap::Services)
        )
    }

    /// Its place in the order of a Service that is too large for one transaction.
    pub(crate) fn phase(&self, family: IpFamily) -> Phase {
        let is_delete = matches!(self, Self::Delete(..));
        match self.collection() {
            Collection::OfFronts(
                _,
                FrontMap::Services
                | FrontMap::LocalCounts
                | FrontMap::Affinity
                | FrontMap::Timeouts,
            ) => Phase::Front(*self.key()),
            // Ranges that overlap replace each other in one transaction only, and a front whose
            // flags ask for ranges drops everything without them.
            Collection::SourceRanges => Phase::Front(without_source(family, self.key())),
            _ if is_delete => Phase::Leftovers,
            Collection::ClusterIps => Phase::Addresses,
            _ => Phase::Targets,
        }
    }
}

/// The order in which a Service that is too large for one transaction is written: after every
/// transaction, each front leads to endpoints, or is as if it had not changed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Elements that fronts lead to.
    Targets,
    /// The elements that a front consists of. Those of one front belong into one transaction.
    Front(Value),
    /// ClusterIPs: from here on, ports of them that have no front are refused.
    Addresses,
    /// Elements that no front leads to any more.
    Leftovers,
}

/// The front of a key of `source-ranges`.
fn without_source(family: IpFamily, key: &Value) -> Value {
    let source = match family {
        IpFamily::V4 => 4,
        IpFamily::V6 => 16,
    };
    let bytes = key.as_bytes();
    let front = &bytes[..bytes.len().saturating_sub(source)];
    Value::from_slice(front).unwrap_or(*key)
}

/// Changes to the table of one family.
#[derive(Clone, Debug)]
pub(crate) struct Transaction {
    family: IpFamily,
    /// Creates or deletes the table.
    pub(crate) tables: Vec<Change>,
    /// Before elements.
    pub(crate) before: Vec<TableChange>,
    deletes: BTreeMap<Collection, Vec<(Target, Option<usize>)>>,
    adds: BTreeMap<Collection, Vec<(Entry, Option<usize>)>>,
    /// After elements.
    pub(crate) after: Vec<TableChange>,
    owners: Vec<ObjectKey>,
    size: Size,
}

/// An amount of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) elements: usize,
    pub(crate) bytes: usize,
}

impl Size {
    pub(crate) fn of<'a>(steps: impl IntoIterator<Item = &'a Step>) -> Self {
        let mut size = Self::default();
        for step in steps {
            size.elements += 1;
            size.bytes += step.bytes();
        }
        size
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            elements: self.elements + other.elements,
            bytes: self.bytes + other.bytes,
        }
    }

    pub(crate) fn is_within(self, limit: Self) -> bool {
        self.elements <= limit.elements && self.bytes <= limit.bytes
    }
}

/// Number of bytes that changes take in a commit.
pub(crate) fn bytes_of(changes: &[Change]) -> usize {
    let mut batch = Batch::new();
    for change in changes {
        batch.push(change);
    }
    batch.len()
}

impl Transaction {
    pub(crate) fn new(family: IpFamily) -> Self {
        Self {
            family,
            tables: Vec::new(),
            before: Vec::new(),
            deletes: BTreeMap::new(),
            adds: BTreeMap::new(),
            after: Vec::new(),
            owners: Vec::new(),
            size: Size::default(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let is_unchanged = self.tables.is_empty() && self.before.is_empty();
        is_unchanged && self.after.is_empty() && self.size.elements == 0
    }

    /// Number of elements that it touches.
    pub(crate) fn len(&self) -> usize {
        self.size.elements
    }

    /// Its elements, and the bytes of all of it.
    pub(crate) fn size(&self) -> Size {
        if self.tables.is_empty() && self.before.is_empty() && self.after.is_empty() {
            return self.size;
        }
        let within = self.before.iter().chain(&self.after);
        let within = within.map(|change| self.within(change.clone()));
        let structure: Vec<Change> = self.tables.iter().cloned().chain(within).collect();
        Size {
            bytes: self.size.bytes + bytes_of(&structure),
            ..self.size
        }
    }

    fn within(&self, change: TableChange) -> Change {
        Change::Within {
            family: self.family,
            table: TABLE.to_owned(),
            change,
        }
    }

    /// Adds steps of one Service, or of none.
    pub(crate) fn extend(
        &mut self,
        owner: Option<&ObjectKey>,
        steps: impl IntoIterator<Item = Step>,
    ) {
        let owner = owner.map(|owner| {
            self.owners.push(owner.clone());
            self.owners.len() - 1
        });
        for step in steps {
            self.size = self.size.and(Size::of([&step]));
            let collection = step.collection();
            match step {
                Step::Add(entry) => self.add(entry, owner),
                Step::Replace(former, entry) => {
                    let deletes = self.deletes.entry(collection).or_default();
                    deletes.push((former, owner));
                    self.add(entry, owner);
                }
                Step::Delete(_, target) => {
                    self.deletes
                        .entry(collection)
                        .or_default()
                        .push((target, owner));
                }
            }
        }
    }

    fn add(&mut self, entry: Entry, owner: Option<usize>) {
        let adds = self.adds.entry(entry.collection).or_default();
        adds.push((entry, owner));
    }

    /// Creates the table, or takes it over from an owner that ended.
    pub(crate) fn create_table(&mut self, ownership: Ownership) {
        self.tables.push(Change::AddTable(Table {
            family: self.family,
            name: TABLE.to_owned(),
            comment: Some(TABLE_COMMENT.to_owned()),
            ownership,
        }));
    }

    pub(crate) fn delete_table(&mut self) {
        self.tables.push(Change::DeleteTable {
            family: self.family,
            table: TABLE.to_owned(),
        });
    }

    /// Adds chains with their rules, and what leads to them.
    pub(crate) fn add_branch(&mut self, branch: Branch) {
        let chains = branch.chains.into_iter().map(TableChange::AddChain);
        self.before.extend(chains);
        let rules = branch.rules.into_iter().map(TableChange::AddRule);
        self.before.extend(rules);
        for (dispatch, element) in branch.verdicts {
            self.before.push(add_verdict(dispatch, element));
        }
    }

    /// Its changes of the structure, and then those of elements.
    pub(crate) fn split_structure(mut self) -> (Self, Self) {
        let structure = Self {
            tables: std::mem::take(&mut self.tables),
            before: std::mem::take(&mut self.before),
            ..Self::new(self.family)
        };
        (structure, self)
    }

    /// Removes chains and what leads to them.
    pub(crate) fn remove_branch(&mut self, branch: Branch) {
        for (dispatch, element) in branch.verdicts {
            self.after.push(delete_verdict(dispatch, element.key));
        }
        // Rules first: chains of the same branch jump to each other.
        let flushes = branch.chains.iter().map(|chain| chain.name.clone());
        self.after.extend(flushes.map(TableChange::FlushChain));
        let chains = branch.chains.into_iter().map(|chain| chain.name);
        self.after.extend(chains.map(TableChange::DeleteChain));
    }

    /// All changes in the order of writing, and the owners of the elements of each.
    pub(crate) fn changes(&self) -> (Vec<Change>, Vec<Vec<Option<usize>>>) {
        let mut changes = self.tables.clone();
        let mut owners = vec![Vec::new(); changes.len()];
        let within = |change| self.within(change);
        for change in &self.before {
            changes.push(within(change.clone()));
            owners.push(Vec::new());
        }
        for (collection, deletes) in &self.deletes {
            changes.push(within(TableChange::DeleteElements {
                set: collection.name().to_owned(),
                is_concatenation: collection.is_concatenation(),
                elements: deletes.iter().map(|(target, _)| target.element()).collect(),
            }));
            owners.push(deletes.iter().map(|(_, owner)| *owner).collect());
        }
        for (collection, adds) in &self.adds {
            changes.push(within(TableChange::AddElements {
                set: collection.name().to_owned(),
                is_concatenation: collection.is_concatenation(),
                elements: adds.iter().map(|(entry, _)| entry.element()).collect(),
            }));
            owners.push(adds.iter().map(|(_, owner)| *owner).collect());
        }
        for change in &self.after {
            changes.push(within(change.clone()));
            owners.push(Vec::new());
        }
        (changes, owners)
    }

    pub(crate) fn owner(&self, index: usize) -> &ObjectKey {
        &self.owners[index]
    }

    /// A line for each change.
    pub(crate) fn describe(&self) -> String {
        let (changes, _) = self.changes();
        let lines = changes.iter().map(|change| match change {
            Change::AddTable(table) => format!("add table {}", table.name),
            Change::DeleteTable { table, .. } => format!("delete table {table}"),
            Change::Within { change, .. } => describe(change),
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

pub(crate) fn add_verdict(dispatch: Dispatch, element: Element) -> TableChange {
    TableChange::AddElements {
        set: dispatch.name().to_owned(),
        is_concatenation: false,
        elements: vec![element],
    }
}

pub(crate) fn delete_verdict(dispatch: Dispatch, key: Value) -> TableChange {
    TableChange::DeleteElements {
        set: dispatch.name().to_owned(),
        is_concatenation: false,
        elements: vec![Element::of_key(key)],
    }
}
