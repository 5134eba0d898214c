//! When the node's part of its NodeNetworkConfig is written, and with what.

use std::{collections::BTreeSet, fmt, time::Duration};

use weft_model::{IpFamily, Moment};

use crate::{
    ContainerResult, NodeConfig, NodeName, NodeSpec, Precondition,
    pool::{Census, Event, Pool, Step},
    scaling::{
        Scaler, ScalerFlaw, Window,
        reactive::{self, Change, Counts, Thresholds},
    },
};

/// What drives the size of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScalingMode {
    /// Pods that are bound to the node: the right size at once, before anybody asks.
    Pods,
    /// Addresses that were handed out: a batch at a time, after the pool ran low.
    Requests,
}

/// How a monitor behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MonitorSettings {
    /// What drives it.
    pub mode: ScalingMode,
    /// How long a larger target is remembered; zero scales down at once.
    pub stabilisation: Duration,
    /// Whether offers are taken back before new addresses are asked for.
    pub reclaim: bool,
    /// Whether `demandIPCount` is written, which Azure's objects do not have.
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

/// What a monitor looks at besides the pool.
#[derive(Clone, Copy, Debug)]
pub struct Outlook<'a> {
    /// The NodeNetworkConfig as it was seen last.
    pub config: &'a NodeConfig,
    /// How many pods need an address; `None` before the first complete list.
    pub pods: Option<u32>,
    /// Whether the watch of pods is up to date. Nothing is given back while it is not.
    pub synced: bool,
    /// Whether the subnet is nearly out of addresses.
    pub exhausted: bool,
}

/// What a look has led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Of the pool: to be made durable before the write is sent.
    pub step: Step,
    /// To be written once the step is durable. The end of it is reported with
    /// [`Monitor::answered`].
    pub write: Option<SpecWrite>,
    /// Parameters that could not be used as they are.
    pub flaws: Vec<ScalerFlaw>,
}

/// A new spec for the node's NodeNetworkConfig.
///
/// Whoever sends it must also change something else of the object at every attempt, such as an
/// annotation with the process and the number of the attempt: only a write that moves the object on
/// makes sure that no earlier one, delayed somewhere, is carried out after it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpecWrite {
    /// Which.
    pub name: NodeName,
    /// Only if it is still this one.
    pub precondition: Precondition,
    /// What it says.
    pub spec: NodeSpec,
    /// Counted since the process began.
    pub attempt: u64,
}

impl fmt::Display for SpecWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, spec, .. } = self;
        write!(f, "{name}: request {}", spec.requested)?;
        if !spec.not_in_use.is_empty() {
            write!(f, ", give back {}", spec.not_in_use.len())?;
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
    /// A monitor that has seen nothing yet.
    pub fn new(settings: MonitorSettings) -> Self {
        Self {
            settings,
            window: Window::new(settings.stabilisation),
            attempts: 0,
            in_flight: None,
        }
    }

    /// When to look again if nothing happens.
    pub fn wake(&self) -> Option<Moment> {
        self.window.wake()
    }

    /// A write has ended: with the object as it is now, or in failure or no answer at all. After
    /// those the next look decides from what is observed and held, and offers nothing twice. The
    /// answer to an attempt that was given up comes too late to prove anything, and is only looked
    /// at like any other sight of the object.
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

    /// The attempt that is under way.
    pub fn in_flight(&self) -> Option<u64> {
        self.in_flight
    }

    /// Looks at everything and decides. Offers are made in the pool in the same breath, so that
    /// nobody gets an address between the decision and its record.
    pub fn look(&mut self, pool: &mut Pool, outlook: Outlook<'_>, now: Moment) -> Verdict {
        let mut verdict = Verdict::default();
        if self.in_flight.is_some() || outlook.config.deleting || !pool.is_ready() {
            return verdict;
        }
        let wanted = match self.settings.mode {
            ScalingMode::Pods => self.by_pods(pool, outlook, now, &mut verdict),
            ScalingMode::Requests => Some(by_requests(pool, outlook, now, &mut verdict)),
        };
        // Offers that an earlier process made may not have been sent, or may still be on their way:
        // taking them back needs a write even if it says what is there already.
        let reclaims = |spec: &NodeSpec| !pool.offered().is_subset(&spec.not_in_use);
        if let Some(spec) = wanted
            && (self.differs(&spec, outlook.config) || reclaims(&spec))
        {
            self.attempts += 1;
            self.in_flight = Some(self.attempts);
            verdict.write = Some(SpecWrite {
                name: outlook.config.name.clone(),
                precondition: outlook.config.precondition(),
                spec,
                attempt: self.attempts,
            });
        }
        verdict
    }

    fn by_pods(
        &mut self,
        pool: &mut Pool,
        outlook: Outlook<'_>,
        now: Moment,
        verdict: &mut Verdict,
    ) -> Option<NodeSpec> {
        let config = outlook.config;
        let (scaler, flaws) = Scaler::read(config.status.scaler.as_ref());
        verdict.flaws = flaws;
        let demand = needed(pool, outlook.pods?);
        let target = self.target(demand, scaler, outlook, now);
        let mut reclaimed = BTreeSet::new();
        if kept(pool) < target && self.settings.reclaim {
            reclaimed.extend(pool.reclaimable(target, config));
        } else if outlook.synced {
            let surplus = pool.surplus(target);
            verdict.step = pool.handle(Event::Offer(surplus), now);
        }
        Some(NodeSpec {
            requested: i64::from(target),
            not_in_use: pool.offered().difference(&reclaimed).cloned().collect(),
            demand: self.settings.write_demand.then_some(i64::from(demand)),
        })
    }

    fn target(&mut self, demand: u32, scaler: Scaler, outlook: Outlook<'_>, now: Moment) -> u32 {
        let requested = u32::try_from(outlook.config.spec.requested).unwrap_or_default();
        if outlook.exhausted {
            let target = scaler.exhausted().target(demand);
            return self.window.skip(target, now);
        }
        if self.window.is_empty() {
            // What an earlier process asked for was wanted until now.
            self.window.observe(requested.min(scaler.maximum()), now);
        }
        let target = self.window.observe(scaler.target(demand), now);
        let target = if outlook.synced {
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
            // While there is too little for all, who needs most matters, and not only the request.
            || (unmet && self.settings.write_demand && spec.demand != config.spec.demand)
    }
}

/// How many addresses a node needs: one for each pod, or what was handed out and is waited for if
/// that is more; and what cools down, which no pod can have. Not so after a store was lost: more
/// addresses would rest as those do that are there, and be missed in turn.
pub fn needed(pool: &Pool, pods: u32) -> u32 {
    let most = |count: fn(Census) -> u32| {
        let families = pool.served_families();
        let counts = families
            .into_iter()
            .map(|family| count(pool.census(family)));
        counts.max().unwrap_or_default()
    };
    let asked = most(|census| census.assigned) + pool.waiting();
    let cooling = if pool.rests() {
        0
    } else {
        most(|census| census.cooling)
    };
    pods.max(asked).saturating_add(cooling)
}

/// How many the family has that has the fewest.
fn kept(pool: &Pool) -> u32 {
    let families = pool.served_families();
    let kept = families
        .into_iter()
        .map(|family| pool.census(family).kept());
    kept.min().unwrap_or_default()
}

fn by_requests(
    pool: &mut Pool,
    outlook: Outlook<'_>,
    now: Moment,
    verdict: &mut Verdict,
) -> NodeSpec {
    let config = outlook.config;
    let mut thresholds = Thresholds::read(config.status.scaler.as_ref());
    if outlook.exhausted {
        thresholds = thresholds.exhausted();
    }
    let family = pool
        .served_families()
        .into_iter()
        .next()
        .unwrap_or(IpFamily::V4);
    let census = pool.census(family);
    // A write that offered something and was not accepted asked for less by as much. Upstream writes
    // the list without that the next time, gives addresses back and gets as many new ones.
    let unsent = pool.unlisted(family, &config.spec.not_in_use);
    let requested = u32::try_from(config.spec.requested).unwrap_or_default();
    let requested = requested.saturating_sub(unsent);
    let listed = config.spec.not_in_use.len();
    let counts = Counts {
        // Upstream has nobody who waits; here a pool that is empty with no buffer would never grow.
        assigned: census.assigned + pool.waiting(),
        releasing: census.releasing,
        held: census.held(),
        requested,
        listed: u32::try_from(listed).unwrap_or(u32::MAX),
    };
    let requested = match reactive::decide(counts, thresholds) {
        // Upstream's rule forgets to clean the list while it cannot grow any more.
        Change::Nothing | Change::Clean => requested,
        Change::Grow(requested) => requested,
        Change::Shrink(count) => {
            // Blocks may be larger than what is to go; both families shrink alike or not at all.
            let kept = census.kept();
            let mut trial = pool.clone();
            trial.handle(Event::Offer(pool.surplus(kept.saturating_sub(count))), now);
            let going = trial.census(family).releasing - census.releasing;
            if going > 0 {
                let surplus = pool.surplus(kept.saturating_sub(going));
                verdict.step = pool.handle(Event::Offer(surplus), now);
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
