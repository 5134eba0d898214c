//! iptables rules as values.
//!
//! A [`Rule`] prints itself in exactly one form: the one in which `iptables-save` prints it. That
//! form is valid input of `iptables-restore` too, so what we write, what we read back and what we
//! hash is the same text.
//!
//! - [`Rule`], [`Match`], [`Target`]: build a rule and print it, or [`Rule::parse`] it back;
//! - [`Ruleset`]: the tables of one family, read from `iptables-save`; [`saved_lines`] for those
//!   who only compare lines;
//! - [`Ruleset::restore`]: what `iptables-restore --noflush` would do, without a kernel;
//! - [`compare`]: in what two rulesets differ that matters to a service proxy;
//! - [`Ruleset::trace`]: what happens to a packet, with which probability and why.
//!
//! Nothing here touches a kernel.

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
mod trace;
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
pub use trace::{Action, Chance, Doubt, Entry, Outcome, Packet, Step, Verdict};

pub(crate) use matches::recent_mask;
