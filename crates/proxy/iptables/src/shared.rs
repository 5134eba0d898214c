//! Chains to which many Service ports contribute rules.

use std::fmt;

use weft_ruleset::{ChainName, Table};

/// A chain to which many Service ports contribute rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SharedChain {
    /// filter `KUBE-SERVICES`: ClusterIPs without endpoints.
    FilterServices,
    /// filter `KUBE-EXTERNAL-SERVICES`: external addresses and NodePorts without endpoints.
    FilterExternalServices,
    /// filter `KUBE-NODEPORTS`: health checks of load balancers.
    FilterNodePorts,
    /// filter `KUBE-PROXY-FIREWALL`: load balancer traffic that source ranges exclude.
    FilterFirewall,
    /// nat `KUBE-SERVICES`: dispatch by address and port.
    NatServices,
    /// nat `KUBE-NODEPORTS`: dispatch by NodePort.
    NatNodePorts,
}

impl SharedChain {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::FilterServices,
        Self::FilterExternalServices,
        Self::FilterNodePorts,
        Self::FilterFirewall,
        Self::NatServices,
        Self::NatNodePorts,
    ];

    /// The table it is in.
    pub fn table(self) -> Table {
        match self {
            Self::NatServices | Self::NatNodePorts => Table::Nat,
            _ => Table::Filter,
        }
    }

    /// Its name.
    pub fn name(self) -> ChainName {
        match self {
            Self::FilterServices | Self::NatServices => crate::fixed::SERVICES,
            Self::FilterExternalServices => crate::fixed::EXTERNAL_SERVICES,
            Self::FilterNodePorts | Self::NatNodePorts => crate::fixed::NODE_PORTS,
            Self::FilterFirewall => crate::fixed::PROXY_FIREWALL,
        }
    }

    /// The shared chain of that name, if it is one.
    pub(crate) fn find(table: Table, name: ChainName) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|chain| (chain.table(), chain.name()) == (table, name))
    }
}

impl fmt::Display for SharedChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table(), self.name())
    }
}
