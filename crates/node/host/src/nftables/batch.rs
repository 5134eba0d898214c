//! An nftables transaction: changes that the kernel commits together or not at all, one netlink
//! message each.

use weft_model::IpFamily;

use super::{
    attribute::{Read, Write as _},
    object::{Chain, Element, ListedElement, Rule, Set, Table},
};
use crate::{
    netfilter::{Subsystem, request},
    netlink::{
        FLAG_ACKNOWLEDGE, FLAG_CREATE, FLAG_EXCLUSIVE, FLAG_REQUEST, Request, family_number,
    },
};

/// One change to a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates a table, or changes nothing if it exists.
    AddTable(Table),
    /// Deletes a table with all that is in it.
    DeleteTable {
        /// Its family.
        family: IpFamily,
        /// Its name.
        table: String,
    },
    /// To what is in a table.
    Within {
        /// The family.
        family: IpFamily,
        /// The table.
        table: String,
        /// The change inside of the table.
        change: TableChange,
    },
}

/// One change inside of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// Creates a chain.
    AddChain(Chain),
    /// Deletes a chain to which nothing jumps, with its rules.
    DeleteChain(String),
    /// Adds a rule at the end of its chain.
    AddRule(Rule),
    /// Deletes all rules of a chain.
    FlushChain(String),
    /// Creates a set or map.
    AddSet(Set),
    /// Adds elements. An element that exists with other data is refused.
    AddElements {
        /// The set.
        set: String,
        /// True if its keys are concatenations.
        is_concatenation: bool,
        /// The elements.
        elements: Vec<Element>,
    },
    /// Deletes elements, of which all must exist.
    DeleteElements {
        /// The set.
        set: String,
        /// True if its keys are concatenations.
        is_concatenation: bool,
        /// The elements; only keys count.
        elements: Vec<Element>,
    },
}

pub(super) const NEW_TABLE: u8 = 0;
pub(super) const DELETE_TABLE: u8 = 2;
pub(super) const NEW_CHAIN: u8 = 3;
pub(super) const DELETE_CHAIN: u8 = 5;
pub(super) const NEW_RULE: u8 = 6;
pub(super) const DELETE_RULE: u8 = 8;
pub(super) const NEW_SET: u8 = 9;
pub(super) const NEW_ELEMENTS: u8 = 12;
pub(super) const DELETE_ELEMENTS: u8 = 14;

const FLAG_APPEND: u16 = 0x800;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

pub(super) const LIST_TABLE: u16 = 1;
pub(super) const LIST_SET: u16 = 2;
pub(super) const LIST_ELEMENTS: u16 = 3;

/// A list of elements is split here: the length of an attribute has 16 bits.
const LIST_LIMIT: usize = 60_000;

/// The place of elements in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Position {
    /// The change that they belong to.
    change: usize,
    /// The first of them, among the elements of the change.
    first: usize,
    /// The beginning of each, from the beginning of its message.
    starts: Vec<u32>,
}

/// Changes as messages, ready to be sent.
#[derive(Debug)]
pub struct Batch {
    messages: Vec<Request>,
    positions: Vec<Position>,
    changes: usize,
    sets: u32,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// No changes yet.
    pub fn new() -> Self {
        Self {
            messages: Vec::new(),
            positions: Vec::new(),
            changes: 0,
            sets: 0,
        }
    }

    /// True if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Size of all messages in bytes.
    pub fn len(&self) -> usize {
        self.messages.iter().map(Request::len).sum()
    }

    /// Adds a change.
    pub fn push(&mut self, change: &Change) {
        match change {
            Change::AddTable(table) => {
                let request = message(table.family, NEW_TABLE, FLAG_CREATE);
                self.single(table.write(request));
            }
            Change::DeleteTable { family, table } => {
                self.single(message(*family, DELETE_TABLE, 0).text(1, table));
            }
            Change::Within {
                family,
                table,
                change,
            } => self.push_within(*family, table, change),
        }
        self.changes += 1;
    }

    fn push_within(&mut self, family: IpFamily, table: &str, change: &TableChange) {
        let create = |kind| message(family, kind, FLAG_CREATE | FLAG_EXCLUSIVE);
        match change {
            TableChange::AddChain(chain) => self.single(chain.write(table, create(NEW_CHAIN))),
            TableChange::DeleteChain(chain) => {
                let request = message(family, DELETE_CHAIN, 0);
                self.single(request.text(1, table).text(3, chain));
            }
            TableChange::AddRule(rule) => {
                let request = message(family, NEW_RULE, FLAG_CREATE | FLAG_APPEND);
                let (request, starts) = rule.write(table, request);
                self.messages.push(request);
                self.positions.push(Position {
                    change: self.changes,
                    first: 0,
                    starts,
                });
            }
            TableChange::FlushChain(chain) => {
                let request = message(family, DELETE_RULE, 0);
                self.single(request.text(1, table).text(2, chain));
            }
            TableChange::AddSet(set) => {
                self.sets += 1;
                self.single(set.write(table, self.sets, create(NEW_SET)));
            }
            TableChange::AddElements {
                set,
                is_concatenation,
                elements,
            } => {
                let begin = || elements_message(family, NEW_ELEMENTS, FLAG_CREATE, table, set);
                self.elements(&begin, elements, *is_concatenation);
            }
            TableChange::DeleteElements {
                set,
                is_concatenation,
                elements,
            } => {
                let begin = || elements_message(family, DELETE_ELEMENTS, 0, table, set);
                self.elements(&begin, elements, *is_concatenation);
            }
        }
    }

    fn single(&mut self, request: Request) {
        self.messages.push(request);
        self.positions.push(Position {
            change: self.changes,
            first: 0,
            starts: Vec::new(),
        });
    }

    fn elements(
        &mut self,
        begin: &dyn Fn() -> Request,
        elements: &[Element],
        is_concatenation: bool,
    ) {
        let mut first = 0;
        while first < elements.len() {
            let mut starts = Vec::new();
            let request = begin().with_nested(LIST_ELEMENTS, |mut list| {
                let start = list.len();
                for element in &elements[first..] {
                    if list.len() - start > LIST_LIMIT {
                        break;
                    }
                    starts.push(u32::try_from(list.len()).unwrap_or(u32::MAX));
                    list = element.write(list, is_concatenation);
                }
                list
            });
            let count = starts.len();
            self.messages.push(request);
            self.positions.push(Position {
                change: self.changes,
                first,
                starts,
            });
            first += count;
        }
    }

    /// Number of messages, with those that frame the batch.
    pub(super) fn message_count(&self) -> u32 {
        u32::try_from(self.messages.len() + 2).unwrap_or(u32::MAX)
    }

    /// The bytes to send, numbered from `first`.
    pub(super) fn finish(&self, first: u32) -> Vec<u8> {
        let frame = |kind| Request::new(kind, FLAG_REQUEST, &[0, 0, 0, Subsystem::Nftables as u8]);
        // Without a generation: the kernel would refuse the batch after a commit of any process to any
        // table. Changes of others to ours are refused element by element, or notified.
        let mut bytes = frame(BATCH_BEGIN).finish(first);
        bytes.reserve(self.len() + 64);
        let mut sequence = first;
        for (index, request) in self.messages.iter().enumerate() {
            sequence = sequence.wrapping_add(1);
            let mut request = request.clone();
            if index + 1 == self.messages.len() {
                request.add_flags(FLAG_ACKNOWLEDGE);
            }
            bytes.extend_from_slice(&request.finish(sequence));
        }
        bytes.extend_from_slice(&frame(BATCH_END).finish(sequence.wrapping_add(1)));
        bytes
    }

    /// The change that a message belongs to, counted from the frame's beginning, and the element or
    /// expression at an offset in it.
    pub(super) fn place(&self, message: u32, offset: Option<u32>) -> Option<Place> {
        let index = usize::try_from(message).ok()?.checked_sub(1)?;
        let position = self.positions.get(index)?;
        let element = offset.and_then(|offset| {
            let behind = position.starts.partition_point(|start| *start <= offset);
            Some(position.first + behind.checked_sub(1)?)
        });
        Some(Place {
            change: position.change,
            element,
        })
    }
}

/// The place in a batch of something that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The change, in the order of adding.
    pub change: usize,
    /// Of a change to elements, which one; of a rule, which expression; if the kernel said so.
    pub element: Option<usize>,
}

fn message(family: IpFamily, kind: u8, flags: u16) -> Request {
    let flags = FLAG_REQUEST | flags;
    request(Subsystem::Nftables, kind, flags, family_number(family))
}

pub(super) fn elements_message(
    family: IpFamily,
    kind: u8,
    flags: u16,
    table: &str,
    set: &str,
) -> Request {
    message(family, kind, flags)
        .text(LIST_TABLE, table)
        .text(LIST_SET, set)
}

/// The elements in the body of a message.
pub(super) fn read_elements(body: &[u8]) -> impl Iterator<Item = ListedElement> {
    let list = Read(body).nested(LIST_ELEMENTS).unwrap_or(Read(&[]));
    list.list().filter_map(Element::read)
}
