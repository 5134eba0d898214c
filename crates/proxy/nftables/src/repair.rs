//! Puts chains and rules back as they should be, whatever is there.

use std::collections::BTreeMap;

use weft_host::nftables::{Chain, Rule, TableChange};
use weft_model::IpFamily;
use weft_proxy::{Deviation, Repair, RepairedPart};

use crate::{
    collection::Dispatch,
    observed::{Observed, rules_by_chain},
    program::{Program, TABLE, pick, timeout},
    transaction::{Transaction, add_verdict, delete_verdict},
};

/// Creates the table with everything that is always there.
pub(crate) fn create(transaction: &mut Transaction, program: &Program) {
    transaction.create_table(program.ownership);
    let sets = program.sets.iter().cloned().map(TableChange::AddSet);
    transaction.before.extend(sets);
    let chains = program.chains.iter().cloned().map(TableChange::AddChain);
    transaction.before.extend(chains);
    let rules = program.rules.iter().cloned().map(TableChange::AddRule);
    transaction.before.extend(rules);
    for (dispatch, element) in &program.verdicts {
        let add = add_verdict(*dispatch, element.clone());
        transaction.before.push(add);
    }
}

/// Writes what differs from the program in a table whose sets are as they should be, and returns
/// what differed. Chains that come and go stay if they are intact.
pub(crate) fn repair(
    transaction: &mut Transaction,
    observed: &Observed,
    program: &Program,
    family: IpFamily,
) -> Vec<Repair> {
    let mut chains = program.chains.clone();
    let mut rules = program.rules.clone();
    let mut verdicts = program.verdicts.clone();
    let picks = observed.picks.iter().map(|count| pick(family, *count));
    let timeouts = observed.timeouts.iter();
    let timeouts = timeouts.map(|seconds| timeout(family, *seconds));
    for branch in picks.chain(timeouts) {
        chains.extend(branch.chains);
        rules.extend(branch.rules);
        verdicts.extend(branch.verdicts);
    }
    let mut findings = Vec::new();
    let mut changes = Changes::default();

    for (dispatch, elements) in &observed.verdicts {
        for element in elements {
            if !verdicts.contains(&(*dispatch, element.clone())) {
                findings.push(verdict_map(*dispatch, Deviation::LeftOver));
                let delete = delete_verdict(*dispatch, element.key);
                changes.verdicts_gone.push(delete);
            }
        }
    }
    for (dispatch, element) in &verdicts {
        let there = observed.verdicts.get(dispatch);
        if !there.is_some_and(|there| there.contains(element)) {
            findings.push(verdict_map(*dispatch, Deviation::Differs));
            changes
                .verdicts
                .push(add_verdict(*dispatch, element.clone()));
        }
    }
    let expected_rules = rules_by_chain(&rules);
    let actual_rules = rules_by_chain(&observed.structure.rules);
    let actual: BTreeMap<&str, &Chain> = by_name(&observed.structure.chains);
    let expected: BTreeMap<&str, &Chain> = by_name(&chains);
    for (name, chain) in &actual {
        let is_kept = expected.get(name) == Some(chain);
        let same_rules = expected_rules.get(name) == actual_rules.get(name);
        if is_kept && same_rules {
            continue;
        }
        let deviation = if expected.contains_key(name) {
            Deviation::Differs
        } else {
            Deviation::LeftOver
        };
        findings.push(chain_repair(name, deviation));
        if actual_rules.contains_key(name) {
            changes
                .flushes
                .push(TableChange::FlushChain((*name).to_owned()));
        }
        if !is_kept {
            changes
                .chains_gone
                .push(TableChange::DeleteChain((*name).to_owned()));
        }
    }
    for chain in &chains {
        let name: &str = &chain.name;
        let is_there = actual.get(name) == Some(&chain);
        if !is_there {
            if !actual.contains_key(name) {
                findings.push(chain_repair(name, Deviation::Differs));
            }
            changes.chains.push(TableChange::AddChain(chain.clone()));
        }
        if !is_there || expected_rules.get(name) != actual_rules.get(name) {
            let rules = expected_rules.get(name).into_iter().flatten();
            let rules = rules.map(|rule| TableChange::AddRule(Rule::clone(rule)));
            changes.rules.extend(rules);
        }
    }
    transaction.before.extend(changes.in_order());
    findings
}

fn chain_repair(chain: &str, deviation: Deviation) -> Repair {
    Repair {
        table: TABLE,
        part: RepairedPart::Chain(chain.into()),
        deviation,
    }
}

fn verdict_map(dispatch: Dispatch, deviation: Deviation) -> Repair {
    Repair {
        table: TABLE,
        part: RepairedPart::VerdictMap(dispatch.name()),
        deviation,
    }
}

/// Changes by kind, each of which needs those before it.
#[derive(Default)]
struct Changes {
    verdicts_gone: Vec<TableChange>,
    flushes: Vec<TableChange>,
    chains_gone: Vec<TableChange>,
    chains: Vec<TableChange>,
    rules: Vec<TableChange>,
    verdicts: Vec<TableChange>,
}

impl Changes {
    fn in_order(self) -> impl Iterator<Item = TableChange> {
        let gone = self.verdicts_gone.into_iter().chain(self.flushes);
        let gone = gone.chain(self.chains_gone);
        let new = self.chains.into_iter().chain(self.rules);
        gone.chain(new).chain(self.verdicts)
    }
}

fn by_name(chains: &[Chain]) -> BTreeMap<&str, &Chain> {
    let named = chains.iter().map(|chain| (&*chain.name, chain));
    named.collect()
}
