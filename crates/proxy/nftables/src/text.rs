//! Changes as text that `nft -f` reads.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, Ipv6Addr},
};

use weft_host::nftables::{Change, Datum, Element, Field, Kind, Set, TableChange, Value};
use weft_model::IpFamily;

use crate::program::TABLE;

/// Prints changes. Chains and rules are counted and not printed: they are the same for
/// every cluster, and `nft -t list ruleset` shows them.
pub(crate) fn text(changes: &[Change], family: IpFamily, sets: &[Set]) -> String {
    let table = match family {
        IpFamily::V4 => format!("ip {TABLE}"),
        IpFamily::V6 => format!("ip6 {TABLE}"),
    };
    let mut text = String::new();
    let mut structure = 0;
    for change in changes {
        let Change::Within { change, .. } = change else {
            structure += 1;
            continue;
        };
        let (verb, name, elements) = match change {
            TableChange::AddElements { set, elements, .. } => ("add", set, elements),
            TableChange::DeleteElements { set, elements, .. } => ("delete", set, elements),
            _ => {
                structure += 1;
                continue;
            }
        };
        let set = sets.iter().find(|set| set.name == *name);
        for element in elements {
            let words = set.map_or_else(|| format!("{element:?}"), |set| print(set, element));
            let _infallible = writeln!(text, "{verb} element {table} {name} {{ {words} }}");
        }
    }
    if structure > 0 {
        let words = "changes to the table, its sets, chains and rules, which are the same for \
                     every cluster";
        text.insert_str(0, &format!("# {structure} {words}\n"));
    }
    text
}

fn print(set: &Set, element: &Element) -> String {
    let mut words = key(&set.key, &element.key);
    if let Some(end) = &element.end {
        words = range(&set.key, &element.key, end);
    }
    if let Some(comment) = &element.comment {
        let _infallible = write!(words, " comment \"{comment}\"");
    }
    match (&element.datum, &set.kind) {
        (Some(Datum::Value(value)), Kind::Map(fields)) => {
            let _infallible = write!(words, " : {}", key(fields, value));
        }
        (Some(Datum::Verdict(verdict)), _) => {
            let _infallible = write!(words, " : {verdict:?}");
        }
        _ => {}
    }
    words
}

fn key(fields: &[Field], value: &Value) -> String {
    split(fields, value).join(" . ")
}

/// The last field of a key as a range, unless it is one address.
fn range(fields: &[Field], first: &Value, last: &Value) -> String {
    let (mut first, last) = (split(fields, first), split(fields, last));
    if let (Some(from), Some(to)) = (first.last_mut(), last.last())
        && from != to
    {
        *from = format!("{from}-{to}");
    }
    first.join(" . ")
}

fn split(fields: &[Field], value: &Value) -> Vec<String> {
    let mut bytes = value.as_bytes();
    let mut words = Vec::new();
    for field in fields {
        let word = match (*field, bytes) {
            (Field::Address(IpFamily::V4), [a, b, c, d, ..]) => {
                Ipv4Addr::new(*a, *b, *c, *d).to_string()
            }
            (Field::Address(IpFamily::V6), bytes) => match bytes.first_chunk::<16>() {
                Some(octets) => Ipv6Addr::from(*octets).to_string(),
                None => break,
            },
            (Field::Protocol, [number, ..]) => match number {
                6 => "tcp".to_owned(),
                17 => "udp".to_owned(),
                132 => "sctp".to_owned(),
                other => other.to_string(),
            },
            (Field::Port, [high, low, ..]) => u16::from_be_bytes([*high, *low]).to_string(),
            (Field::Classid, bytes) => match bytes.first_chunk::<4>() {
                Some(number) => {
                    let number = u32::from_ne_bytes(*number);
                    format!("{:x}:{:x}", number >> 16, number & 0xffff)
                }
                None => break,
            },
            _ => break,
        };
        words.push(word);
        let length = match field {
            Field::Address(IpFamily::V6) => 16,
            _ => 4,
        };
        bytes = bytes.get(length..).unwrap_or(&[]);
    }
    words
}
