use std::fmt;

use weft_model::Protocol;

use crate::{ChainName, SavedRule, Table};

/// Which of the two rulesets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that was compared with.
    Expected,
    /// The one that was looked at.
    Found,
}

/// The rules of one service port in a chain that all share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// `namespace/name` or `namespace/name:port`, from the comment.
    pub name: Box<str>,
    /// The protocol that the rules ask for.
    pub protocol: Option<Protocol>,
}

/// One thing in which two rulesets differ; prints as a line for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A chain that only the expected ruleset has.
    MissingChain {
        /// Its table.
        table: Table,
        /// Its name.
        chain: ChainName,
    },
    /// A chain that only the found ruleset has.
    ExtraChain {
        /// Its table.
        table: Table,
        /// Its name.
        chain: ChainName,
    },
    /// A rule that only the expected chain has, or has more often.
    MissingRule {
        /// Table of the chain.
        table: Table,
        /// The chain.
        chain: ChainName,
        /// The rule.
        rule: SavedRule,
    },
    /// A rule that only the found chain has, or has more often.
    ExtraRule {
        /// Table of the chain.
        table: Table,
        /// The chain.
        chain: ChainName,
        /// The rule.
        rule: SavedRule,
    },
    /// The same rules in another order.
    Order {
        /// Table of the chain.
        table: Table,
        /// The chain.
        chain: ChainName,
        /// Where the order differs first, from 1; in a built-in chain only our jumps count.
        position: usize,
        /// The rule that should be there.
        expected: SavedRule,
        /// The rule that is there.
        found: SavedRule,
    },
    /// The same rules of a service port in another order among themselves.
    GroupOrder {
        /// Table of the chain.
        table: Table,
        /// The shared chain.
        chain: ChainName,
        /// Whose rules.
        group: Group,
        /// Their order as it should be.
        expected: Vec<SavedRule>,
        /// Their order as it is.
        found: Vec<SavedRule>,
    },
    /// Rules of a service port with another one's between them.
    GroupScattered {
        /// Table of the chain.
        table: Table,
        /// The shared chain.
        chain: ChainName,
        /// Whose rules.
        group: Group,
        /// In which ruleset.
        side: Side,
    },
    /// A jump for node ports that has rules of Services behind it, which it would hide.
    TailNotLast {
        /// Table of the chain.
        table: Table,
        /// The shared chain.
        chain: ChainName,
        /// The jump.
        rule: SavedRule,
        /// In which ruleset.
        side: Side,
    },
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expected => "expected",
            Self::Found => "found",
        })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Some(protocol) => write!(f, "{} ({protocol})", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingChain { table, chain } => {
                write!(f, "{table}: chain {chain} is missing")
            }
            Self::ExtraChain { table, chain } => {
                write!(f, "{table}: chain {chain} should not be there")
            }
            Self::MissingRule { table, chain, rule } => {
                write!(f, "{table} {chain}: missing rule: {rule}")
            }
            Self::ExtraRule { table, chain, rule } => {
                write!(f, "{table} {chain}: rule that should not be there: {rule}")
            }
            Self::Order {
                table,
                chain,
                position,
                expected,
                found,
            } => write!(
                f,
                "{table} {chain}: rules in another order from number {position} on: {found} \
                 (expected: {expected})"
            ),
            Self::GroupOrder {
                table,
                chain,
                group,
                expected,
                found,
            } => {
                write!(f, "{table} {chain}: rules of {group} in another order: ")?;
                list(f, found)?;
                f.write_str(" (expected: ")?;
                list(f, expected)?;
                f.write_str(")")
            }
            Self::GroupScattered {
                table,
                chain,
                group,
                side,
            } => write!(
                f,
                "{table} {chain}: rules of {group} do not stand together ({side})"
            ),
            Self::TailNotLast {
                table,
                chain,
                rule,
                side,
            } => write!(
                f,
                "{table} {chain}: jump for node ports is not last ({side}): {rule}"
            ),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, rules: &[SavedRule]) -> fmt::Result {
    let mut separator = "";
    for rule in rules {
        write!(f, "{separator}{rule}")?;
        separator = " | ";
    }
    Ok(())
}
