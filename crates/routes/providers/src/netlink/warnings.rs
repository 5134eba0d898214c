//! Warnings about kernel settings that drop pod traffic although the routes are right.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use weft_host::{
    addresses::InterfaceAddress,
    routing::Link,
    sysctl::{Setting, Settings},
};
use weft_model::IpFamily;
use weft_routes::ProviderError;

use super::{NetlinkProvider, NetlinkSettings, failure::reading};

/// A kernel setting for the operator to check. It is never changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostWarning {
    /// Forwarding is off for a family that has routes.
    NotForwarding(IpFamily),
    /// Strict reverse path filtering on one of several interfaces.
    StrictReversePath {
        /// Name of the interface.
        interface: String,
    },
}

impl fmt::Display for HostWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotForwarding(family) => {
                let name = forwarding(*family);
                write!(f, "{name} is 0: pods reach no other node over {family}")
            }
            Self::StrictReversePath { interface } => write!(
                f,
                "net/ipv4/conf/{interface}/rp_filter is strict on a machine with several \
                 networks: packets that come in elsewhere than they would go out are dropped"
            ),
        }
    }
}

impl NetlinkProvider {
    /// Reads the settings of the calling thread's network namespace.
    pub async fn warnings(&self, sysctls: &Settings) -> Result<Vec<HostWarning>, ProviderError> {
        let addresses = self.routing.addresses().await;
        let addresses = addresses.map_err(|error| reading(&error))?;
        let links = self.routing.links().await;
        let links = links.map_err(|error| reading(&error))?;
        let networks = self.settings.node_interfaces(&addresses, &links);
        let mut warnings = not_forwarding(&self.settings, sysctls);
        if networks.len() > 1 {
            let strict = networks
                .into_iter()
                .filter(|name| is_strict(sysctls, name))
                .map(|interface| HostWarning::StrictReversePath { interface });
            warnings.extend(strict);
        }
        Ok(warnings)
    }
}

impl NetlinkSettings {
    /// The interfaces with IPv4 addresses of the node, not of pods.
    fn node_interfaces(&self, addresses: &[InterfaceAddress], links: &[Link]) -> BTreeSet<String> {
        let names: BTreeMap<u32, &String> = links
            .iter()
            .map(|link| (link.interface, &link.name))
            .collect();
        let of_nodes = addresses.iter().filter(|entry| {
            let address = entry.address;
            address.is_ipv4() && !address.is_loopback() && !self.covers(&address.into())
        });
        of_nodes
            .filter_map(|entry| names.get(&entry.interface).map(|name| (*name).clone()))
            .collect()
    }
}

fn not_forwarding(settings: &NetlinkSettings, sysctls: &Settings) -> Vec<HostWarning> {
    let routed = |family: &IpFamily| {
        let mut cidrs = settings.cluster_cidrs.iter();
        cidrs.any(|net| IpFamily::of(net.addr()) == *family)
    };
    let families = IpFamily::ALL.into_iter().filter(routed);
    families
        .filter(|family| number(sysctls, forwarding(*family)) == Some(0))
        .map(HostWarning::NotForwarding)
        .collect()
}

fn forwarding(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "net/ipv4/ip_forward",
        IpFamily::V6 => "net/ipv6/conf/all/forwarding",
    }
}

/// The kernel uses the greater of an interface's own value and that for all; 1 is strict, 2 loose.
fn is_strict(sysctls: &Settings, interface: &str) -> bool {
    let value = |name: &str| number(sysctls, &format!("net/ipv4/conf/{name}/rp_filter"));
    value("all").max(value(interface)) == Some(1)
}

/// A setting that cannot be read causes no warning.
fn number(sysctls: &Settings, name: &str) -> Option<u64> {
    sysctls.read_number(Setting::Sysctl(name)).ok()
}
