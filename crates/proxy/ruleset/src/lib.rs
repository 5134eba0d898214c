//! iptables rules as values.
//!
//! A [`Rule`] prints in exactly one form: that of `iptables-save`. This form is also valid input of
//! `iptables-restore`, so the text that is written, the text that is read back and the text that is
//! hashed are the same.
//!
//! - [`Rule`], [`Match`], [`Target`]: build a rule and print it, or [`Rule::parse`] it back;
//! - [`Ruleset`]: the tables of one family, read from `iptables-save`; [`saved_lines`] to compare
//!   lines only;
//! - [`Ruleset::restore`]: applies input as `iptables-restore --noflush` does, without a kernel;
//! - `compare`, with the feature `comparison`: the differences between two rulesets that matter to a service proxy;
//! - [`Ruleset::trace`]: the possible outcomes for a packet, with probability and path.
//!
//! Nothing here touches a kernel.

mod chain;
mod comment;
#[cfg(feature = "comparison")]
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
pub mod trace;
mod words;

pub use chain::{ChainName, InvalidChainName};
pub use comment::{Comment, InvalidComment};
#[cfg(feature = "comparison")]
pub use comparison::{ComparisonOptions, Difference, Group, Side, compare};
pub use lines::{Line, SavedLines, saved_lines};
pub use matches::{
    AddressType, ConntrackStates, Interface, InvalidInterface, Match, NfacctName, Probability,
    Recent,
};
pub use parse::ParseError;
pub use rule::{Negatable, Rule, host};
pub use ruleset::{Chain, ChainPolicy, Ruleset, RulesetError};
pub use saved_rule::SavedRule;
pub use simulated::{RestoreError, RestoreFailure};
pub use table::Table;
pub use target::Target;

pub(crate) use matches::recent_mask;
