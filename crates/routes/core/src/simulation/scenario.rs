use std::time::Duration;

use crate::{
    Moment, Policy, Timing,
    simulation::{Fault, Fleet, Profile, Trace},
};

/// What a run is about.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What happens to the cluster.
    pub trace: Trace,
    /// How the provider behaves.
    pub profile: Profile,
    /// What goes wrong at the provider.
    pub faults: Vec<Fault>,
    /// When it ends.
    pub end: Moment,
    /// When our controller runs.
    pub timing: Timing,
    /// The seed of the controllers' jitter.
    pub seed: u64,
}

impl Scenario {
    /// A trace on a provider without faults, with two minutes at the end to settle.
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

    /// With something that goes wrong.
    #[must_use]
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Our rules for it.
    pub fn policy(&self) -> Policy {
        Policy {
            quota: self.profile.quota,
            ..Policy::new([Fleet::cluster_cidr()])
        }
    }
}
