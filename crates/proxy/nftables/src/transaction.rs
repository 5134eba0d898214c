//! Changes that are committed together, and the Services that own them.

use std::collections::BTreeMap;

use weft_host::nftables::{Change, Element, Ownership, Table, TableChange, Value};
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

    fn element(self) -> Element {
        Element {
            end: self.end,
            ..Element::of_key(self.key)
        }
    }
}

impl Step {
    fn collection(&self) -> Collection {
        match self {
            Self::Add(entry) | Self::Replace(_, entry) => entry.collection,
            Self::Delete(collection, _) => *collection,
        }
    }

    /// A Service that is too large for one transaction is written in this order: what its fronts
    /// lead to, then the fronts, then what none leads to any more.
    pub(crate) fn phase(&self) -> u8 {
        let is_head = matches!(
            self.collection(),
            Collection::OfFronts(
                _,
                FrontMap::Services
                    | FrontMap::LocalCounts
                    | FrontMap::Affinity
                    | FrontMap::Timeouts
            )
        );
        match self {
            _ if is_head => 1,
            Self::Delete(..) => 2,
            _ => 0,
        }
    }
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
    steps: usize,
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
            steps: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let is_unchanged = self.tables.is_empty() && self.before.is_empty();
        is_unchanged && self.after.is_empty() && self.steps == 0
    }

    /// Number of elements that it touches.
    pub(crate) fn len(&self) -> usize {
        self.steps
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
            self.steps += 1;
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
        let within = |change| Change::Within {
            family: self.family,
            table: TABLE.to_owned(),
            change,
        };
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
