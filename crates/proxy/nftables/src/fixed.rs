//! Elements that follow from the settings: addresses of NodePorts, networks of ClusterIPs.

use weft_proxy::{NodePortTail, Settings};

use crate::{
    collection::Collection,
    entry::{Content, Entry},
    front::address,
};

/// Elements that follow from the settings alone.
pub(crate) fn fixed_entries(settings: &Settings) -> Vec<Entry> {
    let networks = service_networks(settings);
    node_port_addresses(settings).chain(networks).collect()
}

/// The networks in which addresses without a Service are dropped. Where Services are written in
/// several commits these come last: until then another proxy's rules may serve the rest.
pub(crate) fn service_networks(settings: &Settings) -> impl Iterator<Item = Entry> {
    settings.service_networks.iter().map(|network| Entry {
        collection: Collection::ServiceNetworks,
        key: address(network.network()),
        content: Content::Until(address(network.broadcast())),
    })
}

/// The settings without those that become elements: if the rest is the same, so are chains, rules
/// and the elements of Services.
pub(crate) fn without_elements(settings: &Settings) -> Settings {
    Settings {
        service_networks: Vec::new(),
        node_port_tail: match settings.node_port_tail {
            NodePortTail::AnyLocal => NodePortTail::AnyLocal,
            NodePortTail::Addresses(_) => NodePortTail::Addresses(Vec::new()),
        },
        ..settings.clone()
    }
}

/// The addresses on which NodePorts answer, if not on all.
pub(crate) fn node_port_addresses(settings: &Settings) -> impl Iterator<Item = Entry> {
    let addresses = match &settings.node_port_tail {
        NodePortTail::AnyLocal => Vec::new(),
        NodePortTail::Addresses(addresses) => addresses.clone(),
    };
    let mut addresses: Vec<_> = addresses
        .into_iter()
        .filter(|address| !address.is_loopback())
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    let collection = Collection::NodePortAddresses;
    let entries = addresses.into_iter();
    entries.map(move |one| Entry::bare(collection, address(one)))
}
