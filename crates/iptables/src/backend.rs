//! Keeps track of what was written, and writes what differs.

use std::collections::BTreeSet;

use weft_model::ObjectKey;
use weft_proxy::{AuditReport, Backend, Desired, Scope, Service, Settings, SyncError, SyncReport};

use crate::{
    difference::{Difference, Finding},
    kernel::Kernel,
    observed::{Observed, Reader},
    plan::Plan,
    shared::SharedChain,
    state::State,
};

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
        let state = State::of(desired, settings, self.options);
        let observed = self.observe(&state)?;
        let fresh = !observed.shared.contains_key(&SharedChain::NatServices);
        if fresh && desired.len() >= URGENT_FIRST {
            let urgent = State::of(&urgent(desired), settings, self.options);
            self.write(urgent, &observed)?;
            let observed = self.observe(&state)?;
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
        state.fingerprint = self.kernel.fingerprint();
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
        let Some(state) = &mut self.state else {
            return Err(unknown());
        };
        state.accept(update.services);
        // Somebody wrote since we last did: keep the old mark, so that the audit looks closely.
        if before == state.fingerprint && !plan.is_empty() {
            state.fingerprint = self.kernel.fingerprint();
        }
        Ok(state.report(&plan, bytes, false))
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

    fn observe(&mut self, state: &State) -> Result<Observed, SyncError> {
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
            fingerprint = self.kernel.fingerprint();
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
