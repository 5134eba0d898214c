//! Elements of collections: what a Service becomes.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use weft_host::nftables::{Datum, Element, Value, fitting_comment};
use weft_model::IpFamily;
use weft_proxy::{Frontend, PortId, Service, ServicePort, Settings};

use crate::{
    collection::{Collection, FrontMap},
    front::{Front, FrontKind, address, protocol_number, split_address},
    scratch::{ENDPOINT_LIMIT, Flags, List, SLOT_LIMIT},
};

/// One element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) collection: Collection,
    pub(crate) key: Value,
    pub(crate) content: Content,
}

/// The content of an element besides its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Nothing,
    Data(Value),
    /// Data with the name of a Service port.
    Named(Value, Arc<str>),
    /// The last key of a range.
    Until(Value),
}

impl Content {
    pub(crate) fn data(&self) -> Option<&Value> {
        match self {
            Self::Data(value) | Self::Named(value, _) => Some(value),
            Self::Nothing | Self::Until(_) => None,
        }
    }

    /// The last key of a range.
    pub(crate) fn end(&self) -> Option<Value> {
        match self {
            Self::Until(end) => Some(*end),
            Self::Nothing | Self::Data(_) | Self::Named(..) => None,
        }
    }
}

impl Entry {
    fn number(collection: Collection, key: Value, number: u32) -> Self {
        let content = Content::Data(Value::EMPTY.with_number(number));
        Self {
            collection,
            key,
            content,
        }
    }

    pub(crate) fn bare(collection: Collection, key: Value) -> Self {
        Self {
            collection,
            key,
            content: Content::Nothing,
        }
    }

    pub(crate) fn element(&self) -> Element {
        let (end, datum, comment) = match &self.content {
            Content::Nothing => (None, None, None),
            Content::Data(value) => (None, Some(Datum::Value(*value)), None),
            Content::Named(value, name) => (None, Some(Datum::Value(*value)), Some(name.clone())),
            Content::Until(end) => (Some(*end), None, None),
        };
        Element {
            key: self.key,
            end,
            datum,
            comment,
            packets: None,
        }
    }

    /// From an element of this collection.
    pub(crate) fn of_element(collection: Collection, element: Element) -> Self {
        let content = match (element.datum, element.end, element.comment) {
            (Some(Datum::Value(value)), _, Some(name)) => Content::Named(value, name),
            (Some(Datum::Value(value)), _, None) => Content::Data(value),
            (_, Some(end), _) => Content::Until(end),
            _ => Content::Nothing,
        };
        Self {
            collection,
            key: element.key,
            content,
        }
    }
}

/// An endpoint as data.
pub(crate) fn endpoint_value(endpoint: SocketAddr) -> Value {
    address(endpoint.ip()).with(&endpoint.port().to_be_bytes())
}

/// An endpoint out of data.
pub(crate) fn read_endpoint(family: IpFamily, value: &Value) -> Option<SocketAddr> {
    let (address, rest) = split_address(family, value.as_bytes())?;
    let [high, low, 0, 0] = *rest else {
        return None;
    };
    Some(SocketAddr::new(address, u16::from_be_bytes([high, low])))
}

/// The numbers of the endpoints of one port, and the identity of the port for affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbering {
    /// `None` stands for the order of the port's own list.
    pub(crate) cluster: Option<Box<[SocketAddr]>>,
    pub(crate) local: Option<Box<[SocketAddr]>>,
    /// Of a port with affinity.
    pub(crate) identity: Option<u16>,
}

impl Numbering {
    pub(crate) fn list<'a>(&'a self, port: &'a ServicePort, list: List) -> &'a [SocketAddr] {
        match list {
            List::Cluster => self.cluster.as_deref().unwrap_or(&port.cluster),
            List::Local => self.local.as_deref().unwrap_or(&port.local),
        }
    }
}

/// Elements of one Service.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entries {
    /// That belong to no other Service.
    pub(crate) own: Vec<Entry>,
    /// That other Services may need too.
    pub(crate) shared: Vec<Entry>,
    /// Numbers of endpoints, with repetition.
    pub(crate) counts: Vec<u32>,
    /// Affinity timeouts, with repetition.
    pub(crate) timeouts: Vec<u32>,
}

/// A front of one port, and how it is served.
#[derive(Clone, Copy, Debug)]
struct Served {
    front: Front,
    /// Of the list that its numbers without more stand for.
    list: List,
    flags: Flags,
}

/// The fronts of a Service's ports, as (index of port, front).
pub(crate) fn fronts<'a>(
    service: &'a Service,
    settings: &'a Settings,
) -> impl Iterator<Item = (usize, Front)> + 'a {
    let ports = service.ports.iter().enumerate();
    ports.flat_map(move |(index, port)| {
        let served = served(port, settings);
        served.into_iter().map(move |served| (index, served.front))
    })
}

/// The name of a Service port as its elements have it: cut as the kernel would, so that what is read
/// back is the same.
pub(crate) fn port_name(service: &Service, port: &ServicePort) -> Arc<str> {
    fitting_comment(&service.port_id(port).to_string()).into()
}

/// A Service that cannot be written whatever the kernel says.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnwritableService {
    #[error("{0} has {1} endpoints: expected at most {ENDPOINT_LIMIT}")]
    TooManyEndpoints(PortId, usize),
    #[error("{0} has {1} endpoints: expected at most {SLOT_LIMIT} with session affinity")]
    TooManyWithAffinity(PortId, usize),
    #[error("endpoint {1} of {0} is not a unicast address")]
    NotUnicast(PortId, SocketAddr),
}

/// Refuses a Service that cannot be written at all.
pub(crate) fn check(service: &Service) -> Result<(), UnwritableService> {
    for port in &service.ports {
        let id = || service.port_id(port);
        let most = port.cluster.len().max(port.local.len());
        if most > ENDPOINT_LIMIT {
            return Err(UnwritableService::TooManyEndpoints(id(), most));
        }
        if port.frontend.affinity.is_some() && most > SLOT_LIMIT {
            return Err(UnwritableService::TooManyWithAffinity(id(), most));
        }
        let mut endpoints = port.cluster.iter().chain(&port.local);
        if let Some(endpoint) = endpoints.find(|endpoint| !is_unicast(endpoint.ip())) {
            return Err(UnwritableService::NotUnicast(id(), *endpoint));
        }
    }
    Ok(())
}

fn is_unicast(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !address.is_unspecified() && !address.is_multicast() && !is_broadcast
}

fn served(port: &ServicePort, settings: &Settings) -> Vec<Served> {
    let frontend = &port.frontend;
    let sticky = frontend.affinity.is_some() && port.has_endpoints;
    let mut all = vec![internal(port, settings, sticky)];
    let external_flags = external(port, sticky);
    let at = |address| Front {
        address: Some(address),
        protocol: frontend.protocol,
        port: frontend.port,
    };
    let external_ips = frontend
        .external_ips
        .iter()
        .filter(|_| settings.external_ips);
    for address in external_ips.chain(&frontend.load_balancer_ips) {
        let is_guarded =
            !frontend.source_ranges.is_empty() && frontend.load_balancer_ips.contains(address);
        let ranges = if is_guarded {
            Flags::RANGES
        } else {
            Flags::NONE
        };
        all.push(Served {
            front: at(*address),
            list: List::Cluster,
            flags: external_flags.and(ranges),
        });
    }
    if let Some(node_port) = frontend.node_port {
        all.push(Served {
            front: Front {
                address: None,
                protocol: frontend.protocol,
                port: node_port,
            },
            list: List::Cluster,
            flags: external_flags,
        });
    }
    // An address may be named twice; the first counts.
    let mut seen = HashSet::with_capacity(all.len());
    all.retain(|served| seen.insert(served.front));
    all
}

fn internal(port: &ServicePort, settings: &Settings, sticky: bool) -> Served {
    let frontend = &port.frontend;
    let (list, sticky_flag) = if frontend.internal_local {
        (List::Local, Flags::STICKY_LOCAL)
    } else {
        (List::Cluster, Flags::STICKY)
    };
    let mut flags = if settings.masquerade_all {
        Flags::MASQUERADE
    } else if settings.local_detector.is_some() {
        Flags::MASQUERADE_FOREIGN
    } else {
        Flags::NONE
    };
    if port.has_endpoints && !port.has_internal_endpoints() {
        flags = flags.and(Flags::DROP);
    } else if sticky {
        flags = flags.and(sticky_flag);
    }
    Served {
        front: Front {
            address: Some(frontend.cluster_ip),
            protocol: frontend.protocol,
            port: frontend.port,
        },
        list,
        flags,
    }
}

fn external(port: &ServicePort, sticky: bool) -> Flags {
    if !port.has_endpoints {
        return Flags::NONE;
    }
    let policy = if port.frontend.external_local {
        Flags::LOCAL
    } else {
        Flags::MASQUERADE
    };
    if sticky {
        policy.and(Flags::STICKY)
    } else {
        policy
    }
}

/// The elements of a Service whose ports are numbered like this. Fronts for which `has` is false are
/// another Service's.
pub(crate) fn entries(
    service: &Service,
    numbering: &[Numbering],
    settings: &Settings,
    has: &dyn Fn(&Front) -> bool,
) -> Entries {
    let mut entries = Entries::default();
    for (port, numbering) in service.ports.iter().zip(numbering) {
        let name = port_name(service, port);
        let mut writer = Writer {
            port,
            frontend: &port.frontend,
            numbering,
            settings,
            slots: HashMap::new(),
            entries: &mut entries,
        };
        writer.assign_slots();
        writer.sticky_endpoints();
        for served in served(port, settings) {
            if has(&served.front) {
                writer.front(served, &name);
            }
        }
        writer.shared();
    }
    entries
}

struct Writer<'a> {
    port: &'a ServicePort,
    frontend: &'a Frontend,
    numbering: &'a Numbering,
    settings: &'a Settings,
    /// The identity of each endpoint of a port with affinity.
    slots: HashMap<SocketAddr, u32>,
    entries: &'a mut Entries,
}

impl Writer<'_> {
    fn list(&self, list: List) -> &[SocketAddr] {
        self.numbering.list(self.port, list)
    }

    /// An endpoint's identity depends on its address alone, as far as no other has the same:
    /// clients find it again whatever else happens to the Service.
    fn assign_slots(&mut self) {
        let Some(identity) = self.numbering.identity else {
            return;
        };
        let mut endpoints: Vec<SocketAddr> = [List::Cluster, List::Local]
            .iter()
            .flat_map(|list| self.list(*list))
            .copied()
            .collect();
        endpoints.sort_unstable();
        endpoints.dedup();
        let mut taken = HashSet::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let mut slot = hash(endpoint);
            while slot == 0 || !taken.insert(slot) {
                slot = slot.wrapping_add(1);
            }
            let identity = u32::from(identity) << 16 | u32::from(slot);
            self.slots.insert(endpoint, identity);
        }
    }

    fn sticky_endpoints(&mut self) {
        if self.numbering.identity.is_none() {
            return;
        }
        for (list, collection) in [
            (List::Cluster, Collection::StickyEndpoints),
            (List::Local, Collection::StickyLocalEndpoints),
        ] {
            let protocol = Value::EMPTY.with(&[protocol_number(self.frontend.protocol)]);
            let found: Vec<Entry> = self
                .list(list)
                .iter()
                .filter_map(|endpoint| {
                    let slot = self.slots.get(endpoint)?;
                    Some(Entry {
                        collection,
                        key: protocol.with_number(*slot),
                        content: Content::Data(endpoint_value(*endpoint)),
                    })
                })
                .collect();
            self.entries.own.extend(found);
        }
    }

    fn front(&mut self, served: Served, name: &Arc<str>) {
        let Served { front, list, flags } = served;
        let kind = front.kind();
        let key = front.key();
        let count = count(self.list(list));
        self.entries.own.push(Entry {
            collection: Collection::of(kind, FrontMap::Services),
            key,
            content: Content::Named(Value::EMPTY.with_number(flags.0 | count), name.clone()),
        });
        self.entries.counts.push(count);
        let sticky = flags.contains(Flags::STICKY) || flags.contains(Flags::STICKY_LOCAL);
        let sticky = self.numbering.identity.filter(|_| sticky);
        self.endpoints(kind, key, List::Cluster, list, sticky.is_some());
        if flags.contains(Flags::LOCAL) || flags.contains(Flags::STICKY_LOCAL) {
            let local = self.list(List::Local).len();
            let local = u32::try_from(local).unwrap_or(0);
            let counts = Collection::of(kind, FrontMap::LocalCounts);
            self.entries.own.push(Entry::number(counts, key, local));
            self.entries.counts.push(local);
            self.endpoints(kind, key, List::Local, List::Local, sticky.is_some());
        }
        if let (Some(identity), Some(seconds)) = (sticky, self.frontend.affinity) {
            let identity = u32::from(identity) << 16;
            let own = &mut self.entries.own;
            let of = |map| Collection::of(kind, map);
            own.push(Entry::number(of(FrontMap::Affinity), key, identity));
            own.push(Entry::number(of(FrontMap::Timeouts), key, seconds));
            self.entries.timeouts.push(seconds);
        }
        if flags.contains(Flags::RANGES) {
            self.source_ranges(key, &front);
        }
    }

    /// Writes a list under the numbers of `numbers`.
    fn endpoints(
        &mut self,
        kind: FrontKind,
        front: Value,
        numbers: List,
        list: List,
        sticky: bool,
    ) {
        let endpoints = self.numbering.list(self.port, list);
        for (place, endpoint) in endpoints.iter().enumerate() {
            let key = front.with_number(numbers.number(place));
            self.entries.own.push(Entry {
                collection: Collection::of(kind, FrontMap::Endpoints),
                key,
                content: Content::Data(endpoint_value(*endpoint)),
            });
            if let (true, Some(slot)) = (sticky, self.slots.get(endpoint)) {
                let slots = Collection::of(kind, FrontMap::Slots);
                self.entries.own.push(Entry::number(slots, key, *slot));
            }
        }
    }

    fn source_ranges(&mut self, key: Value, front: &Front) {
        let mut ranges = self.frontend.source_ranges.to_vec();
        // As kube-proxy: what the node itself sends to the address may carry that address.
        let includes_node = ranges.iter().any(|r| r.contains(&self.settings.node_ip));
        if let (true, Some(address)) = (includes_node, front.address) {
            ranges.push(IpNet::from(address));
        }
        for range in IpNet::aggregate(&ranges) {
            let end = |value: IpAddr| join(key, address(value));
            self.entries.own.push(Entry {
                collection: Collection::SourceRanges,
                key: end(range.network()),
                content: Content::Until(end(range.broadcast())),
            });
        }
    }

    fn shared(&mut self) {
        let own = address(self.frontend.cluster_ip);
        let shared = &mut self.entries.shared;
        shared.push(Entry::bare(Collection::ClusterIps, own));
        for endpoint in &self.port.on_node {
            let address = address(*endpoint);
            let key = join(address, address);
            shared.push(Entry::bare(Collection::Hairpin, key));
        }
    }
}

fn count(list: &[SocketAddr]) -> u32 {
    u32::try_from(list.len()).unwrap_or(0)
}

/// Fields behind fields.
fn join(first: Value, second: Value) -> Value {
    first.with(second.as_bytes())
}

/// FNV-1a, folded: the same in every version of this program.
fn hash(endpoint: SocketAddr) -> u16 {
    let value = endpoint_value(endpoint);
    let folded = value.as_bytes().iter().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    let [a, b, c, d] = folded.to_le_bytes();
    u16::from_le_bytes([a ^ c, b ^ d])
}
