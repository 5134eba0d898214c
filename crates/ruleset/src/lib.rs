//! iptables rules as values.
//!
//! A [`Rule`] prints itself in exactly one form: the one in which `iptables-save` prints it. That
//! form is valid input of `iptables-restore` too, so what we write, what we read back and what we
//! hash is the same text.

mod chain;
mod comment;
mod comparison;
mod lines;
mod matches;
mod parse;
mod rule;
mod ruleset;
mod saved_rule;
mod simulated;
mod table;
mod target;
mod words;

pub use chain::{ChainName, InvalidChainName};
pub use comment::{Comment, InvalidComment};
pub use comparison::{ComparisonOptions, Difference, Group, Side, compare};
pub use lines::{Line, SavedLines, saved_lines};
pub use matches::{
    AddressType, ConntrackStates, Interface, InvalidInterface, Match, NfacctName, Probability,
    Recent,
};
pub use parse::ParseError;
pub use rule::{Negatable, Rule, host};
pub use ruleset::{Chain, Policy, Ruleset, RulesetError};
pub use saved_rule::SavedRule;
pub use simulated::{RestoreError, RestoreFailure};
pub use table::Table;
pub use target::Target;

pub(crate) use matches::recent_mask;
