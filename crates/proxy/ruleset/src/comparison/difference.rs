//! Differences between two rulesets as values, and as text.

use std::fmt;

use weft_model::Protocol;

use crate::{ChainName, SavedRule, Table};

/// One of the two rulesets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The reference.
    Expected,
    /// The ruleset that was compared with the reference.
    Found,
}

/// The rules of one service port in a shared chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    /// `namespace/name` or `namespace/name:port`, from the comment.
    pub name: Box<str>,
    /// The protocol that the rules match.
    pub protocol: Option<Protocol>,
}

/// One difference between two rulesets; prints as a line for people.
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
        /// First position with another rule, from 1; in a built-in chain only jumps to the proxy's
        /// chains count.
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
        /// The service port.
        group: Group,
        /// Their order in the expected ruleset.
        expected: Vec<SavedRule>,
        /// Their order in the found ruleset.
        found: Vec<SavedRule>,
    },
    /// Rules of a service port with rules of another one between them.
    GroupScattered {
        /// Table of the chain.
        table: Table,
        /// The shared chain.
        chain: ChainName,
        /// The service port.
        group: Group,
        /// The ruleset with this defect.
        side: Side,
    },
    /// A jump for node ports that is followed by rules of Services, which it would hide.
    TailNotLast {
        /// Table of the chain.
        table: Table,
        /// The shared chain.
        chain: ChainName,
        /// The jump.
        rule: SavedRule,
        /// The ruleset with this defect.
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
                "{table} {chain}: rules of {group} are not contiguous ({side})"
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
