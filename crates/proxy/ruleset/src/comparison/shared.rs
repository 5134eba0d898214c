//! Comparison of chains that contain rules of all Services, grouped by service port.

use std::{borrow::Cow, collections::BTreeMap};

use super::{Difference, Group, Side, members};
use crate::{ChainName, SavedRule, Table};

type Rules<'a> = [Cow<'a, SavedRule>];

const NODE_PORTS: ChainName = ChainName::fixed("KUBE-NODEPORTS");

pub(super) fn compare(
    table: Table,
    chain: ChainName,
    expected: &Rules<'_>,
    found: &Rules<'_>,
    differences: &mut Vec<Difference>,
) {
    let same_members = !members(table, chain, expected, found, differences);
    for (side, rules) in [(Side::Expected, expected), (Side::Found, found)] {
        tails_are_last(table, chain, side, rules, differences);
        groups_stand_together(table, chain, side, rules, differences);
    }
    // With other members the order differs anyway.
    if same_members {
        groups_are_in_order(table, chain, expected, found, differences);
    }
}

fn tails_are_last(
    table: Table,
    chain: ChainName,
    side: Side,
    rules: &Rules<'_>,
    differences: &mut Vec<Difference>,
) {
    let last = rules.iter().rposition(|rule| !is_tail(rule)).unwrap_or(0);
    for rule in rules[..last].iter().filter(|rule| is_tail(rule)) {
        differences.push(Difference::TailNotLast {
            table,
            chain,
            rule: rule.clone().into_owned(),
            side,
        });
    }
}

fn groups_stand_together(
    table: Table,
    chain: ChainName,
    side: Side,
    rules: &Rules<'_>,
    differences: &mut Vec<Difference>,
) {
    let mut ended: BTreeMap<Group, bool> = BTreeMap::new();
    let mut current: Option<Group> = None;
    for rule in rules {
        let group = group(rule);
        if group == current {
            continue;
        }
        if let Some(group) = &group
            && let Some(told) = ended.get_mut(group)
            && !std::mem::replace(told, true)
        {
            differences.push(Difference::GroupScattered {
                table,
                chain,
                group: group.clone(),
                side,
            });
        }
        if let Some(left) = std::mem::replace(&mut current, group) {
            ended.entry(left).or_insert(false);
        }
    }
}

fn groups_are_in_order(
    table: Table,
    chain: ChainName,
    expected: &Rules<'_>,
    found: &Rules<'_>,
    differences: &mut Vec<Difference>,
) {
    let mut expected = by_group(expected);
    for (group, found) in by_group(found) {
        let expected = expected.remove(&group).unwrap_or_default();
        if expected != found {
            let owned = |rules: Vec<&SavedRule>| rules.into_iter().cloned().collect();
            differences.push(Difference::GroupOrder {
                table,
                chain,
                group,
                expected: owned(expected),
                found: owned(found),
            });
        }
    }
}

fn by_group<'a>(rules: &'a Rules<'_>) -> BTreeMap<Group, Vec<&'a SavedRule>> {
    let mut groups: BTreeMap<Group, Vec<&SavedRule>> = BTreeMap::new();
    for rule in rules {
        if let Some(group) = group(rule) {
            groups.entry(group).or_default().push(rule);
        }
    }
    groups
}

/// The jump for node ports. There may be one for each address, in any order.
fn is_tail(rule: &SavedRule) -> bool {
    rule.jump() == Some(NODE_PORTS)
}

/// The service port's name is the first word of each comment. It contains a '/', unlike other
/// comments.
fn group(rule: &SavedRule) -> Option<Group> {
    let rule = rule.known()?;
    let name = rule.comment_text()?.split(' ').next()?;
    let of_service = name.contains('/');
    of_service.then(|| Group {
        name: name.into(),
        protocol: rule.protocol,
    })
}
