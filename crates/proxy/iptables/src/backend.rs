//! The iptables backend: tracks the rules that were written and writes those that differ.

use std::collections::BTreeSet;

use weft_model::{ObjectKey, error_text};
use weft_proxy::{
    AuditReport, Backend, Desired, ReadBudget, Repair, RuleOwner, Scope, Service, Settings,
    SyncError, SyncReport,
};
use weft_ruleset::Table;

use crate::{
    baseline::{Baseline, Reading},
    difference::Difference,
    expected::Expected,
    kernel::{Fingerprint, Kernel, KernelError},
    observed::{Observed, Reader},
    plan::Plan,
    refused::RefusedInput,
    shared::SharedChain,
    state::{Applied, State},
};

/// From this number of Services on, the most important ones are written first to a kernel without
/// rules.
const URGENT_FIRST: usize = 500;

/// Features of the host's iptables and kernel, and the mode of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// iptables supports `MASQUERADE --random-fully`.
    pub random_fully: bool,
    /// Drop packets in conntrack state INVALID.
    pub drop_invalid: bool,
    /// Rules can count packets with nfacct.
    pub nfacct: bool,
    /// The part of the rules that a sync writes.
    pub restore: RestoreScope,
}

/// The part of the rules that a sync writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreScope {
    /// Only what changed.
    Changes,
    /// All rules, each time.
    Everything,
}

/// Programs Services as iptables rules, for one family.
#[derive(Debug)]
pub struct Iptables<K> {
    kernel: K,
    options: Options,
    /// The rules in the kernel. `None` before the first sync and after a failure.
    state: Option<State>,
    /// Without a state, the part of the last one that is still valid.
    last_known: Option<LastKnown>,
    /// The kernel's rules after a full sync of which only some tables were accepted: reading them
    /// again could take longer than everything else.
    snapshot: Option<Snapshot>,
}

/// Still valid after a failed write: chains that no process touched have their expected rules.
#[derive(Debug)]
struct LastKnown {
    expected: Expected,
    baseline: Baseline,
}

/// The kernel's rules at one time.
#[derive(Debug)]
struct Snapshot {
    observed: Observed,
    /// Taken before reading, so that a write during the reading changes it.
    fingerprint: Option<Fingerprint>,
}

impl<K: Kernel> Iptables<K> {
    /// A backend that has not read the kernel's rules yet.
    pub fn new(kernel: K, options: Options) -> Self {
        Self {
            kernel,
            options,
            state: None,
            last_known: None,
            snapshot: None,
        }
    }

    /// The kernel interface that it writes to.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    fn full(&mut self, desired: &Desired, settings: &Settings) -> Result<SyncReport, SyncError> {
        self.discard_state();
        let state = State::of(desired, settings, self.options);
        let snapshot = match self.reusable_snapshot() {
            Some(snapshot) => snapshot,
            None => self.read_snapshot(&state)?,
        };
        let fresh = !snapshot
            .observed
            .shared
            .contains_key(&SharedChain::NatServices);
        if fresh && desired.len() >= URGENT_FIRST {
            let urgent = State::of(&urgent(desired), settings, self.options);
            self.write(urgent, snapshot)?;
            self.discard_state();
            let snapshot = self.read_snapshot(&state)?;
            return self.write(state, snapshot);
        }
        self.write(state, snapshot)
    }

    /// The snapshot of a refused full sync, unless another process wrote since.
    fn reusable_snapshot(&mut self) -> Option<Snapshot> {
        let snapshot = self.snapshot.take()?;
        let now = self.kernel.fingerprint();
        (now.is_some() && now == snapshot.fingerprint).then_some(snapshot)
    }

    /// Discards the state except for what is still valid after a failed write.
    fn discard_state(&mut self) {
        if let Some(state) = self.state.take() {
            let expected = state.expected;
            let known = |baseline| LastKnown { expected, baseline };
            self.last_known = state.baseline.map(known);
        }
    }

    /// Reads the kernel's rules for comparison with a state.
    fn read_snapshot(&mut self, state: &State) -> Result<Snapshot, SyncError> {
        let fingerprint = self.kernel.fingerprint();
        let reading = self.last_known.as_mut().and_then(|known| {
            let LastKnown { expected, baseline } = known;
            read_raw(&mut self.kernel, baseline, expected, state)
        });
        let observed = if let Some(reading) = reading {
            reading.observed
        } else {
            self.last_known = None;
            read_text(&mut self.kernel, state)?
        };
        Ok(Snapshot {
            observed,
            fingerprint,
        })
    }

    /// Brings the kernel to a state.
    fn write(&mut self, mut state: State, mut snapshot: Snapshot) -> Result<SyncReport, SyncError> {
        let difference = if self.options.restore == RestoreScope::Changes {
            Difference::between(&state.expected, &snapshot.observed)
        } else {
            Difference::everything(&state.expected, &snapshot.observed)
        };
        let plan = state.plan(&difference, self.options);
        if let Some(known) = &mut self.last_known {
            known.baseline.touch(&plan);
        }
        let bytes = match apply(&mut self.kernel, &plan) {
            Ok(bytes) => bytes,
            Err(failure) => {
                let Attributed { error, written } = failure.attribute(&state, &[], self.options);
                if let Some(written) = written {
                    snapshot.mark_written(&plan, &written, &state.expected);
                    if snapshot.fingerprint.as_ref().is_some_and(|f| !f.exact) {
                        snapshot.fingerprint = self.kernel.fingerprint();
                    }
                    self.snapshot = Some(snapshot);
                }
                return Err(error);
            }
        };
        state.baseline = self.last_known.take().map(|known| known.baseline);
        state.fingerprint = snapshot.fingerprint;
        state.refresh_inexact(&mut self.kernel);
        let report = SyncReport {
            full: true,
            ..state.report(&plan, bytes)
        };
        self.state = Some(state);
        self.record_baseline();
        Ok(report)
    }

    /// Records the kernel's hashes of what was written.
    fn record_baseline(&mut self) {
        // If every sync writes everything, no comparison is needed.
        if self.options.restore == RestoreScope::Everything {
            return;
        }
        if let Some(state) = &mut self.state {
            let since = state.fingerprint.as_ref();
            let recorded = Baseline::record(&mut state.baseline, &mut self.kernel, since);
            if let Err(error) = recorded {
                tracing::warn!(
                    error = error_text(&error),
                    "cannot record the kernel's hashes of the rules"
                );
            }
        }
    }

    fn partial(
        &mut self,
        desired: &Desired,
        changed: &BTreeSet<ObjectKey>,
    ) -> Result<SyncReport, SyncError> {
        let Some(mut state) = self.state.take() else {
            return Err(SyncError::Unread);
        };
        let update = state.update(desired, changed, self.options);
        if let Some(baseline) = &mut state.baseline {
            baseline.touch(&update.plan);
        }
        // If another process wrote since, the fingerprint stays, so that the audit reads the rules.
        let follow = !update.plan.is_empty() && state.matches_inexact(&mut self.kernel);
        let bytes = match apply(&mut self.kernel, &update.plan) {
            Ok(bytes) => bytes,
            Err(failure) => {
                let Attributed { error, written } =
                    failure.attribute(&state, &update.services, self.options);
                // A rule may also be refused because another process removed what it needs.
                let is_ours = follow || state.matches_exact(&mut self.kernel);
                if let Some(written) = written.filter(|_| is_ours && has_owner(&error)) {
                    state.interrupt(written, update.services);
                    if follow {
                        state.refresh_inexact(&mut self.kernel);
                    }
                    self.state = Some(state);
                } else {
                    // Its expectations include the update already. They are wrong only for chains
                    // of the plan, which the baseline has marked.
                    self.state = Some(state);
                    self.discard_state();
                }
                return Err(error);
            }
        };
        state.accept(update.services);
        if follow {
            state.refresh_inexact(&mut self.kernel);
        }
        let report = state.report(&update.plan, bytes);
        self.state = Some(state);
        Ok(report)
    }

    /// Writes the differences that an audit found.
    fn repair(&mut self, difference: &Difference) -> Result<(), SyncError> {
        let Some(state) = &mut self.state else {
            return Err(SyncError::Unread);
        };
        let plan = state.plan(difference, self.options);
        if let Some(baseline) = &mut state.baseline {
            baseline.touch(&plan);
        }
        match apply(&mut self.kernel, &plan) {
            Ok(_) => state.refresh_inexact(&mut self.kernel),
            Err(failure) => {
                let Attributed { error, .. } = failure.attribute(state, &[], self.options);
                self.discard_state();
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Snapshot {
    /// Records that these tables of a plan were written.
    fn mark_written(&mut self, plan: &Plan, written: &BTreeSet<Table>, expected: &Expected) {
        for (table, chain) in plan.chains().filter(|(table, _)| written.contains(table)) {
            if table.has_built_in(chain) {
                self.observed.expect_jumps(table, chain);
            } else if !self.observed.expect((table, chain), expected) {
                // kubelet's chain, which only has to exist.
                self.observed.declare(table, chain);
            }
        }
    }
}

/// A plan whose write failed.
struct Failure {
    error: KernelError,
    input: String,
}

impl Failure {
    /// Finds the refused rules, and their owner among the Services of a state and an update.
    fn attribute(
        self,
        state: &State,
        update: &[(ObjectKey, Option<Applied>)],
        options: Options,
    ) -> Attributed {
        match self.error {
            KernelError::Refused { lines, cause } => {
                let refused = RefusedInput::find(&self.input, &lines);
                let owner = refused.owner(state.service_rules(update, options));
                let line = lines.first().copied();
                Attributed {
                    written: refused.written,
                    error: SyncError::refused(cause, line, owner, &self.input),
                }
            }
            KernelError::Failed(cause) => Attributed {
                written: None,
                error: SyncError::unavailable(cause, &self.input),
            },
        }
    }
}

/// A failure with its owner.
struct Attributed {
    error: SyncError,
    /// Tables that were written nevertheless, if known.
    written: Option<BTreeSet<Table>>,
}

fn has_owner(error: &SyncError) -> bool {
    let owner = error.refusal().map(|refusal| &refusal.owner);
    owner.is_some_and(|owner| *owner != RuleOwner::NoService)
}

/// Writes a plan. Returns the number of bytes.
fn apply(kernel: &mut impl Kernel, plan: &Plan) -> Result<usize, Failure> {
    if plan.is_empty() {
        return Ok(0);
    }
    let input = plan.to_string();
    match kernel.restore(&input) {
        Ok(()) => Ok(input.len()),
        Err(error) => Err(Failure { error, input }),
    }
}

fn read_text(kernel: &mut impl Kernel, state: &State) -> Result<Observed, SyncError> {
    let mut reader = Reader::new(&state.expected, state.settings.family);
    kernel
        .save(&mut |line| reader.line(line))
        .map_err(SyncError::unreadable)?;
    Ok(reader.finish())
}

/// Reads raw hashes. `None` if that fails: the caller then reads the text.
fn read_raw(
    kernel: &mut impl Kernel,
    baseline: &mut Baseline,
    then: &Expected,
    state: &State,
) -> Option<Reading> {
    let reading = baseline.observe(kernel, then, &state.expected, state.settings.family);
    match reading {
        Ok(reading) => reading,
        Err(error) => {
            tracing::warn!(
                error = error_text(&error),
                "cannot read the kernel's hashes of the rules, reading their text"
            );
            None
        }
    }
}

/// Reads the rules for comparison with the current state.
fn observe(kernel: &mut impl Kernel, state: &mut State) -> Result<Observed, SyncError> {
    let mut baseline = state.baseline.take();
    let reading = baseline
        .as_mut()
        .and_then(|baseline| read_raw(kernel, baseline, &state.expected, state));
    if let Some(reading) = reading {
        state.baseline = baseline;
        // Chains that were not read are missing here. A full sync would rewrite them; an audit must
        // not report them as foreign changes.
        if reading.complete {
            return Ok(reading.observed);
        }
    }
    read_text(kernel, state)
}

/// The plan for a kernel without rules. Needs no kernel.
pub fn render(desired: &Desired, settings: &Settings, options: Options) -> Plan {
    let state = State::of(desired, settings, options);
    let difference = Difference::everything(&state.expected, &Observed::default());
    state.plan(&difference, options)
}

/// The deviations of a kernel from the desired state, and the plan that repairs them. Writes
/// nothing.
pub fn differences(
    kernel: &mut impl Kernel,
    desired: &Desired,
    settings: &Settings,
    options: Options,
) -> Result<(Vec<Repair>, Plan), SyncError> {
    let state = State::of(desired, settings, options);
    let observed = read_text(kernel, &state)?;
    let difference = Difference::between(&state.expected, &observed);
    Ok((difference.describe(), state.plan(&difference, options)))
}

/// The API server and DNS, which everything else depends on.
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
        self.kernel.take_cpu_time();
        let known = self
            .state
            .as_ref()
            .is_some_and(|state| state.settings == *settings);
        let mut report = match scope {
            Scope::Changed(changed) if known && self.options.restore == RestoreScope::Changes => {
                match self.partial(desired, changed) {
                    Ok(report) => report,
                    // The state is known; only the rest of the update has to be written.
                    Err(refused) if self.state.is_some() => return Err(refused),
                    Err(failure) => failure.resolved_by(self.full(desired, settings))?,
                }
            }
            _ => self.full(desired, settings)?,
        };
        report.children = self.kernel.take_cpu_time();
        Ok(report)
    }

    fn audit(&mut self, budget: ReadBudget) -> Result<AuditReport, SyncError> {
        let Some(state) = self.state.as_mut().filter(|state| !state.is_unfinished()) else {
            return Ok(AuditReport::Postponed);
        };
        self.kernel.take_cpu_time();
        let fingerprint = self.kernel.fingerprint();
        let same = fingerprint.is_some() && fingerprint == state.fingerprint;
        if same && fingerprint.as_ref().is_some_and(|f| f.exact) {
            if budget == ReadBudget::Available {
                self.record_baseline();
            }
            return Ok(AuditReport::Unchanged);
        }
        // An exact fingerprint is unknown only while the other family writes.
        let later = fingerprint.is_none() && state.fingerprint.is_some();
        if budget == ReadBudget::Spent || later {
            return Ok(if same {
                AuditReport::Unchanged
            } else {
                AuditReport::Postponed
            });
        }
        let observed = observe(&mut self.kernel, state)?;
        let difference = Difference::between(&state.expected, &observed);
        state.fingerprint = fingerprint;
        if !difference.is_empty() {
            self.repair(&difference)?;
        }
        self.record_baseline();
        Ok(AuditReport::Read {
            repaired: difference.describe(),
            children: self.kernel.take_cpu_time(),
        })
    }
}
