//! Input of a simulation.

use std::time::Duration;

use crate::{
    Moment, Policy, Timing,
    simulation::{Fault, Fleet, Profile, Trace},
};

/// Input of a run: cluster events, provider behaviour and faults.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Events of the cluster.
    pub trace: Trace,
    /// Latencies and limits of the provider.
    pub profile: Profile,
    /// Faults of the provider.
    pub faults: Vec<Fault>,
    /// End of the run.
    pub end: Moment,
    /// Intervals of our controller.
    pub timing: Timing,
    /// Seed of the controllers' jitter.
    pub seed: u64,
}

impl Scenario {
    /// A trace on a provider without faults, that ends two minutes after the last event.
    pub fn new(trace: Trace, profile: Profile) -> Self {
        let last = trace.events.last().map_or(Moment::START, |(at, _)| *at);
        Self {
            trace,
            profile,
            faults: Vec::new(),
            end: last + Duration::from_secs(120),
            timing: Timing::default(),
            seed: 1,
        }
    }

    /// Adds a fault.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Our planning rules for this scenario.
    pub fn policy(&self) -> Policy {
        Policy {
            quota: self.profile.quota,
            ..Policy::new([Fleet::cluster_cidr()])
        }
    }
}
