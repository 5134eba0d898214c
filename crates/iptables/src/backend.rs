//! Keeps track of what was written, and writes what differs.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use weft_model::ObjectKey;
use weft_proxy::{
    AuditReport, Backend, Desired, Scope, Service, Settings, SyncError, SyncReport,
    backend::{RuleCount, WithoutLocalEndpoints},
};
use weft_ruleset::{ChainName, Rule, Table};

use crate::{
    difference::{Difference, Finding},
    expected::{Expected, service_rules},
    fixed,
    kernel::{Fingerprint, Kernel},
    observed::{Observed, Reader},
    plan::Plan,
    port_rules::PortRules,
    shared::SharedChain,
};

/// More endpoints than these, and rules of single endpoints do without comments.
const LARGE_CLUSTER_ENDPOINTS: usize = 1000;

/// Single edits of a shared chain up to this number; above, writing it anew is cheaper.
const EDIT_LIMIT: usize = 64;

/// From this number of Services on, a kernel without any gets the most important ones first.
const URGENT_FIRST: usize = 500;

/// What the host's iptables and kernel can do.
#[expect(
    clippy::struct_excessive_bools,
    reason = "abilities that are independent of each other"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether `MASQUERADE --random-fully` is known.
    pub random_fully: bool,
    /// Whether packets that belong to no connection are dropped.
    pub drop_invalid: bool,
    /// Whether packets can be counted by nfacct.
    pub nfacct: bool,
    /// Whether only what changed is written. Without, every sync writes everything.
    pub minimize: bool,
}

/// Programs Services as iptables rules, for one family.
#[derive(Debug)]
pub struct Iptables<K> {
    kernel: K,
    options: Options,
    /// What is in the kernel, as far as we know. `None` before the first sync and after a failure.
    state: Option<State>,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    services: HashMap<ObjectKey, Applied>,
    /// Endpoints of all Services together.
    endpoints: usize,
    without_local_endpoints: WithoutLocalEndpoints,
    expected: Expected,
    fingerprint: Option<Fingerprint>,
}

/// A Service as it was written.
#[derive(Clone, Debug)]
struct Applied {
    service: Arc<Service>,
    comments: bool,
}

impl<K: Kernel> Iptables<K> {
    /// A backend that knows nothing of the kernel's state yet.
    pub fn new(kernel: K, options: Options) -> Self {
        Self {
            kernel,
            options,
            state: None,
        }
    }

    /// The kernel it writes to.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    fn full(&mut self, desired: &Desired, settings: &Settings) -> Result<SyncReport, SyncError> {
        self.state = None;
        let mut state = State::of(desired, settings, self.options);
        let observed = self.observe(&mut state)?;
        let fresh = !observed.shared.contains_key(&SharedChain::NatServices);
        if fresh && desired.len() >= URGENT_FIRST {
            let urgent = State::of(&urgent(desired), settings, self.options);
            self.write(urgent, &observed)?;
            let observed = self.observe(&mut state)?;
            return self.write(state, &observed);
        }
        self.write(state, &observed)
    }

    /// Makes the kernel agree with a state.
    fn write(&mut self, mut state: State, observed: &Observed) -> Result<SyncReport, SyncError> {
        let difference = if self.options.minimize {
            Difference::between(&state.expected, observed)
        } else {
            Difference::everything(&state.expected, observed)
        };
        let plan = state.plan(&difference, self.options);
        let bytes = self.apply(&plan)?;
        state.fingerprint = self.after_writing(state.fingerprint);
        let report = state.report(&plan, bytes, true);
        self.state = Some(state);
        Ok(report)
    }

    fn partial(
        &mut self,
        desired: &Desired,
        changed: &BTreeSet<ObjectKey>,
    ) -> Result<SyncReport, SyncError> {
        let options = self.options;
        let Some(state) = &mut self.state else {
            return Err(unknown());
        };
        let update = state.update(desired, changed, options);
        let plan = update.plan;
        let before = self.kernel.fingerprint();
        let bytes = self.apply(&plan)?;
        let after = self.after_writing(before.clone());
        let Some(state) = &mut self.state else {
            return Err(unknown());
        };
        for (key, applied) in update.services {
            match applied {
                Some(applied) => state.services.insert(key, applied),
                None => state.services.remove(&key),
            };
        }
        // Somebody wrote since we last did: keep the old mark, so that the audit looks closely.
        if before == state.fingerprint && !plan.is_empty() {
            state.fingerprint = after;
        }
        Ok(state.report(&plan, bytes, false))
    }

    /// What stands for the rules once we have written, if `before` stood for them when we looked.
    ///
    /// An exact one still does. Asking again would take in what others wrote in the meantime.
    fn after_writing(&mut self, before: Option<Fingerprint>) -> Option<Fingerprint> {
        match before {
            Some(inexact) if !inexact.exact => self.kernel.fingerprint(),
            exact => exact,
        }
    }

    fn apply(&mut self, plan: &Plan) -> Result<usize, SyncError> {
        if plan.is_empty() {
            return Ok(0);
        }
        let input = plan.to_string();
        match self.kernel.restore(&input) {
            Ok(()) => Ok(input.len()),
            Err(error) => {
                self.state = None;
                Err(SyncError {
                    message: error.to_string(),
                    input: Some(input.into()),
                })
            }
        }
    }

    fn observe(&mut self, state: &mut State) -> Result<Observed, SyncError> {
        state.fingerprint = self.kernel.fingerprint();
        observe(&mut self.kernel, state)
    }
}

fn unknown() -> SyncError {
    SyncError {
        message: "the kernel's state is not known yet".to_owned(),
        input: None,
    }
}

fn observe(kernel: &mut impl Kernel, state: &State) -> Result<Observed, SyncError> {
    let mut reader = Reader::new(&state.expected, state.settings.family);
    kernel
        .save(&mut |line| reader.line(line))
        .map_err(|error| SyncError {
            message: error.to_string(),
            input: None,
        })?;
    Ok(reader.finish())
}

/// What a fresh kernel would be given, without a kernel.
pub fn render(desired: &Desired, settings: &Settings, options: Options) -> Plan {
    let state = State::of(desired, settings, options);
    let difference = Difference::everything(&state.expected, &Observed::default());
    state.plan(&difference, options)
}

/// Where a kernel differs from what is desired, and what would mend it. Writes nothing.
pub fn differences(
    kernel: &mut impl Kernel,
    desired: &Desired,
    settings: &Settings,
    options: Options,
) -> Result<(Vec<Finding>, Plan), SyncError> {
    let state = State::of(desired, settings, options);
    let observed = observe(kernel, &state)?;
    let difference = Difference::between(&state.expected, &observed);
    Ok((difference.describe(), state.plan(&difference, options)))
}

/// The API server and DNS: what everything else waits for.
fn urgent(desired: &Desired) -> Desired {
    const DNS_PORT: u16 = 53;
    let is_urgent = |service: &Service| {
        service.key == ObjectKey::namespaced("default", "kubernetes")
            || (service.key.namespace.as_deref() == Some("kube-system")
                && service.ports.iter().any(|p| p.frontend.port == DNS_PORT))
    };
    desired
        .iter()
        .filter(|(_, service)| is_urgent(service))
        .map(|(key, service)| (key.clone(), service.clone()))
        .collect()
}

impl<K: Kernel> Backend for Iptables<K> {
    fn sync(
        &mut self,
        desired: &Desired,
        settings: &Settings,
        scope: Scope<'_>,
    ) -> Result<SyncReport, SyncError> {
        self.kernel.take_spent();
        let known = self
            .state
            .as_ref()
            .is_some_and(|state| state.settings == *settings);
        let mut report = match scope {
            Scope::Changed(changed) if known && self.options.minimize => {
                match self.partial(desired, changed) {
                    Ok(report) => report,
                    Err(failure) => SyncReport {
                        partial_failure: Some(failure),
                        ..self.full(desired, settings)?
                    },
                }
            }
            _ => self.full(desired, settings)?,
        };
        report.children = self.kernel.take_spent();
        Ok(report)
    }

    fn audit(&mut self, may_read: bool) -> Result<AuditReport, SyncError> {
        let Some(state) = &self.state else {
            return Ok(AuditReport::Postponed);
        };
        let fingerprint = self.kernel.fingerprint();
        let same = fingerprint.is_some() && fingerprint == state.fingerprint;
        if same && fingerprint.as_ref().is_some_and(|f| f.exact) {
            return Ok(AuditReport::Unchanged);
        }
        if !may_read {
            return Ok(if same {
                AuditReport::Unchanged
            } else {
                AuditReport::Postponed
            });
        }
        let observed = observe(&mut self.kernel, state)?;
        let difference = Difference::between(&state.expected, &observed);
        let mut fingerprint = fingerprint;
        if !difference.is_empty() {
            let plan = state.plan(&difference, self.options);
            self.apply(&plan)?;
            fingerprint = self.after_writing(fingerprint);
        }
        if let Some(state) = &mut self.state {
            state.fingerprint = fingerprint;
        }
        let repaired = difference.describe();
        Ok(AuditReport::Read {
            repaired: repaired.iter().map(ToString::to_string).collect(),
        })
    }
}

/// A partial sync: what to write, and what is true once it is written.
struct Update {
    plan: Plan,
    services: Vec<(ObjectKey, Option<Applied>)>,
}

impl State {
    fn of(desired: &Desired, settings: &Settings, options: Options) -> Self {
        let endpoints = desired.values().map(|s| s.endpoint_count()).sum();
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
            fingerprint: None,
        }
    }

    fn rules_of(&self, applied: &Applied, options: Options) -> Vec<PortRules> {
        service_rules(&applied.service, &self.settings, options, applied.comments)
    }

    /// Writes all chains of a difference, with the content they should have.
    fn plan(&self, difference: &Difference, options: Options) -> Plan {
        let mut plan = Plan::default();
        let is_wanted = |table, chain| difference.chains.contains(&(table, chain));
        for (table, chain, rules) in fixed::chains(&self.settings, options) {
            if is_wanted(table, chain) {
                plan.write(table, chain, &rules);
            }
        }
        // Not among the fixed ones where its content is nobody's business.
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
            plan.insert(jump.table, jump.from, std::slice::from_ref(&jump.rule));
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

    /// Plans the change of some Services. What is expected afterwards is noted at once: should the
    /// write fail, nothing is known any more anyway.
    fn update(
        &mut self,
        desired: &Desired,
        changed: &BTreeSet<ObjectKey>,
        options: Options,
    ) -> Update {
        for key in changed {
            if let Some(old) = self.services.get(key) {
                self.endpoints -= old.service.endpoint_count();
                self.without_local_endpoints -= WithoutLocalEndpoints::of(&old.service);
            }
            if let Some(new) = desired.get(key) {
                self.endpoints += new.endpoint_count();
                self.without_local_endpoints += WithoutLocalEndpoints::of(new);
            }
        }
        let comments = self.endpoints <= LARGE_CLUSTER_ENDPOINTS;
        let mut update = Update {
            plan: Plan::default(),
            services: Vec::with_capacity(changed.len()),
        };
        let mut edits = Edits::default();
        for key in changed {
            let old = self.services.get(key).cloned();
            let new = desired.get(key).map(|service| Applied {
                service: service.clone(),
                comments,
            });
            let rules = |applied: &Option<Applied>| {
                applied
                    .as_ref()
                    .map_or_else(Vec::new, |applied| self.rules_of(applied, options))
            };
            let (before, after) = (rules(&old), rules(&new));
            for port in &before {
                self.expected.remove(port);
            }
            for port in &after {
                self.expected.add(port);
            }
            plan_chains(&mut update.plan, &before, &after);
            edits.compare(&before, &after);
            update.services.push((key.clone(), new));
        }
        self.plan_edits(&mut update, &edits, options);
        update
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

    fn report(&self, plan: &Plan, bytes: usize, full: bool) -> SyncReport {
        let count = |table| RuleCount {
            total: self.expected.rules.get(&table).copied().unwrap_or_default(),
            written: plan.rules(table),
        };
        SyncReport {
            full,
            bytes,
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
    /// A group that changed is deleted as a whole and inserted anew, so it stays in one piece.
    fn compare(&mut self, before: &[PortRules], after: &[PortRules]) {
        for chain in SharedChain::ALL {
            let mut old: Vec<&[Rule]> = groups(before, chain);
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
