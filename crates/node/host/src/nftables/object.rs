//! Tables, chains, rules, sets and elements as values.

use std::{collections::BTreeSet, ops::Bound, sync::Arc};

use weft_model::IpFamily;

use super::{
    attribute::{LIST_ELEMENT, Read, Write as _, comment, fitting_comment, read_comment},
    expression::{Expression, Verdict},
    value::Value,
};
use crate::netlink::Request;

/// Names a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its family.
    pub family: IpFamily,
    /// Its name.
    pub name: String,
    /// A comment that `nft` prints.
    pub comment: Option<String>,
    /// The sockets that may change it.
    pub ownership: Ownership,
}

/// The sockets that may change a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// Any socket of a process with `CAP_NET_ADMIN`.
    #[default]
    Shared,
    /// Only the socket that created it or took it over, as long as that is open. Afterwards it stays
    /// and another socket may take it over. Needs Linux 6.9.
    Owned,
}

/// `NFT_TABLE_F_OWNER`, and `NFT_TABLE_F_PERSIST` without which the table ends with its owner.
const TABLE_OWNER: u32 = 2;
const TABLE_PERSIST: u32 = 4;

/// The hook of a chain of type nat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Packets that come in, before they are routed.
    Prerouting,
    /// Packets that this host sends.
    Output,
    /// Packets that leave.
    Postrouting,
}

impl Hook {
    const ALL: [Self; 3] = [Self::Prerouting, Self::Output, Self::Postrouting];

    fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }
}

/// A chain. One with a hook is of type nat, and accepts what its rules leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// Hook and priority; `None` for a chain that is reached by jumps alone.
    pub hook: Option<(Hook, i32)>,
}

/// A rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The chain.
    pub chain: String,
    /// Its instructions.
    pub expressions: Vec<Expression>,
    /// A comment that `nft` prints.
    pub comment: Option<String>,
}

/// A type of field, which decides how `nft` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// An address of this family.
    Address(IpFamily),
    /// The number of a protocol.
    Protocol,
    /// A port.
    Port,
    /// A packet's priority, 32 bits.
    Classid,
}

impl Field {
    /// nft's number for it.
    fn number(self) -> u32 {
        match self {
            Self::Address(IpFamily::V4) => 7,
            Self::Address(IpFamily::V6) => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Classid => 23,
        }
    }

    /// In bytes, without padding.
    fn length(self) -> u32 {
        match self {
            Self::Address(IpFamily::V4) | Self::Classid => 4,
            Self::Address(IpFamily::V6) => 16,
            Self::Protocol => 1,
            Self::Port => 2,
        }
    }

    fn padded(self) -> u32 {
        self.length().next_multiple_of(4)
    }

    /// nft keeps six bits for each field of a concatenation.
    fn numbers(fields: &[Self]) -> u32 {
        fields
            .iter()
            .fold(0, |number, field| number << 6 | field.number())
    }
}

/// The kind of data that keys lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To nothing: a set.
    Set,
    /// To data.
    Map(Vec<Field>),
    /// To a verdict.
    VerdictMap,
}

/// Properties of a set that are not part of its type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// True if elements are ranges.
    pub is_interval: bool,
    /// Maximum number of elements that rules add and that expire; `None` if rules add none.
    pub dynamic: Option<u32>,
    /// True if elements count the packets that find them.
    pub counts: bool,
}

/// A set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name.
    pub name: String,
    /// The fields of a key.
    pub key: Vec<Field>,
    /// The kind of data that keys lead to.
    pub kind: Kind,
    /// The rest.
    pub traits: Traits,
}

/// The data of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datum {
    /// Fields of the types that the map names.
    Value(Value),
    /// A verdict.
    Verdict(Verdict),
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Its key, or the first of a range.
    pub key: Value,
    /// The last of a range.
    pub end: Option<Value>,
    /// Its data, in a map.
    pub datum: Option<Datum>,
    /// A comment that `nft` prints.
    pub comment: Option<Arc<str>>,
    /// Number of packets that found it, as read; not written.
    pub packets: Option<u64>,
}

const SET_INTERVAL: u32 = 0x04;
const SET_MAP: u32 = 0x08;
const SET_TIMEOUT: u32 = 0x10;
const SET_EVAL: u32 = 0x20;
const SET_CONCAT: u32 = 0x80;
/// nft's type number of a verdict.
const VERDICT: u32 = 0xffff_ff00;

const HOST_ORDER: u8 = 1;
const NETWORK_ORDER: u8 = 2;

/// The end of a range in sets that are not concatenations.
const INTERVAL_END: u32 = 1;

impl Table {
    pub(super) fn write(&self, request: Request) -> Request {
        let request = request.text(1, &self.name);
        let request = match self.ownership {
            Ownership::Shared => request,
            Ownership::Owned => request.number(2, TABLE_OWNER | TABLE_PERSIST),
        };
        match &self.comment {
            Some(text) => request.with(6, &comment(text)),
            None => request,
        }
    }

    pub(super) fn read(family: IpFamily, read: Read<'_>) -> Option<Self> {
        Some(Self {
            family,
            name: read.text(1)?.to_owned(),
            comment: read.bytes(6).and_then(read_comment).map(str::to_owned),
            // Without its owner a table keeps the other flag.
            ownership: match read.number(2).unwrap_or(0) & (TABLE_OWNER | TABLE_PERSIST) {
                0 => Ownership::Shared,
                _ => Ownership::Owned,
            },
        })
    }
}

impl Chain {
    pub(super) fn write(&self, table: &str, request: Request) -> Request {
        let request = request.text(1, table).text(3, &self.name);
        let Some((hook, priority)) = self.hook else {
            return request;
        };
        request.text(7, "nat").with_nested(4, |nest| {
            nest.number(1, hook.number())
                .number(2, priority.cast_unsigned())
        })
    }

    pub(super) fn read(read: Read<'_>) -> Option<Self> {
        let hook = match read.nested(4) {
            None => None,
            Some(nest) => {
                let number = nest.number(1)?;
                let hook = Hook::ALL.into_iter().find(|hook| hook.number() == number)?;
                Some((hook, nest.number(2)?.cast_signed()))
            }
        };
        Some(Self {
            name: read.text(3)?.to_owned(),
            hook,
        })
    }
}

impl Rule {
    /// Also returns the beginning of each expression, from the beginning of the message.
    pub(super) fn write(&self, table: &str, request: Request) -> (Request, Vec<u32>) {
        let mut starts = Vec::with_capacity(self.expressions.len());
        let request = request.text(1, table).text(2, &self.chain);
        let request = request.with_nested(4, |mut list| {
            for expression in &self.expressions {
                starts.push(u32::try_from(list.len()).unwrap_or(u32::MAX));
                list = list.with_nested(LIST_ELEMENT, |element| expression.write(element));
            }
            list
        });
        let request = match &self.comment {
            Some(text) => request.with(7, &comment(text)),
            None => request,
        };
        (request, starts)
    }

    pub(super) fn read(read: Read<'_>) -> Option<Self> {
        Some(Self {
            chain: read.text(2)?.to_owned(),
            expressions: read.nested(4)?.list().map(Expression::read).collect(),
            comment: read.bytes(7).and_then(read_comment).map(str::to_owned),
        })
    }
}

impl Set {
    fn flags(&self) -> u32 {
        let mut flags = 0;
        if self.kind != Kind::Set {
            flags |= SET_MAP;
        }
        if self.key.len() > 1 {
            flags |= SET_CONCAT;
        }
        if self.traits.is_interval {
            flags |= SET_INTERVAL;
        }
        if self.traits.dynamic.is_some() {
            flags |= SET_TIMEOUT | SET_EVAL;
        }
        flags
    }

    /// Tells `nft` the byte order of keys and data, without which it prints them turned around.
    /// Older versions crash on anything else that newer ones write here.
    fn user_data(&self) -> Option<[u8; 12]> {
        if self.kind == Kind::Set {
            return None;
        }
        let order = |fields: &[Field]| match fields {
            [Field::Classid] => HOST_ORDER,
            [_] => NETWORK_ORDER,
            _ => HOST_ORDER,
        };
        let data = match &self.kind {
            Kind::Map(fields) if **fields == [Field::Classid] => HOST_ORDER,
            // A verdict has no bytes to swap, and nft 1.0.6 aborts if it is to swap them.
            _ => NETWORK_ORDER,
        };
        Some([0, 4, order(&self.key), 0, 0, 0, 1, 4, data, 0, 0, 0])
    }

    /// `id` tells it from other new sets of the same batch.
    pub(super) fn write(&self, table: &str, id: u32, request: Request) -> Request {
        let length = |fields: &[Field]| fields.iter().map(|field| field.padded()).sum();
        let mut request = request
            .text(1, table)
            .text(2, &self.name)
            .number(3, self.flags())
            .number(4, Field::numbers(&self.key))
            .number(5, length(&self.key));
        match &self.kind {
            Kind::Set => {}
            Kind::Map(fields) => {
                request = request
                    .number(6, Field::numbers(fields))
                    .number(7, length(fields));
            }
            Kind::VerdictMap => request = request.number(6, VERDICT).number(7, 0),
        }
        request = request.number(10, id);
        if let Some(user_data) = self.user_data() {
            request = request.with(13, &user_data);
        }
        if self.traits.counts {
            request = request.with_nested(SET_EXPRESSION, |expression| {
                expression.text(1, "counter").with_nested(2, |data| data)
            });
        }
        request.with_nested(9, |mut description| {
            if let Some(size) = self.traits.dynamic {
                description = description.number(1, size);
            }
            if self.key.len() > 1 {
                description = description.with_nested(2, |mut list| {
                    for field in &self.key {
                        list = list.with_nested(LIST_ELEMENT, |f| f.number(1, field.length()));
                    }
                    list
                });
            }
            description
        })
    }

    pub(super) fn read(read: Read<'_>) -> Option<Self> {
        // Left out where there are none.
        let flags = read.number(3).unwrap_or(0);
        let fields = |mut numbers: u32| {
            let mut fields = Vec::new();
            while numbers != 0 {
                let all = [
                    Field::Address(IpFamily::V4),
                    Field::Address(IpFamily::V6),
                    Field::Protocol,
                    Field::Port,
                    Field::Classid,
                ];
                let found = all.into_iter().find(|f| f.number() == numbers & 0x3f)?;
                fields.insert(0, found);
                numbers >>= 6;
            }
            Some(fields)
        };
        let kind = match read.number(6) {
            _ if flags & SET_MAP == 0 => Kind::Set,
            Some(VERDICT) => Kind::VerdictMap,
            data => Kind::Map(fields(data?)?),
        };
        let size = read.nested(9).and_then(|description| description.number(1));
        let dynamic = (flags & SET_EVAL != 0).then(|| size.unwrap_or(0));
        Some(Self {
            name: read.text(2)?.to_owned(),
            key: fields(read.number(4)?)?,
            kind,
            traits: Traits {
                is_interval: flags & SET_INTERVAL != 0,
                dynamic,
                counts: read.nested(SET_EXPRESSION).is_some(),
            },
        })
    }
}

const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_FLAGS: u16 = 3;
const ELEMENT_USER_DATA: u16 = 6;
const ELEMENT_EXPRESSION: u16 = 7;
/// `NFTA_SET_EXPR`: the expression that every element of the set has. Only counters are written.
const SET_EXPRESSION: u16 = 17;
const COUNTER_PACKETS: u16 = 2;
const ELEMENT_KEY_END: u16 = 10;

impl Element {
    /// Just a key.
    pub fn of_key(key: Value) -> Self {
        Self {
            key,
            end: None,
            datum: None,
            comment: None,
            packets: None,
        }
    }

    /// As an element of a list. A range is one element where keys are concatenations, and
    /// otherwise two: its first and the one behind its last.
    pub(super) fn write(&self, list: Request, is_concatenation: bool) -> Request {
        let list = list.with_nested(LIST_ELEMENT, |element| {
            let element = element.data(ELEMENT_KEY, self.key.as_bytes());
            let element = match self.end.filter(|_| is_concatenation) {
                Some(end) => element.data(ELEMENT_KEY_END, end.as_bytes()),
                None => element,
            };
            let element = match &self.datum {
                Some(Datum::Value(value)) => element.data(ELEMENT_DATA, value.as_bytes()),
                Some(Datum::Verdict(verdict)) => verdict.write(element, ELEMENT_DATA),
                None => element,
            };
            match &self.comment {
                Some(text) => element.with(ELEMENT_USER_DATA, &comment(text)),
                None => element,
            }
        });
        match self.end.filter(|_| !is_concatenation).and_then(successor) {
            Some(behind) => list.with_nested(LIST_ELEMENT, |element| {
                element
                    .data(ELEMENT_KEY, behind.as_bytes())
                    .number(ELEMENT_FLAGS, INTERVAL_END)
            }),
            None => list,
        }
    }

    /// Number of bytes that it takes in a message.
    pub fn size(&self, is_concatenation: bool) -> usize {
        /// Size of the header of an attribute.
        const HEADER: usize = 4;
        let attribute = |length: usize| HEADER + length.next_multiple_of(4);
        let data = |value: &Value| HEADER + attribute(value.as_bytes().len());
        let end = match self.end {
            Some(end) if is_concatenation => data(&end),
            // An element of its own, with flags.
            Some(end) => HEADER + data(&end) + attribute(4),
            None => 0,
        };
        let datum = match &self.datum {
            Some(Datum::Value(value)) => data(value),
            Some(Datum::Verdict(verdict)) => {
                let empty = || Request::new(0, 0, &[]);
                verdict.write(empty(), ELEMENT_DATA).len() - empty().len()
            }
            None => 0,
        };
        let text = self.comment.as_deref();
        // With its kind, its length and the zero behind it.
        let comment = text.map_or(0, |text| attribute(fitting_comment(text).len() + 3));
        HEADER + data(&self.key) + end + datum + comment
    }

    /// The bound of a range is an element of its own in a set that is not a concatenation.
    pub(super) fn read(read: Read<'_>) -> Option<ListedElement> {
        if read.number(ELEMENT_FLAGS).unwrap_or(0) & INTERVAL_END != 0 {
            let behind = Value::from_slice(read.data(ELEMENT_KEY)?)?;
            return Some(ListedElement::Behind(behind));
        }
        let datum = match Verdict::read(read, ELEMENT_DATA) {
            Some(verdict) => Some(Datum::Verdict(verdict)),
            None => match read.data(ELEMENT_DATA) {
                Some(bytes) => Some(Datum::Value(Value::from_slice(bytes)?)),
                None => None,
            },
        };
        Some(ListedElement::Whole(Self {
            key: Value::from_slice(read.data(ELEMENT_KEY)?)?,
            end: match read.data(ELEMENT_KEY_END) {
                Some(bytes) => Some(Value::from_slice(bytes)?),
                None => None,
            },
            datum,
            comment: read
                .bytes(ELEMENT_USER_DATA)
                .and_then(read_comment)
                .map(Into::into),
            packets: read.nested(ELEMENT_EXPRESSION).and_then(packets),
        }))
    }
}

/// The number of packets that a counter has, if the expression is one.
fn packets(expression: Read<'_>) -> Option<u64> {
    if expression.text(1) != Some("counter") {
        return None;
    }
    let packets = expression.nested(2)?.bytes(COUNTER_PACKETS)?;
    packets.first_chunk().copied().map(u64::from_be_bytes)
}

/// The number of packets that the first counter of a rule has.
pub(super) fn counted_packets(rule: Read<'_>) -> Option<u64> {
    rule.nested(4)?.list().find_map(packets)
}

/// An element as the kernel lists it.
#[derive(Clone, Debug)]
pub(super) enum ListedElement {
    Whole(Element),
    /// The exclusive end of the range that begins with an element before it.
    Behind(Value),
}

/// Joins ranges that are listed as two elements each. One that ends with the last of all keys is
/// listed as its first alone, as an element that is not a range.
pub(super) fn join_ranges(listed: Vec<ListedElement>) -> Vec<Element> {
    let mut behind = BTreeSet::new();
    let mut elements = Vec::with_capacity(listed.len());
    for one in listed {
        match one {
            ListedElement::Whole(element) => elements.push(element),
            ListedElement::Behind(key) => {
                behind.insert(key);
            }
        }
    }
    if behind.is_empty() {
        return elements;
    }
    for element in &mut elements {
        let next = behind.range((Bound::Excluded(element.key), Bound::Unbounded));
        element.end = next.copied().next().and_then(predecessor);
    }
    elements
}

/// The address before. `None` before the first.
fn predecessor(value: Value) -> Option<Value> {
    let mut bytes = value.as_bytes().to_vec();
    for byte in bytes.iter_mut().rev() {
        let (previous, is_over) = byte.overflowing_sub(1);
        *byte = previous;
        if !is_over {
            return Value::from_slice(&bytes);
        }
    }
    None
}

/// The next address. `None` behind the last.
fn successor(value: Value) -> Option<Value> {
    let mut bytes = value.as_bytes().to_vec();
    for byte in bytes.iter_mut().rev() {
        let (next, is_over) = byte.overflowing_add(1);
        *byte = next;
        if !is_over {
            return Value::from_slice(&bytes);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_an_element_is_what_it_takes_in_a_message() {
        let key = Value::EMPTY.with(&[10, 0, 0, 1]).with(&[6]);
        let data = [
            None,
            Some(Datum::Value(Value::EMPTY.with_number(7).with(&[1, 2]))),
            Some(Datum::Verdict(Verdict::Goto("pick-12".to_owned()))),
            Some(Datum::Verdict(Verdict::Drop)),
        ];
        let comments = [
            None,
            Some("short"),
            Some("four"),
            Some(&"n".repeat(200)[..]),
        ];
        for datum in &data {
            for comment in comments {
                for end in [None, Some(key.with_number(9))] {
                    for is_concatenation in [true, false] {
                        let element = Element {
                            end,
                            datum: datum.clone(),
                            comment: comment.map(Into::into),
                            ..Element::of_key(key.with_number(1))
                        };
                        let empty = || Request::new(0, 0, &[]);
                        let written = element.write(empty(), is_concatenation).len();
                        let size = element.size(is_concatenation);
                        assert_eq!(size, written - empty().len(), "{element:?}");
                    }
                }
            }
        }
    }
}
