//! Planning rules chosen by the operator and by the provider's capabilities.

use ipnet::IpNet;
use weft_model::IpFamily;

/// Rules of a pass: the operator's settings and the provider's capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is decided for itself")]
pub struct Policy {
    /// Planning rules: ours or upstream's.
    pub semantics: Semantics,
    /// `--cluster-cidr`: the ranges in which routes are managed.
    pub cluster_cidrs: Vec<IpNet>,
    /// The families that the provider can route.
    pub families: Vec<IpFamily>,
    /// Kind of next hop in the provider's routes.
    pub next_hop: NextHopKind,
    /// Policy for the `NetworkUnavailable` condition.
    pub conditions: ConditionPolicy,
    /// Treatment of routes in `cluster_cidrs` that carry no mark and match no node.
    pub unmarked: Unmarked,
    /// Limit of deletes in one pass.
    pub delete_cap: DeleteCap,
    /// `--force-deletes`: ignore `delete_cap`.
    pub force: bool,
    /// Plan and count, but change nothing.
    pub observe_only: bool,
    /// Routes that fit into the provider's table, if known.
    pub quota: Option<usize>,
    /// True if a change of `spec.providerID` triggers a pass.
    pub watch_provider_id: bool,
    /// True if a node without a provider ID is refused a route, because its address cannot be
    /// checked.
    pub needs_machine: bool,
}

impl Policy {
    /// Our rules for these ranges, and a provider that routes both families to addresses.
    pub fn new(cluster_cidrs: impl IntoIterator<Item = IpNet>) -> Self {
        Self {
            semantics: Semantics::Own,
            cluster_cidrs: cluster_cidrs.into_iter().collect(),
            families: IpFamily::ALL.to_vec(),
            next_hop: NextHopKind::Address,
            conditions: ConditionPolicy::Own,
            unmarked: Unmarked::Leave,
            delete_cap: DeleteCap::default(),
            force: false,
            observe_only: false,
            quota: None,
            watch_provider_id: false,
            needs_machine: false,
        }
    }

    /// Upstream's rules for these ranges.
    pub fn upstream(cluster_cidrs: impl IntoIterator<Item = IpNet>) -> Self {
        Self {
            semantics: Semantics::Upstream,
            ..Self::new(cluster_cidrs)
        }
    }

    /// True if a range lies in one of `cluster_cidrs`.
    pub fn covers(&self, net: &IpNet) -> bool {
        self.cluster_cidrs.iter().any(|range| range.contains(net))
    }
}

/// Planning rules of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Semantics {
    /// The rules of cloud-provider 1.36, used with the feature gate off.
    Upstream,
    /// Our rules: safe on bad input, move ranges in one step, never touch foreign routes.
    Own,
}

/// Kind of next hop that a provider's routes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHopKind {
    /// An address of the node.
    Address,
    /// The instance that `spec.providerID` names.
    Instance,
}

/// Policy for writing the `NetworkUnavailable` condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionPolicy {
    /// Always write it, as upstream does since 1.36.
    Own,
    /// Write it unless it has a reason that is not ours, such as a CNI plugin's.
    RespectCni,
    /// Never write it.
    Off,
}

/// Treatment of a route in the cluster's range that carries no mark, is not in our record, and
/// matches no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmarked {
    /// Leave it and report it: its owner is unknown.
    Leave,
    /// Delete it, as upstream does: the range belongs to this cluster alone.
    Claim,
}

/// Limit of deletes in one pass, against mistakes such as an emptied node list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteCap {
    /// Largest share of our routes, in percent.
    pub percent: usize,
    /// Largest number, regardless of the share.
    pub at_most: usize,
    /// Number that is always accepted: in a cluster of two nodes one is half of them.
    pub always: usize,
}

impl Default for DeleteCap {
    fn default() -> Self {
        Self {
            percent: 50,
            at_most: 200,
            always: 5,
        }
    }
}

impl DeleteCap {
    /// True if this number of deletes out of `routes` is over the limit.
    pub fn is_exceeded(&self, deletes: usize, routes: usize) -> bool {
        deletes > self.always && (deletes > self.at_most || deletes * 100 > routes * self.percent)
    }
}
