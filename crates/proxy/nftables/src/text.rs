//! Changes as text that `nft -f` reads.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    net::{Ipv4Addr, Ipv6Addr},
};

use weft_host::nftables::{Change, Datum, Element, Field, Kind, Set, TableChange, Value, Verdict};
use weft_model::IpFamily;

use crate::{program::TABLE, scratch::List};

/// Prints changes. Chains `pick-N` are printed with their rule. Other chains and rules are counted and
/// not printed: they are the same for every cluster, and `nft -t list ruleset` shows them. An element
/// that leads to a chain which is not printed is a comment, since it loads only with the chain.
pub(crate) fn text(changes: &[Change], family: IpFamily, sets: &[Set]) -> String {
    let table = match family {
        IpFamily::V4 => format!("ip {TABLE}"),
        IpFamily::V6 => format!("ip6 {TABLE}"),
    };
    let mut text = String::new();
    let mut structure = 0;
    let mut missing = BTreeSet::new();
    for change in changes {
        let Change::Within { change, .. } = change else {
            structure += 1;
            continue;
        };
        let (verb, name, elements) = match change {
            TableChange::AddElements { set, elements, .. } => ("add", set, elements),
            TableChange::DeleteElements { set, elements, .. } => ("delete", set, elements),
            TableChange::AddChain(chain) => {
                if pick_count(&chain.name).is_some() {
                    let _infallible = writeln!(text, "add chain {table} {}", chain.name);
                } else {
                    structure += 1;
                    missing.insert(chain.name.clone());
                }
                continue;
            }
            TableChange::AddRule(rule) => {
                match pick_count(&rule.chain) {
                    Some(count) => {
                        let draw = draw(count, rule.comment.as_deref());
                        let _infallible = writeln!(text, "add rule {table} {} {draw}", rule.chain);
                    }
                    None => structure += 1,
                }
                continue;
            }
            TableChange::FlushChain(chain) if pick_count(chain).is_some() => {
                let _infallible = writeln!(text, "flush chain {table} {chain}");
                continue;
            }
            TableChange::DeleteChain(chain) if pick_count(chain).is_some() => {
                let _infallible = writeln!(text, "delete chain {table} {chain}");
                continue;
            }
            _ => {
                structure += 1;
                continue;
            }
        };
        let set = sets.iter().find(|set| set.name == *name);
        for element in elements {
            let words = set.map_or_else(|| format!("{element:?}"), |set| print(set, element));
            let is_missing = match &element.datum {
                Some(Datum::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain))) => {
                    missing.contains(chain)
                }
                _ => false,
            };
            let prefix = if is_missing { "# " } else { "" };
            let _infallible = writeln!(text, "{prefix}{verb} element {table} {name} {{ {words} }}");
        }
    }
    if structure > 0 {
        let words = "changes to the table, its sets, chains and rules, which are the same for \
                     every cluster";
        text.insert_str(0, &format!("# {structure} {words}\n"));
    }
    text
}

/// The number of endpoints of a chain that draws one.
fn pick_count(chain: &str) -> Option<u32> {
    chain.strip_prefix("pick-")?.parse().ok()
}

/// The rule of a chain that draws one of this many endpoints.
fn draw(count: u32, comment: Option<&str>) -> String {
    let first = List::Cluster.first();
    let comment = comment.map_or_else(String::new, |text| format!(" comment \"{text}\""));
    format!("meta priority set numgen random mod {count} offset {first}{comment}")
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
            let _infallible = match verdict {
                Verdict::Drop => write!(words, " : drop"),
                Verdict::Return => write!(words, " : return"),
                Verdict::Jump(chain) => write!(words, " : jump {chain}"),
                Verdict::Goto(chain) => write!(words, " : goto {chain}"),
            };
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
