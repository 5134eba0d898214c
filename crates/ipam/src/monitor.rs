//! When the node's part of its NodeNetworkConfig is written, and with what.

use std::{collections::BTreeSet, fmt, time::Duration};

use weft_model::{IpFamily, Moment};

use crate::{
    ContainerResult, GrantName, NodeConfig, NodeName, NodeSpec, Precondition,
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
    /// To be written. The end of it is reported with [`Monitor::answered`].
    pub write: Option<SpecWrite>,
    /// Parameters that could not be used as they are.
    pub flaws: Vec<ScalerFlaw>,
}

/// A new spec for the node's NodeNetworkConfig.
///
/// Whoever sends it must also change something else of the object at every attempt (an annotation
/// with the attempt's number): only a write that moves the object on makes sure that no earlier
/// one, delayed somewhere, is carried out after it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpecWrite {
    /// Which.
    pub name: NodeName,
    /// Only if it is still this one.
    pub precondition: Precondition,
    /// What it says.
    pub spec: NodeSpec,
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
    in_flight: bool,
}

impl Monitor {
    /// A monitor that has seen nothing yet.
    pub fn new(settings: MonitorSettings) -> Self {
        Self {
            settings,
            window: Window::new(settings.stabilisation),
            in_flight: false,
        }
    }

    /// When to look again if nothing happens.
    pub fn wake(&self) -> Option<Moment> {
        self.window.wake()
    }

    /// A write has ended, somehow. Success goes to the pool as [`Event::Accepted`]; after a failure
    /// or an unknown end the next look decides from what is observed and held, and offers nothing
    /// twice.
    pub fn answered(&mut self) {
        self.in_flight = false;
    }

    /// Whether a write is under way.
    pub fn is_writing(&self) -> bool {
        self.in_flight
    }

    /// Looks at everything and decides. Offers are made in the pool in the same breath, so that
    /// nobody gets an address between the decision and its record.
    pub fn look(&mut self, pool: &mut Pool, outlook: Outlook<'_>, now: Moment) -> Verdict {
        let mut verdict = Verdict::default();
        if self.in_flight || outlook.config.deleting || !pool.is_ready() {
            return verdict;
        }
        let wanted = match self.settings.mode {
            ScalingMode::Pods => self.by_pods(pool, outlook, now, &mut verdict),
            ScalingMode::Requests => by_requests(pool, outlook, now, &mut verdict),
        };
        if let Some(spec) = wanted
            && self.differs(&spec, outlook.config)
        {
            self.in_flight = true;
            verdict.write = Some(SpecWrite {
                name: outlook.config.name.clone(),
                precondition: outlook.config.precondition(),
                spec,
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
        let demand = demand(pool, outlook.pods?);
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

/// Pods, or what was handed out and is waited for if that is more; and what cools down, which
/// nobody can have.
fn demand(pool: &Pool, pods: u32) -> u32 {
    let most = |count: fn(Census) -> u32| {
        let families = pool.served_families();
        let counts = families
            .into_iter()
            .map(|family| count(pool.census(family)));
        counts.max().unwrap_or_default()
    };
    let asked = most(|census| census.assigned) + pool.waiting();
    pods.max(asked)
        .saturating_add(most(|census| census.cooling))
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
) -> Option<NodeSpec> {
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
    let requested = u32::try_from(config.spec.requested).unwrap_or_default();
    let listed = config.spec.not_in_use.len();
    let counts = Counts {
        assigned: census.assigned,
        releasing: census.releasing,
        held: census.held(),
        requested,
        listed: u32::try_from(listed).unwrap_or(u32::MAX),
    };
    let requested = match reactive::decide(counts, thresholds) {
        Change::Nothing => return None,
        Change::Clean => requested,
        Change::Grow(requested) => requested,
        Change::Shrink(count) => {
            let surplus: Vec<GrantName> = pool.surplus(census.kept().saturating_sub(count));
            verdict.step = pool.handle(Event::Offer(surplus), now);
            requested - (pool.census(family).releasing - census.releasing)
        }
    };
    Some(NodeSpec {
        requested: i64::from(requested),
        not_in_use: pool.offered(),
        demand: None,
    })
}
