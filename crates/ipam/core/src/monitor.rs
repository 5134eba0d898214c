//! Writes of the node's request: when the spec of its NodeNetworkConfig changes, and to what.

use std::{collections::BTreeSet, fmt, time::Duration};

use weft_model::{IpFamily, Moment};

use crate::{
    ContainerResult, NodeConfig, NodeName, NodeSpec, Precondition,
    pool::{AddressCounts, Event, Pool, Step},
    scaling::{
        Scaler, ScalerFlaw, Window,
        reactive::{self, Change, Counts, Thresholds},
    },
};

/// Input that drives the size of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScalingMode {
    /// Pods bound to the node: the right size at once, before the first ADD.
    Pods,
    /// Assigned addresses: a batch at a time, after the pool ran low.
    Requests,
}

/// Settings of a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MonitorSettings {
    /// Input that drives the size of the pool.
    pub mode: ScalingMode,
    /// Length of the stabilisation window; zero scales down at once.
    pub stabilisation: Duration,
    /// True if offers are withdrawn before new addresses are requested.
    pub reclaim: bool,
    /// True if `demandIPCount` is written, which Azure's objects do not have.
    pub write_demand: bool,
}

impl Default for MonitorSettings {
    fn default() -> Self {
        Self {
            mode: ScalingMode::Pods,
            stabilisation: Duration::from_secs(120),
            reclaim: true,
            write_demand: true,
        }
    }
}

/// Inputs of a monitor besides the pool.
#[derive(Clone, Copy, Debug)]
pub struct MonitorInput<'a> {
    /// The last observed NodeNetworkConfig.
    pub config: &'a NodeConfig,
    /// Number of pods that need an address; `None` before the first complete list.
    pub pods: Option<u32>,
    /// True if the watch of pods is up to date. Nothing is released while it is not.
    pub synced: bool,
    /// True if the subnet is nearly exhausted.
    pub exhausted: bool,
}

/// Result of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonitorDecision {
    /// Changes of the pool, to be made durable before the write is sent.
    pub step: Step,
    /// Write to send once the step is durable. Its result is reported with [`Monitor::answered`].
    pub write: Option<SpecWrite>,
    /// Invalid scaling parameters, which were replaced.
    pub flaws: Vec<ScalerFlaw>,
}

/// A new spec for the node's NodeNetworkConfig.
///
/// The sender must also change something else of the object at every attempt, such as an annotation
/// with the process and the number of the attempt: only a write that changes the object makes sure
/// that no earlier, delayed one succeeds after it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpecWrite {
    /// Name of the object.
    pub name: NodeName,
    /// State in which it was read.
    pub precondition: Precondition,
    /// The new spec.
    pub spec: NodeSpec,
    /// Number of the attempt since the process started.
    pub attempt: u64,
}

impl fmt::Display for SpecWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, spec, .. } = self;
        write!(f, "{name}: request {}", spec.requested)?;
        if !spec.not_in_use.is_empty() {
            write!(f, ", release {}", spec.not_in_use.len())?;
        }
        Ok(())
    }
}

/// Keeps a node's request in step with its demand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Monitor {
    settings: MonitorSettings,
    window: Window,
    attempts: u64,
    in_flight: Option<u64>,
}

impl Monitor {
    /// A monitor without history.
    pub fn new(settings: MonitorSettings) -> Self {
        Self {
            settings,
            window: Window::new(settings.stabilisation),
            attempts: 0,
            in_flight: None,
        }
    }

    /// Time of the next evaluation if no event occurs.
    pub fn wake(&self) -> Option<Moment> {
        self.window.wake()
    }

    /// Reports the result of a write: the object as it is now, or `None` after a failure or without
    /// a response. In the latter case the next evaluation decides from what is observed and held,
    /// and offers nothing twice. The response to an attempt that was given up comes too late to
    /// prove anything, and is handled like any other observation of the object.
    pub fn answered(
        &mut self,
        attempt: u64,
        accepted: Option<NodeConfig>,
        pool: &mut Pool,
        now: Moment,
    ) -> Step {
        let awaited = self.in_flight == Some(attempt);
        if awaited {
            self.in_flight = None;
        }
        match accepted {
            Some(config) if awaited => pool.handle(Event::Accepted(Box::new(config)), now),
            Some(config) => pool.handle(Event::Observed(Box::new(config)), now),
            None => Step::default(),
        }
    }

    /// The attempt in flight.
    pub fn in_flight(&self) -> Option<u64> {
        self.in_flight
    }

    /// Evaluates the inputs and decides. Offers are made in the pool in the same call, so that no
    /// address is assigned between the decision and its record.
    pub fn evaluate(
        &mut self,
        pool: &mut Pool,
        input: MonitorInput<'_>,
        now: Moment,
    ) -> MonitorDecision {
        let mut decision = MonitorDecision::default();
        if self.in_flight.is_some() || input.config.deleting || !pool.is_ready() {
            return decision;
        }
        let wanted = match self.settings.mode {
            ScalingMode::Pods => self.by_pods(pool, input, now, &mut decision),
            ScalingMode::Requests => Some(by_requests(pool, input, now, &mut decision)),
        };
        // Offers of an earlier process may not have been sent, or may still be in flight:
        // withdrawing them needs a write even if it repeats the current content.
        let reclaims = |spec: &NodeSpec| !pool.offered().is_subset(&spec.not_in_use);
        if let Some(spec) = wanted
            && (self.differs(&spec, input.config) || reclaims(&spec))
        {
            self.attempts += 1;
            self.in_flight = Some(self.attempts);
            decision.write = Some(SpecWrite {
                name: input.config.name.clone(),
                precondition: input.config.precondition(),
                spec,
                attempt: self.attempts,
            });
        }
        decision
    }

    fn by_pods(
        &mut self,
        pool: &mut Pool,
        input: MonitorInput<'_>,
        now: Moment,
        decision: &mut MonitorDecision,
    ) -> Option<NodeSpec> {
        let config = input.config;
        let (scaler, flaws) = Scaler::read(config.status.scaler.as_ref());
        decision.flaws = flaws;
        let demand = needed(pool, input.pods?);
        let target = self.target(demand, scaler, input, now);
        let mut reclaimed = BTreeSet::new();
        if kept(pool) < target && self.settings.reclaim {
            reclaimed.extend(pool.reclaimable(target, config));
        } else if input.synced {
            let surplus = pool.surplus(target);
            decision.step = pool.handle(Event::Offer(surplus), now);
        }
        Some(NodeSpec {
            requested: i64::from(target),
            not_in_use: pool.offered().difference(&reclaimed).cloned().collect(),
            demand: self.settings.write_demand.then_some(i64::from(demand)),
        })
    }

    fn target(&mut self, demand: u32, scaler: Scaler, input: MonitorInput<'_>, now: Moment) -> u32 {
        let requested = u32::try_from(input.config.spec.requested).unwrap_or_default();
        if input.exhausted {
            let target = scaler.exhausted().target(demand);
            return self.window.skip(target, now);
        }
        if self.window.is_empty() {
            // An earlier process's request was wanted until now.
            self.window.observe(requested.min(scaler.maximum()), now);
        }
        let target = self.window.observe(scaler.target(demand), now);
        let target = if input.synced {
            target
        } else {
            target.max(requested)
        };
        target.min(scaler.maximum())
    }

    fn differs(&self, spec: &NodeSpec, config: &NodeConfig) -> bool {
        let unmet = (config.status.containers.iter())
            .any(|container| container.result == Some(ContainerResult::SubnetFull));
        spec.requested != config.spec.requested
            || spec.not_in_use != config.spec.not_in_use
            // While addresses are scarce, the demand matters to the allocator, and not only the
            // request.
            || (unmet && self.settings.write_demand && spec.demand != config.spec.demand)
    }
}

/// Number of addresses a node needs: one for each pod, or the number assigned and waited for if
/// that is more, plus those in cooldown, which no pod can get. After a store was lost those do not
/// count: additional addresses would be held back in the same way, and more would be requested in
/// turn.
pub fn needed(pool: &Pool, pods: u32) -> u32 {
    let most = |count: fn(AddressCounts) -> u32| {
        let families = pool.served_families();
        let counts = families
            .into_iter()
            .map(|family| count(pool.address_counts(family)));
        counts.max().unwrap_or_default()
    };
    let asked = most(|address_counts| address_counts.assigned) + pool.waiting();
    let cooling = if pool.holds_back() {
        0
    } else {
        most(|address_counts| address_counts.cooling)
    };
    pods.max(asked).saturating_add(cooling)
}

/// Number of addresses of the family that has the fewest.
fn kept(pool: &Pool) -> u32 {
    let families = pool.served_families();
    let kept = families
        .into_iter()
        .map(|family| pool.address_counts(family).kept());
    kept.min().unwrap_or_default()
}

fn by_requests(
    pool: &mut Pool,
    input: MonitorInput<'_>,
    now: Moment,
    decision: &mut MonitorDecision,
) -> NodeSpec {
    let config = input.config;
    let mut thresholds = Thresholds::read(config.status.scaler.as_ref());
    if input.exhausted {
        thresholds = thresholds.exhausted();
    }
    let family = pool
        .served_families()
        .into_iter()
        .next()
        .unwrap_or(IpFamily::V4);
    let address_counts = pool.address_counts(family);
    // A write that offered addresses and was not accepted also reduced the request. Upstream then
    // writes the list without that reduction, releases addresses and gets as many new ones.
    let unsent = pool.unlisted(family, &config.spec.not_in_use);
    let requested = u32::try_from(config.spec.requested).unwrap_or_default();
    let requested = requested.saturating_sub(unsent);
    let listed = config.spec.not_in_use.len();
    let counts = Counts {
        // Upstream has no waiting ADDs; here an empty pool without a buffer would never grow.
        assigned: address_counts.assigned + pool.waiting(),
        releasing: address_counts.releasing,
        held: address_counts.held(),
        requested,
        listed: u32::try_from(listed).unwrap_or(u32::MAX),
    };
    let requested = match reactive::decide(counts, thresholds) {
        // Upstream's rule does not clean the list while it cannot grow any more.
        Change::Nothing | Change::Clean => requested,
        Change::Grow(requested) => requested,
        Change::Shrink(count) => {
            // Blocks may be larger than the surplus; both families shrink alike or not at all.
            let kept = address_counts.kept();
            let mut trial = pool.clone();
            trial.handle(Event::Offer(pool.surplus(kept.saturating_sub(count))), now);
            let going = trial.address_counts(family).releasing - address_counts.releasing;
            if going > 0 {
                let surplus = pool.surplus(kept.saturating_sub(going));
                decision.step = pool.handle(Event::Offer(surplus), now);
            }
            requested - going
        }
    };
    NodeSpec {
        requested: i64::from(requested),
        not_in_use: pool.offered(),
        demand: None,
    }
}
