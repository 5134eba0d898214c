//! nftables chains and rules over netlink, as bytes to compare.

use rustix::io::Errno;
use weft_model::IpFamily;

use crate::{
    netfilter::{Netfilter, Subsystem, body, request, terminated},
    netlink::{FLAG_DUMP, FLAG_REQUEST, NetlinkError, Request, attributes, family_number},
};

const GET_CHAIN: u8 = 4;
const GET_RULE: u8 = 7;

const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;

const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_USER_DATA: u16 = 7;

const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;

const QUOTA_PADDING: u16 = 3;
const QUOTA_CONSUMED: u16 = 4;

/// Number of dumps before a list that keeps changing is an error.
const TRIES: u32 = 5;

/// The content of an nftables rule: its expressions and user data, without handle and position, and
/// without state that packets change.
///
/// For comparing: rules are equal if and only if their bytes are, provided the same program wrote
/// both. The elements of a set that a rule refers to are not part of it.
///
/// Blobs of xtables extensions are compared as they are. Their kernel-side half (the pointers of
/// `xt_nfacct_match_info`, `xt_statistic_info` and so on) never leaves the kernel: since Linux 4.20
/// (4.19.86, 4.14.156) it sends zeros for everything after an extension's `usersize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawRule<'a> {
    bytes: &'a [u8],
}

impl<'a> RawRule<'a> {
    /// Bytes to compare or hash, not to parse.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl Netfilter {
    /// Names of a table's chains; none if the table does not exist.
    pub fn nftables_chains(
        &mut self,
        family: IpFamily,
        table: &str,
    ) -> Result<Vec<String>, NetlinkError> {
        let mut names = Vec::new();
        self.consistent_dump(
            "list nftables chains",
            &dump(GET_CHAIN, family),
            &mut |step| match step {
                Step::Begin => names.clear(),
                Step::Message(payload) => names.extend(chain_name(payload, table)),
            },
        )?;
        Ok(names)
    }

    /// Passes on the rules of one chain in order, or of all chains of a table, chain by chain. None
    /// if the chain or the table does not exist.
    ///
    /// Each chain is consistent in itself. A whole table is not: another process may write between
    /// one chain and the next. A caller that must know compares the
    /// [generation](Self::nftables_generation) before and after.
    ///
    /// Memory is needed for the rules of one chain at a time.
    pub fn nftables_rules(
        &mut self,
        family: IpFamily,
        table: &str,
        chain: Option<&str>,
        each: &mut dyn FnMut(&str, &RawRule<'_>),
    ) -> Result<(), NetlinkError> {
        let mut rules = Rules::default();
        if let Some(chain) = chain {
            return self.chain_rules(family, table, chain, &mut rules, each);
        }
        // One dump of the whole table would do, but for every 32 kB the kernel counts from the
        // first rule to find where to continue: the time would grow with the square of the rules.
        for chain in self.nftables_chains(family, table)? {
            self.chain_rules(family, table, &chain, &mut rules, each)?;
        }
        Ok(())
    }

    fn chain_rules(
        &mut self,
        family: IpFamily,
        table: &str,
        chain: &str,
        rules: &mut Rules,
        each: &mut dyn FnMut(&str, &RawRule<'_>),
    ) -> Result<(), NetlinkError> {
        let request = dump(GET_RULE, family)
            .with(RULE_TABLE, &terminated(table))
            .with(RULE_CHAIN, &terminated(chain));
        self.consistent_dump("list nftables rules", &request, &mut |step| match step {
            Step::Begin => rules.clear(),
            Step::Message(payload) => rules.add(payload),
        })?;
        for rule in rules.iter() {
            each(chain, &rule);
        }
        Ok(())
    }

    /// Starts over when the kernel reports an inconsistent dump.
    pub(crate) fn consistent_dump(
        &mut self,
        operation: &'static str,
        request: &Request,
        step: &mut dyn FnMut(Step<'_>),
    ) -> Result<(), NetlinkError> {
        let mut tries = 0;
        loop {
            step(Step::Begin);
            let outcome = self.socket.request(operation, request.clone(), |payload| {
                step(Step::Message(payload));
            });
            tries += 1;
            match outcome {
                Err(error) if error.errno() == Some(Errno::INTR) && tries < TRIES => {}
                outcome => return outcome,
            }
        }
    }
}

/// Step of a dump.
pub(crate) enum Step<'a> {
    /// Start of a dump; everything before it is void.
    Begin,
    Message(&'a [u8]),
}

fn dump(message: u8, family: IpFamily) -> Request {
    let flags = FLAG_REQUEST | FLAG_DUMP;
    request(Subsystem::Nftables, message, flags, family_number(family))
}

/// The name of a chain if it is in this table; the kernel sends those of all tables.
fn chain_name(payload: &[u8], table: &str) -> Option<String> {
    let text = |wanted| {
        let attribute = attributes(body(payload)).find(|attribute| attribute.kind == wanted)?;
        Some(unterminated(attribute.value))
    };
    let name = (text(CHAIN_TABLE)? == table.as_bytes()).then(|| text(CHAIN_NAME))??;
    Some(String::from_utf8_lossy(name).into_owned())
}

fn unterminated(name: &[u8]) -> &[u8] {
    name.strip_suffix(&[0]).unwrap_or(name)
}

/// Rules in one allocation.
#[derive(Debug, Default)]
struct Rules {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Rules {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn add(&mut self, payload: &[u8]) {
        write_rule(&mut self.bytes, body(payload));
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl Iterator<Item = RawRule<'_>> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let bytes = &self.bytes[start..*end];
            start = *end;
            RawRule { bytes }
        })
    }
}

/// Appends the bytes of a [`RawRule`].
fn write_rule(bytes: &mut Vec<u8>, rule: &[u8]) {
    for attribute in attributes(rule) {
        match attribute.kind {
            RULE_EXPRESSIONS => write(bytes, RULE_EXPRESSIONS, |bytes| {
                for expression in attributes(attribute.value) {
                    write(bytes, expression.kind, |bytes| {
                        write_expression(bytes, expression.value);
                    });
                }
            }),
            RULE_USER_DATA => write(bytes, RULE_USER_DATA, |bytes| {
                bytes.extend_from_slice(attribute.value);
            }),
            _ => {}
        }
    }
}

fn write_expression(bytes: &mut Vec<u8>, expression: &[u8]) {
    let name = attributes(expression).find(|attribute| attribute.kind == EXPRESSION_NAME);
    let name = name.map_or(&[][..], |attribute| unterminated(attribute.value));
    for attribute in attributes(expression) {
        write(bytes, attribute.kind, |bytes| {
            if attribute.kind != EXPRESSION_DATA || !has_state(name) {
                bytes.extend_from_slice(attribute.value);
                return;
            }
            for part in attributes(attribute.value) {
                if !is_state(name, part.kind) {
                    write(bytes, part.kind, |bytes| {
                        bytes.extend_from_slice(part.value);
                    });
                }
            }
        });
    }
}

/// Returns whether packets change the attributes of an expression.
fn has_state(expression: &[u8]) -> bool {
    matches!(expression, b"counter" | b"last" | b"quota")
}

/// Returns whether packets change this attribute of such an expression. On some architectures
/// padding precedes it, depending on its position in the message.
fn is_state(expression: &[u8], part: u16) -> bool {
    match expression {
        b"quota" => matches!(part, QUOTA_CONSUMED | QUOTA_PADDING),
        // The other expressions have only state.
        _ => true,
    }
}

/// Appends a part with its type and length, so that different parts never give the same bytes.
fn write(bytes: &mut Vec<u8>, kind: u16, content: impl FnOnce(&mut Vec<u8>)) {
    bytes.extend_from_slice(&kind.to_ne_bytes());
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    content(bytes);
    let length = u32::try_from(bytes.len() - start - 4).unwrap_or(u32::MAX);
    bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use weft_testkit::lab;

    use super::*;
    use crate::iptables::{Iptables, VariantChoice};

    /// A rule with one expression, which holds one part of eight bytes.
    fn rule(handle: u64, expression: &str, part: (u16, u64), user_data: &[u8]) -> Vec<u8> {
        let (kind, value) = part;
        let message = Request::new(0, 0, &[0; 4])
            .with(RULE_CHAIN, b"WEFT\0")
            .with(3, &handle.to_be_bytes())
            .with_nested(RULE_EXPRESSIONS, |list| {
                list.with_nested(1, |element| {
                    element
                        .with(EXPRESSION_NAME, &terminated(expression))
                        .with_nested(EXPRESSION_DATA, |data| {
                            data.with(kind, &value.to_be_bytes())
                        })
                })
            })
            .with(RULE_USER_DATA, user_data)
            .finish(1);
        let mut bytes = Vec::new();
        write_rule(&mut bytes, &message[20..]);
        assert!(bytes.len() > expression.len(), "{bytes:?}");
        bytes
    }

    #[test]
    fn only_what_packets_change_is_left_out() {
        let state = [
            ("counter", 1),
            ("counter", 2),
            ("last", 2),
            ("quota", QUOTA_CONSUMED),
        ];
        for (name, kind) in state {
            let [one, two] = [1, 2].map(|value| rule(7, name, (kind, value), b"user"));
            assert_eq!(one, two, "{name} {kind}");
        }
        for (name, kind) in [("quota", 1), ("limit", 1), ("count", 1), ("counter2", 2)] {
            let [one, two] = [1, 2].map(|value| rule(7, name, (kind, value), b"user"));
            assert_ne!(one, two, "{name} {kind}");
        }
    }

    #[test]
    fn user_data_counts_and_the_handle_does_not() {
        let part = (1, 1);
        assert_eq!(
            rule(7, "limit", part, b"user"),
            rule(8, "limit", part, b"user")
        );
        assert_ne!(
            rule(7, "limit", part, b"user"),
            rule(7, "limit", part, b"used")
        );
        assert_ne!(rule(7, "counter", part, b""), rule(7, "last", part, b""));
    }

    #[test]
    fn a_dump_that_a_writer_interrupts_is_repeated() {
        lab::with_programs(&["iptables-nft"], |_| {
            let tables = Iptables::detect(IpFamily::V4, VariantChoice::Nft).unwrap();
            // More than the kernel sends at once, and less than it takes at once without root.
            let rule = "-A WEFT -m comment --comment weft -j RETURN\n";
            let input = format!("*nat\n:WEFT - [0:0]\n{}COMMIT\n", rule.repeat(200));
            tables.restore(input.as_bytes()).unwrap();
            let mut netfilter = Netfilter::open().unwrap();
            let request = dump(GET_RULE, IpFamily::V4).with(RULE_TABLE, b"nat\0");
            let mut dump_during = |writes: u32| {
                let (mut begun, mut messages) = (0, 0);
                let outcome = netfilter.consistent_dump("test", &request, &mut |step| {
                    if matches!(step, Step::Begin) {
                        begun += 1;
                        messages = 0;
                        return;
                    }
                    messages += 1;
                    if messages == 1 && begun <= writes {
                        tables.restore(input.as_bytes()).unwrap();
                    }
                });
                (outcome, begun, messages)
            };

            for writes in 0..TRIES {
                let (outcome, begun, messages) = dump_during(writes);
                outcome.unwrap();
                assert_eq!((begun, messages), (writes + 1, 200));
            }
            let (outcome, begun, _) = dump_during(u32::MAX);
            assert_eq!(outcome.unwrap_err().errno(), Some(Errno::INTR));
            assert_eq!(begun, TRIES);
        });
    }
}
