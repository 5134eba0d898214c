//! A simulation of `iptables-restore --noflush` without a kernel.
//!
//! Close enough to test planners: the same inputs succeed and fail, with the same state afterwards.
//! A test in `tests/it` compares it with both real programs. Where those differ from each other,
//! the stricter one is followed:
//!
//! - a policy on a chain that is not built in is an error (nft ignores it);
//! - `-I CHAIN N` counts the rules that the chain has at that line (nft counts those it had before
//!   the input began, if the same input flushed the chain);
//! - `-F` without a chain does not undo what came before it in the same input (nft forgets rules
//!   that it has not sent yet, so that an `-X` between them and the `-F` succeeds);
//! - a loop that a packet could enter only behind an unconditional verdict is a loop (legacy sees
//!   that it cannot be entered).
//!
//! It is more lenient than both in one case: `-D` of a `recent` rule finds it whether or not it was
//! written with `--mask`. The kernel compares bits that no text shows.

use std::mem;

use crate::{
    ChainName, ChainPolicy, InvalidChainName, ParseError, Rule, Ruleset, SavedRule, Table, Target,
    lines::without_counters, parse::is_target_name, ruleset::empty,
};

mod check;
mod draft;

use draft::Draft;

/// A refused input: the line and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} failed")]
pub struct RestoreError {
    /// Number of the line, from 1. For errors that only show in the complete table it is the line
    /// of `COMMIT`, as with iptables-legacy-restore.
    pub line: usize,
    /// The cause.
    #[source]
    pub reason: RestoreFailure,
}

/// The reason why a line of an input is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreFailure {
    /// A line before `*TABLE` or after `COMMIT`.
    #[error("the line is outside of a table")]
    NoTable,
    /// A table that is not supported.
    #[error("table {0:?} is not supported")]
    UnknownTable(String),
    /// Neither a chain declaration nor a supported command.
    #[error("{0:?} is not a supported command")]
    UnknownCommand(String),
    /// An invalid chain name.
    #[error(transparent)]
    ChainName(#[from] InvalidChainName),
    /// A chain with the name of a target.
    #[error("chain name {0} is the name of a target")]
    TargetName(ChainName),
    /// A policy that does not exist, or not for this chain.
    #[error("{0:?} is not a policy of chain {1}")]
    Policy(String, ChainName),
    /// `-N` of a chain that exists.
    #[error("chain {0} exists already")]
    Exists(ChainName),
    /// A command for a chain that does not exist.
    #[error("chain {0} does not exist")]
    NoChain(ChainName),
    /// `-X` of a chain with rules.
    #[error("chain {0} has rules")]
    NotEmpty(ChainName),
    /// `-X` of a chain that rules jump to.
    #[error("rules jump to chain {0}")]
    Referenced(ChainName),
    /// `-X` of, or a jump to, a built-in chain.
    #[error("chain {0} is built in")]
    BuiltIn(ChainName),
    /// `-D` of a rule that the chain does not have.
    #[error("chain {0} has no such rule")]
    NoRule(ChainName),
    /// A rule number that is out of range.
    #[error("chain {0} has no rule of that number")]
    Position(ChainName),
    /// A rule that is not supported.
    #[error(transparent)]
    Rule(#[from] ParseError),
    /// A port to translate to, without a protocol that has ports.
    #[error("a destination port needs a protocol")]
    NoProtocol,
    /// `-j DROP` in the nat table, which iptables refuses.
    #[error("target DROP is not allowed in the nat table")]
    DropInNat,
    /// An input interface in a chain where packets do not arrive.
    #[error("-i is not allowed in chain {0}: packets do not arrive there")]
    NoArrival(ChainName),
    /// A target that this table does not have.
    #[error("target of chain {0} does not exist in this table")]
    WrongTable(ChainName),
    /// A target in a place where the kernel does not allow it.
    #[error("target of chain {chain} is not allowed on the way from {from}")]
    WrongPlace {
        /// The chain of the target.
        chain: ChainName,
        /// The built-in chain that leads there.
        from: ChainName,
    },
    /// Chains that jump in a loop.
    #[error("chain {0} jumps back to itself")]
    Loop(ChainName),
    /// The input ends in the middle of a table.
    #[error("COMMIT expected")]
    CommitExpected,
}

impl Ruleset {
    /// Applies an input as `iptables-restore --noflush` does.
    ///
    /// Tables are applied one by one at their `COMMIT`. After an error, tables before the failing
    /// one are changed; that one and those after it are not.
    pub fn restore(&mut self, input: &str) -> Result<(), RestoreError> {
        let mut draft = None;
        let mut end = 0;
        for (index, line) in input.lines().enumerate() {
            end = index + 1;
            self.line(&mut draft, line)
                .map_err(|reason| RestoreError { line: end, reason })?;
        }
        match draft {
            None => Ok(()),
            Some(_) => Err(RestoreError {
                line: end + 1,
                reason: RestoreFailure::CommitExpected,
            }),
        }
    }

    fn line(&mut self, draft: &mut Option<Draft>, line: &str) -> Result<(), RestoreFailure> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let Some(open) = draft else {
            let name = line.strip_prefix('*').ok_or(RestoreFailure::NoTable)?;
            *draft = Some(self.draft(name.trim_end())?);
            return Ok(());
        };
        if line.trim_end() != "COMMIT" {
            return command(open, line);
        }
        check::check(open.table, &open.chains)?;
        self.tables.insert(open.table, mem::take(&mut open.chains));
        *draft = None;
        Ok(())
    }

    fn draft(&self, name: &str) -> Result<Draft, RestoreFailure> {
        let table =
            Table::parse(name).ok_or_else(|| RestoreFailure::UnknownTable(name.to_owned()))?;
        let chains = self.tables.get(&table).cloned();
        let chains = chains.unwrap_or_else(|| empty(table));
        Ok(Draft::new(table, self.family(), chains))
    }
}

fn command(draft: &mut Draft, line: &str) -> Result<(), RestoreFailure> {
    if let Some(chain) = line.strip_prefix(':') {
        let mut words = chain.split_ascii_whitespace();
        let name = ChainName::parse(words.next().unwrap_or_default())?;
        return chain_line(draft, name, words.next().unwrap_or_default());
    }
    let (command, rest) = first_word(without_counters(line));
    let (chain, rest) = first_word(rest);
    if chain.is_empty() {
        return match command {
            "-F" => {
                draft.flush_all();
                Ok(())
            }
            "-X" => draft.delete_all(),
            _ => Err(RestoreFailure::UnknownCommand(line.to_owned())),
        };
    }
    let chain = ChainName::parse(chain)?;
    match command {
        "-N" if rest.is_empty() => draft.create(usable(chain)?),
        "-F" if rest.is_empty() => draft.flush(chain),
        "-X" if rest.is_empty() => draft.delete(chain),
        "-P" => set_policy(draft, chain, rest.trim_end()),
        "-A" => {
            let rule = rule(draft, chain, rest)?;
            draft.append(chain, rule)
        }
        "-I" => insert(draft, chain, rest),
        "-D" => delete_rule(draft, chain, rest),
        _ => Err(RestoreFailure::UnknownCommand(line.to_owned())),
    }
}

/// Creates or empties a chain. A built-in chain keeps its rules: the line only sets its policy.
fn chain_line(draft: &mut Draft, name: ChainName, policy: &str) -> Result<(), RestoreFailure> {
    if policy.is_empty() {
        return Err(RestoreFailure::Policy(policy.to_owned(), name));
    }
    if policy != "-" {
        return set_policy(draft, name, policy);
    }
    if draft.table.has_built_in(name) {
        return Ok(());
    }
    if draft.chains.contains_key(&name) {
        draft.flush(name)
    } else {
        draft.create(usable(name)?)
    }
}

fn set_policy(draft: &mut Draft, name: ChainName, policy: &str) -> Result<(), RestoreFailure> {
    let refused = || RestoreFailure::Policy(policy.to_owned(), name);
    let value = ChainPolicy::parse(policy).ok_or_else(refused)?;
    let built_in = draft.table.has_built_in(name);
    let chain = draft.chains.get_mut(&name).filter(|_| built_in);
    chain.ok_or_else(refused)?.policy = Some(value);
    Ok(())
}

fn insert(draft: &mut Draft, chain: ChainName, rest: &str) -> Result<(), RestoreFailure> {
    let (position, text) = match numbered(rest) {
        Some((position, text)) => (position, text),
        None => (1, rest),
    };
    let rule = rule(draft, chain, text)?;
    draft.insert(chain, position, rule)
}

fn delete_rule(draft: &mut Draft, chain: ChainName, rest: &str) -> Result<(), RestoreFailure> {
    if let Some((position, "")) = numbered(rest) {
        return draft.remove_at(chain, position);
    }
    let rule = SavedRule::parse(draft.family, rest);
    draft.remove(chain, &rule)
}

/// Parses a rule for this chain. An unsupported one is refused: planners built on this crate never
/// write such a rule, so it is a mistake.
fn rule(draft: &Draft, chain: ChainName, text: &str) -> Result<SavedRule, RestoreFailure> {
    let rule = Rule::parse_for(draft.family, text)?;
    if matches!(rule.target, Some(Target::Dnat(_))) && rule.protocol.is_none() {
        return Err(RestoreFailure::NoProtocol);
    }
    if (draft.table, &rule.target) == (Table::Nat, &Some(Target::Drop)) {
        return Err(RestoreFailure::DropInNat);
    }
    if rule.in_interface.is_some() && matches!(chain.as_str(), "OUTPUT" | "POSTROUTING") {
        return Err(RestoreFailure::NoArrival(chain));
    }
    if let Some(target) = rule.jump() {
        if draft.table.has_built_in(target) {
            return Err(RestoreFailure::BuiltIn(target));
        }
        draft.existing(target)?;
    }
    draft.existing(chain)?;
    Ok(SavedRule::Known(rule))
}

fn usable(name: ChainName) -> Result<ChainName, RestoreFailure> {
    if is_target_name(name.as_str()) {
        return Err(RestoreFailure::TargetName(name));
    }
    Ok(name)
}

/// A number before a rule.
fn numbered(rest: &str) -> Option<(usize, &str)> {
    let (word, text) = first_word(rest);
    Some((word.parse().ok()?, text))
}

fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim_start_matches(' ');
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    (word, rest.trim_start_matches(' '))
}

#[cfg(test)]
mod tests;
