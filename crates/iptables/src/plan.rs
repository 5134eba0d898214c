//! A change of the kernel's rules as a value.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
};

use weft_proxy::ChainCount;
use weft_ruleset::{ChainName, Rule, Table};

use crate::fixed::Jump;

/// What is to be written. Prints as the input of `iptables-restore --noflush`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    mangle: TablePlan,
    filter: TablePlan,
    nat: TablePlan,
}

/// The part of a plan in one table. Rules are kept as text: a plan for a large cluster has
/// hundreds of thousands, and all that is left to do with them is to print them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TablePlan {
    /// Created if missing, emptied if not.
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
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        Table::ALL.iter().all(|table| self.part(*table).is_empty())
    }

    /// How many rules are written to a table.
    pub fn rules(&self, table: Table) -> usize {
        self.part(table).rules
    }

    /// How many chains of all tables change, and how many go.
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

    /// Empties a chain, or creates it; rules follow with [`append`](Self::append).
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

    /// Inserts a jump into a built-in chain. It is none of the rules that are counted: those are
    /// in chains of ours.
    pub(crate) fn insert_jump(&mut self, jump: &Jump) {
        let part = self.part_mut(jump.table);
        line(&mut part.insertions, "-I", jump.from, &jump.rule);
        part.edited.insert(jump.from);
    }

    /// Deletes a rule by its text. A rule that is not there makes the whole table fail.
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
            // iptables-nft keeps chains in a list sorted by name and looks for each one's place
            // from its head: in descending order that place is always the first.
            for chain in part.chains.iter().rev() {
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
