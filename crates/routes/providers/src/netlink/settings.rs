use ipnet::IpNet;
use weft_host::routing::MAIN_TABLE;

/// The metric of the routes that catch what no node takes: behind every other one.
pub const FALLBACK_METRIC: u32 = u32::MAX - 1;

/// Which routes are ours, and what they may look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetlinkSettings {
    /// The protocol number that marks our routes. Every route with it in the table is taken for
    /// ours, and deleted if no node wants it.
    pub protocol: u8,
    /// The table.
    pub table: u32,
    /// The metric of our routes. Nobody else's routes to pods may have it.
    pub metric: u32,
    /// The ranges of all pods. Nothing else is routed.
    pub cluster_cidrs: Vec<IpNet>,
    /// How other nodes are reached.
    pub gateways: Gateways,
    /// True if packets to pods of no node are refused here, instead of being sent to where
    /// everything else goes, from where they may come back.
    pub fallback: bool,
}

/// How other nodes are reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Gateways {
    /// By their addresses: a node whose address is not in a network of a link of ours gets no
    /// route.
    #[default]
    Direct,
    /// Through this interface, whatever the addresses there say: for nodes on one link with
    /// addresses that share no network.
    OnLink {
        /// Its name.
        interface: String,
    },
}

/// Why settings are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Routes with that number are somebody else's.
    #[error("protocol {0} belongs to others, whose routes would be deleted")]
    ProtocolTaken(u8),
    /// Would be the metric of others' routes, or that of the fallback.
    #[error("metric {0} cannot tell our routes from others")]
    Metric(u32),
    /// Not a table of routes to other machines.
    #[error("table {0} is not for our routes")]
    Table(u32),
    /// Nothing could be routed.
    #[error("no cluster CIDR")]
    NoClusterCidr,
    /// Everything would be routed.
    #[error("cluster CIDR {0} is everything")]
    Everything(IpNet),
}

/// `RT_TABLE_LOCAL`: the kernel's own.
const LOCAL_TABLE: u32 = 255;

impl NetlinkSettings {
    /// Our defaults for these ranges.
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
        // 0 is what most people's IPv4 routes have, and for IPv6 it means 1024.
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

/// Numbers that linux/rtnetlink.h gives to others, and those that Calico (80), OVN (84) and Open/R
/// (99) took.
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
