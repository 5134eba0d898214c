//! Settings of the provider `netlink`.

use ipnet::IpNet;
use weft_host::routing::MAIN_TABLE;

/// Metric of the fallback routes, which the kernel prefers to no other route.
pub const FALLBACK_METRIC: u32 = u32::MAX - 1;

/// Attributes of our routes in the kernel, and limits to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetlinkSettings {
    /// The protocol number that marks our routes. Every route with it in the table is taken for
    /// ours, and deleted if no node wants it.
    pub protocol: u8,
    /// Number of the routing table.
    pub table: u32,
    /// Metric of our routes. No foreign route to pods may have it.
    pub metric: u32,
    /// Ranges of all pods. Nothing else is routed.
    pub cluster_cidrs: Vec<IpNet>,
    /// Way to reach other nodes.
    pub gateways: Gateways,
    /// Install unreachable routes for the cluster's ranges, so that packets to unassigned ranges do
    /// not follow the default route, from where they may come back.
    pub fallback: bool,
}

/// Way to reach other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Gateways {
    /// By its address: a node whose address is not in a network of a local link gets no route.
    #[default]
    Direct,
    /// Through this interface, regardless of its addresses: for nodes on one link with addresses
    /// that share no network.
    OnLink {
        /// Name of the interface.
        interface: String,
    },
}

/// The settings are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The protocol number belongs to another program.
    #[error("protocol {0} belongs to another program, whose routes would be deleted")]
    ProtocolTaken(u8),
    /// The metric is that of other programs' routes, or that of the fallback routes.
    #[error("metric {0} does not separate our routes from foreign ones")]
    Metric(u32),
    /// The table is not for routes to other machines.
    #[error("table {0} is reserved by the kernel")]
    Table(u32),
    /// No range is given.
    #[error("no cluster CIDR")]
    NoClusterCidr,
    /// The range has prefix length 0.
    #[error("cluster CIDR {0} would match all traffic")]
    Everything(IpNet),
}

/// `RT_TABLE_LOCAL`, which the kernel maintains.
const LOCAL_TABLE: u32 = 255;

impl NetlinkSettings {
    /// Default settings for these ranges.
    pub fn new(cluster_cidrs: impl IntoIterator<Item = IpNet>) -> Self {
        Self {
            protocol: 201,
            table: MAIN_TABLE,
            metric: 201,
            cluster_cidrs: cluster_cidrs.into_iter().collect(),
            gateways: Gateways::Direct,
            fallback: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), SettingsError> {
        if is_taken(self.protocol) {
            return Err(SettingsError::ProtocolTaken(self.protocol));
        }
        // 0 is the usual metric of IPv4 routes, and for IPv6 it means 1024.
        if matches!(self.metric, 0 | 1024 | FALLBACK_METRIC) {
            return Err(SettingsError::Metric(self.metric));
        }
        if matches!(self.table, 0 | LOCAL_TABLE) {
            return Err(SettingsError::Table(self.table));
        }
        if self.cluster_cidrs.is_empty() {
            return Err(SettingsError::NoClusterCidr);
        }
        let everything = self.cluster_cidrs.iter().find(|net| net.prefix_len() == 0);
        everything.map_or(Ok(()), |net| Err(SettingsError::Everything(*net)))
    }

    pub(super) fn covers(&self, net: &IpNet) -> bool {
        self.cluster_cidrs.iter().any(|range| range.contains(net))
    }
}

/// Numbers that linux/rtnetlink.h assigns to other programs, and those that Calico (80), OVN (84)
/// and Open/R (99) use.
fn is_taken(protocol: u8) -> bool {
    matches!(protocol, 0..=4 | 8..=18 | 42 | 80 | 84 | 99 | 186..=189 | 192)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_would_touch_others_routes_are_refused() {
        let good = || NetlinkSettings::new(["10.244.0.0/16".parse().unwrap()]);
        assert_eq!(good().check(), Ok(()));
        for protocol in [0, 2, 3, 4, 12, 16, 80, 186] {
            let settings = NetlinkSettings { protocol, ..good() };
            let taken = SettingsError::ProtocolTaken(protocol);
            assert_eq!(settings.check(), Err(taken));
        }
        for metric in [0, 1024, FALLBACK_METRIC] {
            let settings = NetlinkSettings { metric, ..good() };
            assert_eq!(settings.check(), Err(SettingsError::Metric(metric)));
        }
        for table in [0, 255] {
            let settings = NetlinkSettings { table, ..good() };
            assert_eq!(settings.check(), Err(SettingsError::Table(table)));
        }
        let none = NetlinkSettings::new([]);
        assert_eq!(none.check(), Err(SettingsError::NoClusterCidr));
        let net: IpNet = "::/0".parse().unwrap();
        let all = NetlinkSettings::new([net]);
        assert_eq!(all.check(), Err(SettingsError::Everything(net)));
    }
}
