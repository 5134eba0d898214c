//! XML of EC2, reduced to the elements that are read.
//!
//! Required elements have no default: another document must not read as an empty table.

use std::net::IpAddr;

use serde::Deserialize;

/// A list: EC2 encodes lists as elements named `item`.
#[derive(Debug, Deserialize)]
#[serde(bound = "T: Deserialize<'de>")]
pub(super) struct Items<T> {
    #[serde(rename = "item", default = "Vec::new")]
    pub(super) items: Vec<T>,
}

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self { items: Vec::new() }
    }
}

/// Response of a change. EC2 sends `return`; its API model, and emulators built from it, do not.
#[derive(Debug, Deserialize)]
pub(super) struct Done {
    #[serde(rename = "return", default)]
    pub(super) done: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RouteTables {
    #[serde(rename = "routeTableSet")]
    pub(super) tables: Items<RouteTable>,
    #[serde(rename = "nextToken", default)]
    pub(super) next: Option<String>,
}

impl RouteTables {
    /// Number of entries for [`Pages`](crate::pages::Pages): tables and routes.
    pub(super) fn entries(&self) -> usize {
        let tables = self.tables.items.iter();
        tables.map(|table| 1 + table.routes.items.len()).sum()
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RouteTable {
    #[serde(rename = "routeTableId")]
    pub(super) id: String,
    #[serde(rename = "routeSet", default)]
    pub(super) routes: Items<TableRoute>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TableRoute {
    pub(super) destination_cidr_block: Option<String>,
    pub(super) destination_ipv6_cidr_block: Option<String>,
    pub(super) instance_id: Option<String>,
    pub(super) network_interface_id: Option<String>,
    pub(super) gateway_id: Option<String>,
    pub(super) nat_gateway_id: Option<String>,
    pub(super) transit_gateway_id: Option<String>,
    pub(super) local_gateway_id: Option<String>,
    pub(super) carrier_gateway_id: Option<String>,
    pub(super) egress_only_internet_gateway_id: Option<String>,
    pub(super) vpc_peering_connection_id: Option<String>,
    pub(super) core_network_arn: Option<String>,
    pub(super) state: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Reservations {
    #[serde(rename = "reservationSet")]
    pub(super) reservations: Items<Reservation>,
    #[serde(rename = "nextToken", default)]
    pub(super) next: Option<String>,
}

impl Reservations {
    /// Number of entries for [`Pages`](crate::pages::Pages): instances, interfaces and addresses.
    pub(super) fn entries(&self) -> usize {
        let reservations = self.reservations.items.iter();
        let instances = reservations.flat_map(|one| &one.instances.items);
        let interfaces = |instance: &Instance| {
            let interfaces = instance.interfaces.items.iter();
            interfaces.map(Interface::entries).sum::<usize>()
        };
        instances.map(|instance| 1 + interfaces(instance)).sum()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Reservation {
    #[serde(rename = "instancesSet", default)]
    pub(super) instances: Items<Instance>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Instance {
    #[serde(rename = "instanceId")]
    pub(super) id: String,
    #[serde(rename = "instanceState", default)]
    pub(super) state: InstanceState,
    #[serde(default)]
    pub(super) private_ip_address: Option<IpAddr>,
    #[serde(rename = "networkInterfaceSet", default)]
    pub(super) interfaces: Items<Interface>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct InstanceState {
    #[serde(default)]
    pub(super) name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Interface {
    #[serde(rename = "networkInterfaceId")]
    pub(super) id: String,
    #[serde(default)]
    private_ip_address: Option<IpAddr>,
    #[serde(rename = "privateIpAddressesSet", default)]
    private: Items<PrivateAddress>,
    #[serde(rename = "ipv6AddressesSet", default)]
    ipv6: Items<Ipv6Address>,
    #[serde(default)]
    pub(super) attachment: Attachment,
}

#[derive(Debug, Deserialize)]
struct PrivateAddress {
    #[serde(rename = "privateIpAddress", default)]
    address: Option<IpAddr>,
}

#[derive(Debug, Deserialize)]
struct Ipv6Address {
    #[serde(rename = "ipv6Address", default)]
    address: Option<IpAddr>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Attachment {
    pub(super) device_index: Option<u32>,
}

impl Interface {
    fn entries(&self) -> usize {
        1 + self.private.items.len() + self.ipv6.items.len()
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let private = self.private.items.iter().filter_map(|item| item.address);
        let ipv6 = self.ipv6.items.iter().filter_map(|item| item.address);
        self.private_ip_address
            .into_iter()
            .chain(private)
            .chain(ipv6)
    }
}

impl Instance {
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        let own = self.private_ip_address.into_iter();
        let interfaces = self.interfaces.items.iter().flat_map(Interface::addresses);
        let mut all: Vec<IpAddr> = own.chain(interfaces).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct ProblemReply {
    #[serde(rename = "Errors")]
    pub(super) errors: Problems,
}

#[derive(Debug, Deserialize)]
pub(super) struct Problems {
    #[serde(rename = "Error")]
    pub(super) errors: Vec<Problem>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Problem {
    pub(super) code: String,
    #[serde(default)]
    pub(super) message: String,
}
