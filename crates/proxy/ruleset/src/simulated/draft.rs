//! A table under change: the commands between `*TABLE` and `COMMIT`.

use std::collections::{HashMap, hash_map};

use weft_model::IpFamily;

use super::RestoreFailure;
use crate::{Chain, ChainName, SavedRule, Table, ruleset::Chains};

/// A table between `*TABLE` and `COMMIT`.
pub(super) struct Draft {
    pub(super) table: Table,
    pub(super) family: IpFamily,
    pub(super) chains: Chains,
    /// Number of rules that jump to each chain. Counted on first use: most inputs delete no chain,
    /// and counting visits every rule of the table.
    references: Option<HashMap<ChainName, usize>>,
}

impl Draft {
    pub(super) fn new(table: Table, family: IpFamily, chains: Chains) -> Self {
        Self {
            table,
            family,
            chains,
            references: None,
        }
    }

    pub(super) fn existing(&self, name: ChainName) -> Result<&Chain, RestoreFailure> {
        self.chains.get(&name).ok_or(RestoreFailure::NoChain(name))
    }

    pub(super) fn create(&mut self, name: ChainName) -> Result<(), RestoreFailure> {
        if self.chains.contains_key(&name) {
            return Err(RestoreFailure::Exists(name));
        }
        self.chains.insert(name, Chain::default());
        Ok(())
    }

    pub(super) fn flush(&mut self, name: ChainName) -> Result<(), RestoreFailure> {
        let rules = std::mem::take(self.rules(name)?);
        for rule in &rules {
            self.forget(rule);
        }
        Ok(())
    }

    pub(super) fn flush_all(&mut self) {
        for chain in self.chains.values_mut() {
            chain.rules.clear();
        }
        self.references = None;
    }

    pub(super) fn delete(&mut self, name: ChainName) -> Result<(), RestoreFailure> {
        let chain = self.existing(name)?;
        if self.table.has_built_in(name) {
            return Err(RestoreFailure::BuiltIn(name));
        }
        if !chain.rules.is_empty() {
            return Err(RestoreFailure::NotEmpty(name));
        }
        if self.references().contains_key(&name) {
            return Err(RestoreFailure::Referenced(name));
        }
        self.chains.remove(&name);
        Ok(())
    }

    pub(super) fn delete_all(&mut self) -> Result<(), RestoreFailure> {
        let table = self.table;
        let names = self.chains.keys().copied();
        let names: Vec<_> = names.filter(|name| !table.has_built_in(*name)).collect();
        names.into_iter().try_for_each(|name| self.delete(name))
    }

    pub(super) fn append(
        &mut self,
        chain: ChainName,
        rule: SavedRule,
    ) -> Result<(), RestoreFailure> {
        let end = self.existing(chain)?.rules.len() + 1;
        self.insert(chain, end, rule)
    }

    /// Inserts at a position, counted from 1; the one after the last rule is allowed.
    pub(super) fn insert(
        &mut self,
        chain: ChainName,
        position: usize,
        rule: SavedRule,
    ) -> Result<(), RestoreFailure> {
        let length = self.existing(chain)?.rules.len();
        if !(1..=length + 1).contains(&position) {
            return Err(RestoreFailure::Position(chain));
        }
        if let (Some(references), Some(target)) = (&mut self.references, rule.jump()) {
            *references.entry(target).or_default() += 1;
        }
        self.rules(chain)?.insert(position - 1, rule);
        Ok(())
    }

    pub(super) fn remove(
        &mut self,
        chain: ChainName,
        rule: &SavedRule,
    ) -> Result<(), RestoreFailure> {
        let rules = &self.existing(chain)?.rules;
        match rules.iter().position(|candidate| candidate == rule) {
            Some(index) => self.remove_at(chain, index + 1),
            None => Err(RestoreFailure::NoRule(chain)),
        }
    }

    pub(super) fn remove_at(
        &mut self,
        chain: ChainName,
        position: usize,
    ) -> Result<(), RestoreFailure> {
        let rules = self.rules(chain)?;
        if !(1..=rules.len()).contains(&position) {
            return Err(RestoreFailure::Position(chain));
        }
        let rule = rules.remove(position - 1);
        self.forget(&rule);
        Ok(())
    }

    fn rules(&mut self, name: ChainName) -> Result<&mut Vec<SavedRule>, RestoreFailure> {
        match self.chains.get_mut(&name) {
            Some(chain) => Ok(&mut chain.rules),
            None => Err(RestoreFailure::NoChain(name)),
        }
    }

    /// Contains only chains that some rule jumps to.
    fn references(&mut self) -> &HashMap<ChainName, usize> {
        let chains = &self.chains;
        self.references.get_or_insert_with(|| {
            let mut references = HashMap::new();
            let rules = chains.values().flat_map(|chain| &chain.rules);
            for target in rules.filter_map(SavedRule::jump) {
                *references.entry(target).or_default() += 1;
            }
            references
        })
    }

    fn forget(&mut self, rule: &SavedRule) {
        let (Some(references), Some(target)) = (&mut self.references, rule.jump()) else {
            return;
        };
        if let hash_map::Entry::Occupied(mut count) = references.entry(target) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
