//! The checks that the kernel makes when a table is committed.

use std::collections::HashMap;

use super::RestoreFailure;
use crate::{Chain, ChainName, SavedRule, Table, Target, ruleset::Chains};

pub(super) fn check(table: Table, chains: &Chains) -> Result<(), RestoreFailure> {
    for (name, chain) in chains {
        if targets(chain).any(|target| !belongs(target, table)) {
            return Err(RestoreFailure::WrongTable(*name));
        }
    }
    for from in table.built_in_chains() {
        Walk {
            chains,
            from: *from,
            state: HashMap::new(),
        }
        .visit(*from)?;
    }
    Ok(())
}

fn targets(chain: &Chain) -> impl Iterator<Item = &Target> {
    let known = chain.rules.iter().filter_map(SavedRule::known);
    known.filter_map(|rule| rule.target.as_ref())
}

fn belongs(target: &Target, table: Table) -> bool {
    match target {
        Target::Reject(_) => table == Table::Filter,
        Target::Dnat(_) | Target::Masquerade { .. } => table == Table::Nat,
        Target::Jump(_)
        | Target::Accept
        | Target::Drop
        | Target::Return
        | Target::SetMark { .. } => true,
    }
}

/// Destinations are translated before routing, sources after it.
fn is_allowed(target: &Target, from: ChainName) -> bool {
    match target {
        Target::Dnat(_) => matches!(from.as_str(), "PREROUTING" | "OUTPUT"),
        Target::Masquerade { .. } => from.as_str() == "POSTROUTING",
        _ => true,
    }
}

#[derive(PartialEq, Eq)]
enum State {
    Open,
    Done,
}

/// All chains that a packet can reach from one built-in chain.
struct Walk<'a> {
    chains: &'a Chains,
    from: ChainName,
    state: HashMap<ChainName, State>,
}

impl<'a> Walk<'a> {
    /// Depth first with an explicit stack: a text can chain more jumps than a thread has stack.
    fn visit(mut self, start: ChainName) -> Result<(), RestoreFailure> {
        let mut open = vec![(start, self.enter(start)?)];
        while let Some((name, rest)) = open.last_mut() {
            let Some((rule, tail)) = rest.split_first() else {
                self.state.insert(*name, State::Done);
                open.pop();
                continue;
            };
            *rest = tail;
            let Some(target) = rule.jump() else { continue };
            match self.state.get(&target) {
                Some(State::Done) => {}
                Some(State::Open) => return Err(RestoreFailure::Loop(target)),
                None => open.push((target, self.enter(target)?)),
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: ChainName) -> Result<&'a [SavedRule], RestoreFailure> {
        self.state.insert(name, State::Open);
        // A foreign rule may name something that is not a chain.
        let Some(chain) = self.chains.get(&name) else {
            return Ok(&[]);
        };
        if targets(chain).any(|target| !is_allowed(target, self.from)) {
            return Err(RestoreFailure::WrongPlace {
                chain: name,
                from: self.from,
            });
        }
        Ok(&chain.rules)
    }
}
