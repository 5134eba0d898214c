//! The rules written last, and the plans that lead from them to the next.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use weft_model::ObjectKey;
use weft_proxy::{
    Desired, Service, Settings, SyncReport,
    backend::{RuleCount, WithoutLocalEndpoints},
};
use weft_ruleset::{ChainName, Rule, Table};

use crate::{
    backend::Options,
    baseline::Baseline,
    difference::Difference,
    expected::{Expected, service_rules},
    fixed,
    kernel::{Fingerprint, Kernel},
    plan::Plan,
    port_rules::PortRules,
    shared::SharedChain,
};

/// Above this number of endpoints, rules of single endpoints have no comments.
const LARGE_CLUSTER_ENDPOINTS: usize = 1000;

/// Up to this number of changes a shared chain is edited rule by rule; above it, rewriting the
/// chain is cheaper.
const EDIT_LIMIT: usize = 64;

/// The rules in the kernel as this process wrote them.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    services: HashMap<ObjectKey, Applied>,
    /// Endpoints of all Services together.
    endpoints: usize,
    without_local_endpoints: WithoutLocalEndpoints,
    pub(crate) expected: Expected,
    /// The kernel's own hashes of them, where it has any.
    pub(crate) baseline: Option<Baseline>,
    /// The kernel's fingerprint when it last had the expected rules. An exact one does not change
    /// with our own writes.
    pub(crate) fingerprint: Option<Fingerprint>,
    /// A partially written update.
    unfinished: Option<Unfinished>,
}

/// An update of which only some tables were written. All fields of the state but `services`
/// describe the update as if it had been written completely.
#[derive(Debug)]
struct Unfinished {
    written: BTreeSet<Table>,
    services: HashMap<ObjectKey, Option<Applied>>,
}

/// A Service as it was written.
#[derive(Clone, Debug)]
pub(crate) struct Applied {
    service: Arc<Service>,
    comments: bool,
}

/// The plan of a partial sync, and the Services as they are once it is written.
pub(crate) struct Update {
    pub(crate) plan: Plan,
    pub(crate) services: Vec<(ObjectKey, Option<Applied>)>,
}

impl State {
    pub(crate) fn of(desired: &Desired, settings: &Settings, options: Options) -> Self {
        let endpoints = desired.unordered().map(|s| s.endpoint_count()).sum();
        let comments = endpoints <= LARGE_CLUSTER_ENDPOINTS;
        let mut expected = Expected::without_services(settings, options);
        let mut services = HashMap::with_capacity(desired.len());
        let mut without_local_endpoints = WithoutLocalEndpoints::default();
        for (key, service) in desired {
            without_local_endpoints += WithoutLocalEndpoints::of(service);
            for port in service_rules(service, settings, options, comments) {
                expected.add(&port);
            }
            let applied = Applied {
                service: service.clone(),
                comments,
            };
            services.insert(key.clone(), applied);
        }
        Self {
            settings: settings.clone(),
            services,
            endpoints,
            without_local_endpoints,
            expected,
            baseline: None,
            fingerprint: None,
            unfinished: None,
        }
    }

    /// The rules of each Service; those of an update replace the ones before it.
    pub(crate) fn service_rules<'a>(
        &'a self,
        update: &'a [(ObjectKey, Option<Applied>)],
        options: Options,
    ) -> impl Iterator<Item = (&'a ObjectKey, Vec<PortRules>)> + 'a {
        let updated: BTreeSet<&ObjectKey> = update.iter().map(|(key, _)| key).collect();
        let others = self.services.iter();
        let others = others.filter(move |(key, _)| !updated.contains(key));
        let new = update
            .iter()
            .filter_map(|(key, new)| Some((key, new.as_ref()?)));
        new.chain(others)
            .map(move |(key, applied)| (key, self.rules_of(applied, options)))
    }

    /// Records that only these tables of an update were written.
    pub(crate) fn interrupt(
        &mut self,
        written: BTreeSet<Table>,
        services: Vec<(ObjectKey, Option<Applied>)>,
    ) {
        self.unfinished = Some(Unfinished {
            written,
            services: services.into_iter().collect(),
        });
    }

    /// True if an update was partially written and nothing was written since.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    fn rules_of(&self, applied: &Applied, options: Options) -> Vec<PortRules> {
        service_rules(&applied.service, &self.settings, options, applied.comments)
    }

    /// Plans to write all chains of a difference with their expected rules.
    pub(crate) fn plan(&self, difference: &Difference, options: Options) -> Plan {
        let mut plan = Plan::default();
        let is_wanted = |table, chain| difference.chains.contains(&(table, chain));
        for (table, chain, rules) in fixed::chains(&self.settings, options) {
            if is_wanted(table, chain) {
                plan.write(table, chain, &rules);
            }
        }
        // Not among the fixed chains where only its existence matters.
        if is_wanted(Table::Filter, fixed::FIREWALL) {
            plan.empty(Table::Filter, fixed::FIREWALL);
        }
        for chain in SharedChain::ALL {
            if is_wanted(chain.table(), chain.name()) {
                plan.empty(chain.table(), chain.name());
            }
        }
        if !difference.chains.is_empty() {
            self.plan_services(&mut plan, &is_wanted, options);
        }
        if is_wanted(Table::Nat, fixed::SERVICES) {
            for rule in fixed::node_port_tail(&self.settings) {
                plan.append(Table::Nat, fixed::SERVICES, &rule);
            }
        }
        for chain in &difference.stale {
            plan.remove(Table::Nat, *chain);
        }
        for jump in &difference.jumps {
            plan.insert_jump(jump);
        }
        plan
    }

    fn plan_services(
        &self,
        plan: &mut Plan,
        is_wanted: &impl Fn(Table, ChainName) -> bool,
        options: Options,
    ) {
        let mut services: Vec<(&ObjectKey, &Applied)> = self.services.iter().collect();
        services.sort_by_key(|(key, _)| *key);
        for (_, applied) in services {
            for port in self.rules_of(applied, options) {
                for (chain, rules) in &port.groups {
                    if is_wanted(chain.table(), chain.name()) {
                        for rule in rules {
                            plan.append(chain.table(), chain.name(), rule);
                        }
                    }
                }
                for (chain, rules) in &port.chains {
                    if is_wanted(Table::Nat, *chain) {
                        plan.write(Table::Nat, *chain, rules);
                    }
                }
            }
        }
    }

    /// Plans the change of some Services. The expected rules change at once: if the write fails,
    /// nothing is known of the plan's chains, and the expectation of all others is the same as
    /// before.
    ///
    /// After a partially written update, the plan starts from what was written of it.
    pub(crate) fn update(
        &mut self,
        desired: &Desired,
        changed: &BTreeSet<ObjectKey>,
        options: Options,
    ) -> Update {
        let unfinished = self.unfinished.take();
        let mut changed: BTreeSet<&ObjectKey> = changed.iter().collect();
        changed.extend(unfinished.iter().flat_map(|former| former.services.keys()));
        let (services, settings) = (&self.services, &self.settings);
        // The expected value, and the one in tables that were not written.
        let former = |key: &ObjectKey| {
            let written = services.get(key);
            let expected = unfinished.as_ref().and_then(|u| u.services.get(key));
            (expected.map_or(written, Option::as_ref), written)
        };
        let mut endpoints = self.endpoints;
        let mut without_local_endpoints = self.without_local_endpoints;
        for key in &changed {
            if let (Some(old), _) = former(key) {
                endpoints -= old.service.endpoint_count();
                without_local_endpoints -= WithoutLocalEndpoints::of(&old.service);
            }
            if let Some(new) = desired.get(key) {
                endpoints += new.endpoint_count();
                without_local_endpoints += WithoutLocalEndpoints::of(new);
            }
        }
        let comments = endpoints <= LARGE_CLUSTER_ENDPOINTS;
        let mut update = Update {
            plan: Plan::default(),
            services: Vec::with_capacity(changed.len()),
        };
        let mut edits = Edits::default();
        for key in changed {
            let new = desired.get(key).map(|service| Applied {
                service: service.clone(),
                comments,
            });
            let rules = |applied: Option<&Applied>| {
                applied.map_or_else(Vec::new, |applied| {
                    service_rules(&applied.service, settings, options, applied.comments)
                })
            };
            let (expected, written) = former(key);
            let (expected, after) = (rules(expected), rules(new.as_ref()));
            let unwritten = unfinished.is_some().then(|| rules(written));
            let before = |table: Table| match (&unfinished, &unwritten) {
                (Some(former), Some(rules)) if !former.written.contains(&table) => rules,
                _ => &expected,
            };
            plan_chains(&mut update.plan, before(Table::Nat), &after);
            edits.compare(|chain| before(chain.table()).as_slice(), &after);
            for port in &expected {
                self.expected.remove(port);
            }
            for port in &after {
                self.expected.add(port);
            }
            update.services.push((key.clone(), new));
        }
        self.endpoints = endpoints;
        self.without_local_endpoints = without_local_endpoints;
        self.plan_edits(&mut update, &edits, options);
        update
    }

    /// True if the fingerprint is inexact (it changes with our own writes) and has not changed.
    pub(crate) fn matches_inexact(&self, kernel: &mut impl Kernel) -> bool {
        self.is_inexact() && kernel.fingerprint() == self.fingerprint
    }

    /// True if the fingerprint is exact (it does not change with our own writes) and has not
    /// changed: no other process wrote.
    pub(crate) fn matches_exact(&self, kernel: &mut impl Kernel) -> bool {
        let exact = self.fingerprint.as_ref().filter(|f| f.exact);
        exact.is_some_and(|then| kernel.fingerprint().as_ref() == Some(then))
    }

    /// Reads the fingerprint again after our own write, if it is inexact.
    pub(crate) fn refresh_inexact(&mut self, kernel: &mut impl Kernel) {
        if self.is_inexact() {
            self.fingerprint = kernel.fingerprint();
        }
    }

    fn is_inexact(&self) -> bool {
        self.fingerprint.as_ref().is_some_and(|f| !f.exact)
    }

    /// Records that an update was written.
    pub(crate) fn accept(&mut self, services: Vec<(ObjectKey, Option<Applied>)>) {
        for (key, applied) in services {
            match applied {
                Some(applied) => self.services.insert(key, applied),
                None => self.services.remove(&key),
            };
        }
    }

    fn plan_edits(&self, update: &mut Update, edits: &Edits, options: Options) {
        let mut rewritten = BTreeSet::new();
        for (chain, edit) in &edits.0 {
            if edit.deletions.len() + edit.insertions.len() > EDIT_LIMIT {
                rewritten.insert(*chain);
                continue;
            }
            for rule in &edit.deletions {
                update.plan.delete(chain.table(), chain.name(), rule);
            }
            update
                .plan
                .insert(chain.table(), chain.name(), &edit.insertions);
        }
        if rewritten.is_empty() {
            return;
        }
        self.rewrite(update, &rewritten, options);
    }

    fn rewrite(&self, update: &mut Update, chains: &BTreeSet<SharedChain>, options: Options) {
        for chain in chains {
            update.plan.empty(chain.table(), chain.name());
        }
        let changed: HashMap<&ObjectKey, Option<&Applied>> = update
            .services
            .iter()
            .map(|(key, applied)| (key, applied.as_ref()))
            .collect();
        let unchanged = self.services.iter();
        let unchanged = unchanged.filter(|(key, _)| !changed.contains_key(key));
        let mut services: Vec<(&ObjectKey, &Applied)> = unchanged.collect();
        services.extend(
            changed
                .iter()
                .filter_map(|(key, new)| Some((*key, (*new)?))),
        );
        services.sort_by_key(|(key, _)| *key);
        let mut lines: Vec<(SharedChain, Rule)> = Vec::new();
        for (_, applied) in services {
            for port in self.rules_of(applied, options) {
                for (chain, rules) in port.groups {
                    if chains.contains(&chain) {
                        lines.extend(rules.into_iter().map(|rule| (chain, rule)));
                    }
                }
            }
        }
        if chains.contains(&SharedChain::NatServices) {
            let tail = fixed::node_port_tail(&self.settings);
            lines.extend(tail.into_iter().map(|r| (SharedChain::NatServices, r)));
        }
        for (chain, rule) in &lines {
            update.plan.append(chain.table(), chain.name(), rule);
        }
    }

    /// The report of a partial sync.
    pub(crate) fn report(&self, plan: &Plan, bytes: usize) -> SyncReport {
        let count = |table| RuleCount {
            total: self.expected.rules.get(&table).copied().unwrap_or_default(),
            written: plan.rules(table),
        };
        SyncReport {
            bytes,
            chains: plan.chain_count(),
            rules: [Table::Filter, Table::Nat]
                .map(|table| (table.as_str(), count(table)))
                .into(),
            without_local_endpoints: self.without_local_endpoints,
            ..SyncReport::default()
        }
    }
}

/// Writes the chains of a Service whose text changed, and removes those it no longer has.
fn plan_chains(plan: &mut Plan, before: &[PortRules], after: &[PortRules]) {
    fn chains(ports: &[PortRules]) -> HashMap<ChainName, &[Rule]> {
        let all = ports.iter().flat_map(|port| &port.chains);
        all.map(|(chain, rules)| (*chain, &**rules)).collect()
    }
    let (before, after) = (chains(before), chains(after));
    for (chain, rules) in &after {
        if before.get(chain) != Some(rules) {
            plan.write(Table::Nat, *chain, rules);
        }
    }
    for chain in before.keys().filter(|chain| !after.contains_key(*chain)) {
        plan.remove(Table::Nat, *chain);
    }
}

/// Changes of shared chains, gathered over all changed Services.
#[derive(Debug, Default)]
struct Edits(HashMap<SharedChain, Edit>);

#[derive(Debug, Default)]
struct Edit {
    deletions: Vec<Rule>,
    insertions: Vec<Rule>,
}

impl Edits {
    /// Collects the edits for one Service. A group that changed is deleted and inserted as a whole,
    /// so that its rules stay together.
    fn compare<'a>(
        &mut self,
        before: impl Fn(SharedChain) -> &'a [PortRules],
        after: &'a [PortRules],
    ) {
        for chain in SharedChain::ALL {
            let mut old: Vec<&[Rule]> = groups(before(chain), chain);
            let mut new: Vec<&[Rule]> = groups(after, chain);
            new.retain(|group| match old.iter().position(|o| o == group) {
                Some(position) => {
                    old.remove(position);
                    false
                }
                None => true,
            });
            if old.is_empty() && new.is_empty() {
                continue;
            }
            let edit = self.0.entry(chain).or_default();
            edit.deletions.extend(old.concat());
            edit.insertions.extend(new.concat());
        }
    }
}

fn groups(ports: &[PortRules], chain: SharedChain) -> Vec<&[Rule]> {
    let groups = ports.iter().filter_map(|port| port.groups.get(&chain));
    groups.map(Vec::as_slice).collect()
}
