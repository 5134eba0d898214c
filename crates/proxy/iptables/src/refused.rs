//! The place in a restore input that was refused, and the Services whose rules are there.

use std::collections::{BTreeSet, HashSet};

use weft_model::ObjectKey;
use weft_proxy::RuleOwner;
use weft_ruleset::{ChainName, Table};

use crate::{names::is_private, port_rules::PortRules, shared::SharedChain};

/// A refused input.
#[derive(Debug)]
pub(crate) struct RefusedInput<'a> {
    /// Tables that are written nevertheless: those before the one at fault. `None` if no line was
    /// named, so that it may be any.
    pub(crate) written: Option<BTreeSet<Table>>,
    fault: Fault<'a>,
}

#[derive(Debug)]
enum Fault<'a> {
    /// Rules to be added, or chains to be created.
    Rules(Vec<FaultyRule<'a>>),
    /// One of these lines. iptables-legacy passes a whole table to the kernel and blames `COMMIT`
    /// for anything that the kernel refuses in it.
    OneOf(Vec<(Table, &'a str)>),
    /// A deletion, or a line outside any table: drift, or a bug here.
    Other,
}

#[derive(Debug)]
struct FaultyRule<'a> {
    table: Table,
    chain: ChainName,
    /// `None` for the chain itself.
    rule: Option<&'a str>,
}

impl<'a> RefusedInput<'a> {
    /// Looks up the named lines, counted from 1. The first one decides which tables are written.
    pub(crate) fn find(input: &'a str, named: &[usize]) -> Self {
        let Some(&line) = named.first() else {
            return Self {
                written: None,
                fault: Fault::OneOf(lines(input).collect()),
            };
        };
        let mut written = BTreeSet::new();
        let mut table = None;
        for (number, text) in (1..).zip(input.lines()) {
            if let Some(name) = text.strip_prefix('*') {
                table = Table::parse(name);
            }
            if number == line {
                let fault = table.map_or(Fault::Other, |table| match text {
                    "COMMIT" => {
                        let of_table = lines(input).filter(|(other, _)| *other == table);
                        Fault::OneOf(of_table.collect())
                    }
                    _ => faults(table, text, input, &named[1..]),
                });
                return Self {
                    written: Some(written),
                    fault,
                };
            }
            if text == "COMMIT" {
                written.extend(table.take());
            }
        }
        Self {
            written: None,
            fault: Fault::Other,
        }
    }

    /// The Services that own the refused rules.
    pub(crate) fn owner<'b>(
        &self,
        services: impl Iterator<Item = (&'b ObjectKey, Vec<PortRules>)>,
    ) -> RuleOwner {
        match &self.fault {
            Fault::Rules(rules) => {
                let is_faulty = |ports: &[PortRules]| {
                    let mut rules = rules.iter();
                    rules.any(|rule| has_rule(ports, rule))
                };
                let owners: BTreeSet<ObjectKey> = services
                    .filter(|(_, ports)| is_faulty(ports))
                    .map(|(key, _)| key.clone())
                    // A rule has one owner.
                    .take(rules.len())
                    .collect();
                match (owners.len(), owners.first()) {
                    (_, None) => RuleOwner::NoService,
                    (1, Some(only)) => RuleOwner::Service(only.clone()),
                    _ => RuleOwner::Services(owners),
                }
            }
            Fault::OneOf(lines) => one_of(lines, services),
            Fault::Other => RuleOwner::NoService,
        }
    }
}

/// All lines of an input with their tables.
fn lines(input: &str) -> impl Iterator<Item = (Table, &str)> {
    let mut table = None;
    input.lines().filter_map(move |line| {
        if let Some(name) = line.strip_prefix('*') {
            table = Table::parse(name);
            return None;
        }
        Some((table?, line))
    })
}

/// The fault of a line, combined with those of other lines of the same input.
fn faults<'a>(table: Table, line: &'a str, input: &'a str, others: &[usize]) -> Fault<'a> {
    let Some(first) = faulty_rule(table, line) else {
        return Fault::Other;
    };
    let mut rules = vec![first];
    if !others.is_empty() {
        let others: HashSet<usize> = others.iter().copied().collect();
        let named = (1..).zip(input.lines());
        let named = named.filter(|(number, _)| others.contains(number));
        rules.extend(named.filter_map(|(_, line)| faulty_rule(table, line)));
    }
    Fault::Rules(rules)
}

/// The rule or chain of a line; `None` for a deletion.
fn faulty_rule(table: Table, line: &str) -> Option<FaultyRule<'_>> {
    let (words, is_rule) = match line.strip_prefix(':') {
        Some(declaration) => (declaration, false),
        None => (line.strip_prefix("-A ").or(line.strip_prefix("-I "))?, true),
    };
    let (chain, rest) = words.split_once(' ').unwrap_or((words, ""));
    Some(FaultyRule {
        table,
        chain: ChainName::parse(chain).ok()?,
        rule: is_rule.then_some(rest),
    })
}

fn has_rule(ports: &[PortRules], faulty: &FaultyRule<'_>) -> bool {
    let FaultyRule { table, chain, rule } = *faulty;
    if table == Table::Nat && is_private(chain.as_str()) {
        let mut chains = ports.iter().flat_map(|port| &port.chains);
        return chains.any(|(own, _)| *own == chain);
    }
    let (Some(shared), Some(rule)) = (SharedChain::find(table, chain), rule) else {
        return false;
    };
    let mut rules = ports
        .iter()
        .filter_map(|port| port.groups.get(&shared))
        .flatten();
    rules.any(|own| own.to_string() == rule)
}

/// The Services with lines among these. Those whose own chains are written take precedence: a
/// shared chain that is rewritten contains lines of all Services, most of which are in the kernel
/// already.
fn one_of<'b>(
    lines: &[(Table, &str)],
    services: impl Iterator<Item = (&'b ObjectKey, Vec<PortRules>)>,
) -> RuleOwner {
    let mut chains = HashSet::new();
    let mut rules = HashSet::new();
    for (table, line) in lines {
        match faulty_rule(*table, line) {
            Some(FaultyRule {
                chain, rule: None, ..
            }) => {
                chains.insert((*table, chain));
            }
            Some(FaultyRule {
                chain,
                rule: Some(rule),
                ..
            }) => {
                rules.insert((*table, chain, rule));
            }
            None => {}
        }
    }
    let (mut written, mut mentioned) = (BTreeSet::new(), BTreeSet::new());
    for (key, ports) in services {
        let mut own = ports.iter().flat_map(|port| &port.chains).peekable();
        let has_chains = own.peek().is_some();
        if own.any(|(chain, _)| chains.contains(&(Table::Nat, *chain))) {
            written.insert(key.clone());
            continue;
        }
        let mut groups = ports.iter().flat_map(|port| &port.groups);
        let is_mentioned = groups.any(|(chain, group)| {
            group.iter().any(|rule| {
                let rule = rule.to_string();
                rules.contains(&(chain.table(), chain.name(), rule.as_str()))
            })
        });
        if is_mentioned {
            let group = if has_chains {
                &mut mentioned
            } else {
                &mut written
            };
            group.insert(key.clone());
        }
    }
    let suspects = if written.is_empty() {
        mentioned
    } else {
        written
    };
    if suspects.is_empty() {
        RuleOwner::NoService
    } else {
        RuleOwner::OneOf(suspects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUT: &str = "*filter\n:KUBE-SERVICES - [0:0]\nCOMMIT\n*nat\n:KUBE-SVC-A - [0:0]\n\
        -D KUBE-SERVICES -j KUBE-SVC-B\n-A KUBE-SVC-A -j RETURN\n-X KUBE-SVC-B\nCOMMIT\n";

    #[test]
    fn tables_before_the_line_at_fault_are_written() {
        for (line, written) in [
            (2, &[][..]),
            (3, &[]),
            (5, &[Table::Filter]),
            (9, &[Table::Filter]),
        ] {
            let found = RefusedInput::find(INPUT, &[line])
                .written
                .unwrap_or_default();
            assert!(found.iter().eq(written), "line {line}: {found:?}");
        }
        assert!(RefusedInput::find(INPUT, &[]).written.is_none());
        assert!(RefusedInput::find(INPUT, &[99]).written.is_none());
    }

    #[test]
    fn a_deletion_is_the_fault_of_no_service() {
        for (line, is_rule) in [(5, true), (6, false), (7, true), (8, false), (1, false)] {
            let found = RefusedInput::find(INPUT, &[line]).fault;
            assert_eq!(matches!(found, Fault::Rules(_)), is_rule, "line {line}");
        }
        let commit = RefusedInput::find(INPUT, &[9]).fault;
        assert!(matches!(commit, Fault::OneOf(lines) if lines.len() == 5));
    }
}
