//! A change of the kernel's rules as a value that prints as input of `iptables-restore`.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt::{self, Write as _},
};

use weft_proxy::ChainCount;
use weft_ruleset::{ChainName, Rule, Table};

use crate::fixed::Jump;

/// The chains and rules to write. Prints as the input of `iptables-restore --noflush`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    mangle: TablePlan,
    filter: TablePlan,
    nat: TablePlan,
}

/// The part of a plan in one table. Rules are kept as text: a plan for a large cluster has hundreds
/// of thousands of them, and printing is all that is left to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TablePlan {
    /// Chains that are created if missing, and emptied if not.
    chains: BTreeSet<ChainName>,
    deletions: String,
    additions: String,
    insertions: String,
    removals: BTreeSet<ChainName>,
    /// Chains with deletions or insertions.
    edited: BTreeSet<ChainName>,
    rules: usize,
}

impl Plan {
    /// True if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        Table::ALL.iter().all(|table| self.part(*table).is_empty())
    }

    /// Number of rules written to a table.
    pub fn rules(&self, table: Table) -> usize {
        self.part(table).rules
    }

    /// Number of chains of all tables that are changed or removed.
    pub(crate) fn chain_count(&self) -> ChainCount {
        let removed = Table::ALL.map(|table| self.part(table).removals.len());
        let removed = removed.into_iter().sum();
        ChainCount {
            written: self.chains().count() - removed,
            removed,
        }
    }

    /// All chains that it writes, edits or removes.
    pub(crate) fn chains(&self) -> impl Iterator<Item = (Table, ChainName)> {
        Table::ALL.into_iter().flat_map(|table| {
            let part = self.part(table);
            let chains = part.chains.union(&part.edited);
            chains.map(move |chain| (table, *chain))
        })
    }

    /// Replaces the content of a chain, or creates it.
    pub(crate) fn write(&mut self, table: Table, chain: ChainName, rules: &[Rule]) {
        let part = self.part_mut(table);
        part.chains.insert(chain);
        for rule in rules {
            part.add(chain, rule);
        }
    }

    /// Empties or creates a chain; rules follow with [`append`](Self::append).
    pub(crate) fn empty(&mut self, table: Table, chain: ChainName) {
        self.part_mut(table).chains.insert(chain);
    }

    /// Adds a rule at the end of a chain that this plan empties.
    pub(crate) fn append(&mut self, table: Table, chain: ChainName, rule: &Rule) {
        self.part_mut(table).add(chain, rule);
    }

    /// Removes a chain that nothing jumps to any more.
    pub(crate) fn remove(&mut self, table: Table, chain: ChainName) {
        let part = self.part_mut(table);
        part.chains.insert(chain);
        part.removals.insert(chain);
    }

    /// Inserts rules at the head of a chain, in their order.
    pub(crate) fn insert(&mut self, table: Table, chain: ChainName, rules: &[Rule]) {
        let part = self.part_mut(table);
        for rule in rules.iter().rev() {
            part.edited.insert(chain);
            line(&mut part.insertions, "-I", chain, rule);
            part.rules += 1;
        }
    }

    /// Inserts a jump into a built-in chain. It is not counted: only rules in our own chains are.
    pub(crate) fn insert_jump(&mut self, jump: &Jump) {
        let part = self.part_mut(jump.table);
        line(&mut part.insertions, "-I", jump.from, &jump.rule);
        part.edited.insert(jump.from);
    }

    /// Deletes a rule by its text. A rule that does not exist makes the whole table fail.
    pub(crate) fn delete(&mut self, table: Table, chain: ChainName, rule: &Rule) {
        let part = self.part_mut(table);
        part.edited.insert(chain);
        line(&mut part.deletions, "-D", chain, rule);
    }

    fn part(&self, table: Table) -> &TablePlan {
        match table {
            Table::Mangle => &self.mangle,
            Table::Filter => &self.filter,
            Table::Nat => &self.nat,
        }
    }

    fn part_mut(&mut self, table: Table) -> &mut TablePlan {
        match table {
            Table::Mangle => &mut self.mangle,
            Table::Filter => &mut self.filter,
            Table::Nat => &mut self.nat,
        }
    }
}

impl TablePlan {
    fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.deletions.is_empty() && self.insertions.is_empty()
    }

    fn add(&mut self, chain: ChainName, rule: &Rule) {
        line(&mut self.additions, "-A", chain, rule);
        self.rules += 1;
    }
}

/// Below this number of chains their order does not matter.
const FEW_CHAINS: usize = 100;

/// The order in which chains are declared, and created by the kernel.
///
/// iptables-nft-restore keeps them in a list sorted by name and searches each one's place from the
/// head: in descending order that place is always the first. iptables-nft-save gets them in order
/// of creation and sorts them by a quicksort that takes the first one as pivot: input that is
/// already sorted takes quadratic time. So a few chains that halve, quarter and so on all others
/// come first: both programs then need about the square root of all for each.
fn creation_order(chains: &BTreeSet<ChainName>) -> Vec<ChainName> {
    let sorted: Vec<ChainName> = chains.iter().copied().collect();
    if sorted.len() < FEW_CHAINS {
        return sorted.into_iter().rev().collect();
    }
    let stride = sorted.len().isqrt();
    let is_divider = |place: usize| place % stride == stride / 2;
    let dividers = (0..sorted.len()).filter(|place| is_divider(*place));
    let dividers: Vec<ChainName> = dividers.map(|place| sorted[place]).collect();
    let mut order = Vec::with_capacity(sorted.len());
    // By halves: the middle, then the middles of both halves, and so on.
    let mut parts = VecDeque::from([&dividers[..]]);
    while let Some(part) = parts.pop_front() {
        if let Some((middle, above)) = part[part.len() / 2..].split_first() {
            order.push(*middle);
            parts.extend([&part[..part.len() / 2], above]);
        }
    }
    let others = (0..sorted.len()).rev().filter(|place| !is_divider(*place));
    order.extend(others.map(|place| sorted[place]));
    order
}

fn line(text: &mut String, operation: &str, chain: ChainName, rule: &Rule) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{operation} {chain} {rule}");
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in Table::ALL {
            let part = self.part(table);
            if part.is_empty() {
                continue;
            }
            writeln!(f, "*{table}")?;
            for chain in creation_order(&part.chains) {
                writeln!(f, ":{chain} - [0:0]")?;
            }
            f.write_str(&part.deletions)?;
            f.write_str(&part.additions)?;
            f.write_str(&part.insertions)?;
            for chain in &part.removals {
                writeln!(f, "-X {chain}")?;
            }
            writeln!(f, "COMMIT")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chains(count: u32) -> BTreeSet<ChainName> {
        let names =
            (0..count).map(|number| format!("KUBE-SEP-{:08X}", number.wrapping_mul(0x9E37_79B1)));
        names.map(|name| ChainName::parse(&name).unwrap()).collect()
    }

    /// Number of names that iptables-nft-restore compares: for each those before it in a sorted
    /// list.
    fn looks_of_restore(order: &[ChainName]) -> usize {
        let mut list: Vec<ChainName> = Vec::new();
        let mut looks = 0;
        for chain in order {
            let place = list.partition_point(|present| present < chain);
            list.insert(place, *chain);
            looks += place + 1;
        }
        looks
    }

    /// Number of comparisons that iptables-nft-save makes: with the first one, then in both parts.
    fn looks_of_save(order: &[ChainName]) -> usize {
        let mut parts = vec![order.to_vec()];
        let mut looks = 0;
        while let Some(part) = parts.pop() {
            let Some((first, rest)) = part.split_first() else {
                continue;
            };
            looks += rest.len();
            let (below, above) = rest.iter().partition(|chain| *chain < first);
            parts.extend([below, above]);
        }
        looks
    }

    #[test]
    fn neither_program_looks_at_all_chains_for_each() {
        let chains = chains(10_000);
        let order = creation_order(&chains);
        assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), chains);
        assert_eq!(order.len(), chains.len());
        let descending: Vec<ChainName> = chains.iter().rev().copied().collect();
        let bound = 10_000 * 120;
        assert!(
            looks_of_save(&descending) > 40 * bound,
            "this order is what the function is for"
        );
        for looks in [looks_of_restore(&order), looks_of_save(&order)] {
            assert!(looks < bound, "{looks}");
        }
    }

    #[test]
    fn chains_are_counted_once_and_by_what_becomes_of_them() {
        let [written, edited, removed] = ["KUBE-A", "KUBE-B", "KUBE-C"].map(ChainName::fixed);
        let rules = [Rule::default()];
        let mut plan = Plan::default();
        plan.write(Table::Nat, written, &rules);
        plan.insert(Table::Nat, written, &rules);
        plan.insert(Table::Filter, edited, &rules);
        plan.remove(Table::Nat, removed);
        let expected = ChainCount {
            written: 2,
            removed: 1,
        };
        assert_eq!(plan.chain_count(), expected);
    }

    #[test]
    fn few_chains_are_named_from_the_last_to_the_first() {
        let chains = chains(20);
        assert!(creation_order(&chains).iter().eq(chains.iter().rev()));
        assert!(creation_order(&BTreeSet::new()).is_empty());
    }
}
