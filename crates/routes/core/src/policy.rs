use ipnet::IpNet;
use weft_model::IpFamily;

/// What an operator and a provider decided before any route is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is decided for itself")]
pub struct Policy {
    /// Whose rules apply.
    pub semantics: Semantics,
    /// `--cluster-cidr`: the ranges in which routes are managed.
    pub cluster_cidrs: Vec<IpNet>,
    /// The families that the provider can route.
    pub families: Vec<IpFamily>,
    /// What the provider's routes lead to.
    pub next_hop: NextHopKind,
    /// Who writes `NetworkUnavailable`.
    pub conditions: ConditionPolicy,
    /// What to do with routes in the cluster's range that carry nobody's mark.
    pub unmarked: Unmarked,
    /// How many deletes of a pass are believed.
    pub delete_cap: DeleteCap,
    /// Delete however many it are.
    pub force: bool,
    /// Plan and count, write nothing.
    pub observe_only: bool,
    /// How many routes the provider's table can hold, if known.
    pub quota: Option<usize>,
    /// Whether a change of `spec.providerID` triggers a pass.
    pub watch_provider_id: bool,
    /// Whether a node without a machine that the provider knows gets no route: nobody could say
    /// whether its address is its own.
    pub needs_machine: bool,
}

impl Policy {
    /// Our rules for these ranges, for a provider that routes both families to addresses.
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

    /// Whether a range lies in the cluster's.
    pub fn covers(&self, net: &IpNet) -> bool {
        self.cluster_cidrs.iter().any(|range| range.contains(net))
    }
}

/// Whose rules decide what a pass does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Semantics {
    /// Those of cloud-provider 1.36, used with the feature gate off.
    Upstream,
    /// Ours: safe on bad input, moves ranges in one step, touches nobody else's routes.
    Own,
}

/// What routes of a provider lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHopKind {
    /// An address of the node.
    Address,
    /// The instance that `spec.providerID` names.
    Instance,
}

/// Who writes the `NetworkUnavailable` condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionPolicy {
    /// We do, over whatever is there, as upstream since 1.36.
    Own,
    /// We do, unless somebody else's reason is there.
    RespectCni,
    /// Nobody here.
    Off,
}

/// What becomes of a route in the cluster's range that carries nobody's mark and is not known
/// from before, when no node wants its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmarked {
    /// It may be somebody else's: report it.
    Leave,
    /// The range is ours alone: delete it, as upstream does.
    Claim,
}

/// How many deletes are believed to be meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteCap {
    /// At most this share of our routes, in percent.
    pub percent: usize,
    /// At most this many, whatever the share.
    pub at_most: usize,
    /// So few are always believed: in a cluster of two nodes one is half of them.
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
    /// Whether so many deletes out of so many routes are too many.
    pub fn is_exceeded(&self, deletes: usize, routes: usize) -> bool {
        deletes > self.always && (deletes > self.at_most || deletes * 100 > routes * self.percent)
    }
}
