//! What an operator decides about routes.

use std::{collections::BTreeSet, time::Duration};

use ipnet::IpNet;
use weft_ipam::objects::NetworkObjects;
use weft_providers::Capabilities;
use weft_routes::{
    ConditionPolicy, Controller, DeleteCap, Engine, NextHop, Policy, Reconciler, Ticker, Timing,
    Unmarked,
};

/// What an operator decides about routes.
#[derive(Clone, Debug)]
pub struct RoutesSettings {
    /// `--cluster-cidr`.
    pub cluster_cidrs: Vec<IpNet>,
    /// `--cluster-name`.
    pub cluster_name: String,
    /// Whether nodes are watched (our rules), or everything is looked at every period (upstream's).
    pub mode: Mode,
    /// When passes run in watch mode.
    pub timing: Timing,
    /// Who writes `NetworkUnavailable`.
    pub conditions: ConditionPolicy,
    /// What becomes of routes without a mark that no node wants.
    pub unmarked: Unmarked,
    /// How many deletes of a pass are believed.
    pub delete_cap: DeleteCap,
    /// Delete however many it are.
    pub force: bool,
    /// Plan and count, write nothing.
    pub observe: bool,
    /// Whether a node's address is compared with that of its machine at the provider.
    pub check_addresses: bool,
    /// How long one mutation may take.
    pub mutation_limit: Duration,
    /// Whose objects name blocks that are routed as well; our rules only.
    pub blocks: Option<NetworkObjects>,
}

/// When routes are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// When nodes change.
    Watch,
    /// Every period, from start to start.
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

    /// The rules for a provider.
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

    /// Whoever decides, beginning with the routes that are known to be ours.
    pub(crate) fn controller(
        &self,
        capabilities: &Capabilities,
        record: BTreeSet<(IpNet, NextHop)>,
        seed: u64,
    ) -> Box<dyn Controller + Send> {
        let policy = self.policy(capabilities);
        match self.mode {
            Mode::Poll(period) => Box::new(Reconciler::new(policy, Ticker::new(period), seed)),
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

/// How often a table is read whose reading costs nothing.
const FREE_VERIFICATION: Duration = Duration::from_secs(60);
