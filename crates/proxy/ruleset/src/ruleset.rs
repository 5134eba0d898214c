//! A ruleset: the tables, chains and rules of one address family.

use std::{collections::BTreeMap, fmt};

use weft_model::IpFamily;

use crate::{ChainName, Line, SavedRule, Table, saved_lines};

/// The treatment of a packet that reaches the end of a built-in chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainPolicy {
    /// It passes.
    Accept,
    /// It is dropped.
    Drop,
}

impl ChainPolicy {
    /// Parses a policy.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "ACCEPT" => Some(Self::Accept),
            "DROP" => Some(Self::Drop),
            _ => None,
        }
    }

    /// The name as iptables spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "ACCEPT",
            Self::Drop => "DROP",
        }
    }
}

/// A chain's rules in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Only built-in chains have one.
    pub policy: Option<ChainPolicy>,
    /// The rules.
    pub rules: Vec<SavedRule>,
}

pub(crate) type Chains = BTreeMap<ChainName, Chain>;

/// The tables of one family that this crate supports.
///
/// Other tables are left out, as are chains whose names are not valid [`ChainName`]s, together with
/// their rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    family: IpFamily,
    pub(crate) tables: BTreeMap<Table, Chains>,
}

/// Text that is not the output of `iptables-save`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesetError {
    /// A line of unknown form.
    #[error("line {line} is not output of iptables-save: {text:?}")]
    Unexpected {
        /// Its number, from 1.
        line: usize,
        /// Its text.
        text: String,
    },
    /// A rule whose chain was not declared.
    #[error("line {line} is a rule of chain {chain}, which does not exist")]
    NoChain {
        /// Its number, from 1.
        line: usize,
        /// The chain.
        chain: ChainName,
    },
}

impl Ruleset {
    /// A ruleset without tables, which a kernel has before its first rule.
    pub fn new(family: IpFamily) -> Self {
        Self {
            family,
            tables: BTreeMap::new(),
        }
    }

    /// Parses the output of `iptables-save` or `ip6tables-save`.
    pub fn parse(text: &str, family: IpFamily) -> Result<Self, RulesetError> {
        let mut reader = Reader {
            ruleset: Self::new(family),
            chain: None,
            rules: Vec::new(),
        };
        let mut lines = saved_lines(text);
        while let Some((table, line)) = lines.next() {
            reader.read(table, line, lines.line_number())?;
        }
        reader.finish_chain();
        Ok(reader.ruleset)
    }

    /// The family of its addresses.
    pub fn family(&self) -> IpFamily {
        self.family
    }

    /// A chain.
    pub fn chain(&self, table: Table, name: ChainName) -> Option<&Chain> {
        self.tables.get(&table)?.get(&name)
    }

    /// The rules of a chain; none if there is no such chain.
    pub fn rules(&self, table: Table, name: ChainName) -> &[SavedRule] {
        self.chain(table, name).map_or(&[], |chain| &chain.rules)
    }

    /// The tables that exist.
    pub fn tables(&self) -> impl Iterator<Item = Table> + '_ {
        self.tables.keys().copied()
    }

    /// The chains of a table in the order of `iptables-save`: built-in ones in the order of the
    /// kernel's hooks, then the others by name.
    pub fn chains(&self, table: Table) -> impl Iterator<Item = (ChainName, &Chain)> {
        let chains = self.tables.get(&table);
        let built_in = move |name: &ChainName| Some((*name, chains?.get(name)?));
        table
            .built_in_chains()
            .iter()
            .filter_map(built_in)
            .chain(self.user_chains(table))
    }

    /// The chains of a table that are not built in, by name.
    pub fn user_chains(&self, table: Table) -> impl Iterator<Item = (ChainName, &Chain)> {
        let chains = self.tables.get(&table).into_iter().flatten();
        chains
            .map(|(name, chain)| (*name, chain))
            .filter(move |(name, _)| !table.has_built_in(*name))
    }

    /// A chain to write to; created with its table if missing.
    pub fn chain_mut(&mut self, table: Table, name: ChainName) -> &mut Chain {
        let chains = self.tables.entry(table).or_insert_with(|| empty(table));
        chains.entry(name).or_default()
    }

    /// Appends a rule to a chain, which is created if missing.
    pub fn append(&mut self, table: Table, chain: ChainName, rule: impl Into<SavedRule>) {
        self.chain_mut(table, chain).rules.push(rule.into());
    }
}

/// A table as the kernel creates it.
pub(crate) fn empty(table: Table) -> Chains {
    let chain = || Chain {
        policy: Some(ChainPolicy::Accept),
        rules: Vec::new(),
    };
    let names = table.built_in_chains().iter();
    names.map(|name| (*name, chain())).collect()
}

/// Collects the rules of a chain before it looks the chain up: they are consecutive.
struct Reader<'a> {
    ruleset: Ruleset,
    chain: Option<(Table, &'a str, ChainName)>,
    rules: Vec<SavedRule>,
}

impl<'a> Reader<'a> {
    fn read(&mut self, table: Table, line: Line<'a>, number: usize) -> Result<(), RulesetError> {
        match line {
            Line::Chain(name, policy) => {
                if let Ok(name) = ChainName::parse(name) {
                    let policy = ChainPolicy::parse(policy);
                    self.ruleset.chain_mut(table, name).policy = policy;
                }
            }
            Line::Rule(chain, text) => {
                let same = self.chain.is_some_and(|(t, c, _)| (t, c) == (table, chain));
                if !same && !self.start_chain(table, chain, number)? {
                    return Ok(());
                }
                let family = self.ruleset.family;
                self.rules.push(SavedRule::parse(family, text));
            }
            Line::Other(text) => {
                return Err(RulesetError::Unexpected {
                    line: number,
                    text: text.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// True if the chain is kept.
    fn start_chain(
        &mut self,
        table: Table,
        chain: &'a str,
        line: usize,
    ) -> Result<bool, RulesetError> {
        self.finish_chain();
        let Ok(name) = ChainName::parse(chain) else {
            return Ok(false);
        };
        if self.ruleset.chain(table, name).is_none() {
            return Err(RulesetError::NoChain { line, chain: name });
        }
        self.chain = Some((table, chain, name));
        Ok(true)
    }

    fn finish_chain(&mut self) {
        if let Some((table, _, name)) = self.chain.take() {
            let rules = &mut self.ruleset.chain_mut(table, name).rules;
            rules.reserve_exact(self.rules.len());
            rules.append(&mut self.rules);
        }
    }
}

/// As `iptables-save` prints it, with counters at zero and without its comment lines.
impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in self.tables() {
            writeln!(f, "*{table}")?;
            for (name, chain) in self.chains(table) {
                let policy = chain.policy.map_or("-", ChainPolicy::as_str);
                writeln!(f, ":{name} {policy} [0:0]")?;
            }
            for (name, chain) in self.chains(table) {
                for rule in &chain.rules {
                    let blank = if rule.is_blank() { "" } else { " " };
                    writeln!(f, "-A {name}{blank}{rule}")?;
                }
            }
            writeln!(f, "COMMIT")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "\
*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:AAA - [0:0]
:KUBE-FORWARD - [0:0]
-A INPUT -j AAA
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A AAA
-A AAA -p icmp -m icmp --icmp-type 8 -j LOG --log-prefix \"it\\'s here\"
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
";

    #[test]
    fn what_was_saved_prints_as_it_was() {
        let ruleset = Ruleset::parse(SAVED, IpFamily::V4).unwrap();
        assert_eq!(ruleset.to_string(), SAVED);
        let aaa = ruleset.rules(Table::Filter, ChainName::fixed("AAA"));
        assert!(matches!(aaa, [SavedRule::Known(_), SavedRule::Foreign(_)]));
        let forward = ruleset.chain(Table::Filter, ChainName::fixed("FORWARD"));
        assert_eq!(forward.unwrap().policy, Some(ChainPolicy::Drop));
    }

    #[test]
    fn counters_comments_and_tables_of_others_do_not_matter() {
        let noisy = SAVED
            .replace("[0:0]", "[12:3456]")
            .replace("-A ", "[1:2] -A ")
            .replace(
                "*filter",
                "*raw\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n# a comment\n*filter",
            );
        assert_eq!(
            Ruleset::parse(&noisy, IpFamily::V4),
            Ruleset::parse(SAVED, IpFamily::V4)
        );
    }

    #[test]
    fn chains_print_sorted_whatever_the_order_they_came_in() {
        let mut ruleset = Ruleset::new(IpFamily::V4);
        for name in ["B", "A-1", "A"] {
            ruleset.chain_mut(Table::Nat, ChainName::fixed(name));
        }
        let names: Vec<_> = ruleset
            .chains(Table::Nat)
            .map(|(name, _)| name.to_string())
            .collect();
        let expected = "PREROUTING INPUT OUTPUT POSTROUTING A A-1 B";
        assert_eq!(names.join(" "), expected);
    }

    #[test]
    fn a_text_that_is_not_a_save_is_refused_with_its_line() {
        let unexpected = Ruleset::parse("*nat\n:A - [0:0]\n-D A -j B\n", IpFamily::V4);
        assert!(
            matches!(unexpected, Err(RulesetError::Unexpected { line: 3, .. })),
            "{unexpected:?}"
        );
        let no_chain = Ruleset::parse("*nat\n-A A -j B\n", IpFamily::V4);
        assert!(matches!(
            no_chain,
            Err(RulesetError::NoChain { line: 2, .. })
        ));
        assert!(Ruleset::parse("iptables: not found", IpFamily::V4).is_err());
    }

    #[test]
    fn chains_with_names_that_we_cannot_hold_are_left_out() {
        let text = "*nat\n:we@ird - [0:0]\n:A - [0:0]\n-A we@ird -j A\n-A A -j we@ird\nCOMMIT\n";
        let ruleset = Ruleset::parse(text, IpFamily::V4).unwrap();
        assert_eq!(ruleset.user_chains(Table::Nat).count(), 1);
        let rules = ruleset.rules(Table::Nat, ChainName::fixed("A"));
        assert!(matches!(rules, [SavedRule::Foreign(_)]));
    }
}
