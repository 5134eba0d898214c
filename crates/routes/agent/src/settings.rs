//! Operator settings of the route controller.

use std::{collections::BTreeSet, time::Duration};

use ipnet::IpNet;
use weft_ipam::objects::NetworkObjects;
use weft_providers::Capabilities;
use weft_routes::{
    ConditionPolicy, DeleteCap, Engine, NextHop, Policy, RouteController, RouteReconciler, Ticker,
    Timing, Unmarked,
};

/// Settings of the route controller, as the commands read them from flags.
#[derive(Clone, Debug)]
pub struct RoutesSettings {
    /// Value of `--cluster-cidr`.
    pub cluster_cidrs: Vec<IpNet>,
    /// Value of `--cluster-name`.
    pub cluster_name: String,
    /// Watch mode (our rules) or a pass every period (upstream's rules).
    pub mode: Mode,
    /// Intervals of passes in watch mode.
    pub timing: Timing,
    /// Policy for the `NetworkUnavailable` condition.
    pub conditions: ConditionPolicy,
    /// Treatment of unmarked routes that match no node.
    pub unmarked: Unmarked,
    /// Limit of deletes in one pass.
    pub delete_cap: DeleteCap,
    /// `--force-deletes`: ignore `delete_cap`.
    pub force: bool,
    /// Observe mode: plan and count, but change nothing.
    pub observe: bool,
    /// Compare a node's addresses with those of its instance, where the provider reports them.
    pub check_addresses: bool,
    /// Timeout of one change of a route.
    pub mutation_limit: Duration,
    /// The NodeNetworkConfigs whose blocks are routed; `None` routes pod CIDRs only. Has no effect
    /// in poll mode.
    pub blocks: Option<NetworkObjects>,
}

/// Trigger of passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Node changes.
    Watch,
    /// A timer with this period, from start to start.
    Poll(Duration),
}

impl RoutesSettings {
    /// Our rules for these ranges.
    pub fn new(cluster_cidrs: impl IntoIterator<Item = IpNet>) -> Self {
        Self {
            cluster_cidrs: cluster_cidrs.into_iter().collect(),
            cluster_name: "kubernetes".to_owned(),
            mode: Mode::Watch,
            timing: Timing::default(),
            conditions: ConditionPolicy::Own,
            unmarked: Unmarked::Leave,
            delete_cap: DeleteCap::default(),
            force: false,
            observe: false,
            check_addresses: true,
            mutation_limit: Duration::from_secs(60),
            blocks: None,
        }
    }

    /// Planning rules for a provider with these capabilities.
    pub fn policy(&self, capabilities: &Capabilities) -> Policy {
        let ranges = self.cluster_cidrs.iter().copied();
        let mut policy = match self.mode {
            Mode::Watch => Policy::new(ranges),
            Mode::Poll(_) => Policy::upstream(ranges),
        };
        capabilities.fill(&mut policy);
        policy.conditions = self.conditions;
        policy.unmarked = self.unmarked;
        policy.delete_cap = self.delete_cap;
        policy.force = self.force;
        policy.observe_only = self.observe;
        policy.needs_machine = self.check_addresses && capabilities.knows_instances;
        policy
    }

    /// The state machine for this mode, starting with the routes recorded as ours.
    pub(crate) fn controller(
        &self,
        capabilities: &Capabilities,
        record: BTreeSet<(IpNet, NextHop)>,
        seed: u64,
    ) -> Box<dyn RouteController + Send> {
        let policy = self.policy(capabilities);
        match self.mode {
            Mode::Poll(period) => Box::new(RouteReconciler::new(policy, Ticker::new(period), seed)),
            Mode::Watch => {
                let mut timing = self.timing;
                timing.settle = timing.settle.max(capabilities.settle);
                if capabilities.free_lists {
                    timing.verify = Some(FREE_VERIFICATION);
                    timing.settle = Duration::ZERO;
                }
                let engine = Engine::new(policy, timing, capabilities.parallel, seed);
                Box::new(engine.with_record(record))
            }
        }
    }
}

/// Interval of verification where listing costs nothing.
const FREE_VERIFICATION: Duration = Duration::from_secs(60);
