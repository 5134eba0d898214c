//! Follows a packet through the maps, in words.
//!
//! A second implementation of the program, over elements instead of packets: what it says is what
//! the rules do, for a packet that begins a connection.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
};

use weft_host::nftables::Value;
use weft_model::Protocol;
use weft_proxy::{Desired, LocalDetector, LoopbackNodePorts, NodePortTail, Settings};

use crate::{
    collection::{Collection, FrontMap},
    entry::{Content, read_endpoint},
    fixed::fixed_entries,
    front::{Front, address},
    kernel::{Kernel, KernelError, Structure},
    observed::{Depth, Observed},
    scratch::{COUNT_MASK, Flags, List},
    state::State,
    transaction::Step,
};

/// A packet that begins a connection.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Its sender.
    pub source: IpAddr,
    /// Its destination.
    pub destination: SocketAddr,
    /// Its protocol.
    pub protocol: Protocol,
    /// The device that it comes in by; none for what the node itself sends.
    pub device: Option<String>,
    /// The addresses of this node.
    pub local_addresses: BTreeSet<IpAddr>,
}

/// The outcome for a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// No Service is meant: it goes on as it is.
    Untouched,
    /// It gets one of these endpoints with the same probability each.
    Translated(Vec<SocketAddr>),
    /// Refused: the sender gets a reset or an ICMP error.
    Refused,
    /// It is lost without a word.
    Dropped,
}

/// A packet's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The decisions in order.
    pub steps: Vec<String>,
    /// The outcome.
    pub fate: Fate,
    /// True if the endpoint sees this node's address instead of the sender's. An endpoint that
    /// reaches itself always does.
    pub masqueraded: bool,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "{step}")?;
        }
        match &self.fate {
            Fate::Untouched => writeln!(f, "=> not a Service: not translated"),
            Fate::Refused => writeln!(f, "=> refused: TCP reset, or ICMP port unreachable"),
            Fate::Dropped => writeln!(f, "=> dropped"),
            Fate::Translated(endpoints) => {
                let source = if self.masqueraded {
                    "masqueraded"
                } else {
                    "source kept"
                };
                let count = u32::try_from(endpoints.len()).unwrap_or(u32::MAX);
                let percent = 100.0 / f64::from(count.max(1));
                for endpoint in endpoints {
                    writeln!(f, "=> {endpoint} with {percent:.3} %, {source}")?;
                }
                Ok(())
            }
        }
    }
}

/// Elements by collection and key.
type Elements = std::collections::HashMap<Collection, std::collections::HashMap<Value, Content>>;

/// Follows a packet through the elements that Services would become.
pub fn trace(desired: &Desired, settings: &Settings, packet: &Packet) -> Trace {
    let mut state = State::new(settings.clone());
    let mut elements = Elements::new();
    for entry in fixed_entries(settings) {
        let collection = elements.entry(entry.collection).or_default();
        collection.insert(entry.key, entry.content);
    }
    for (key, service) in desired {
        let applied = state.number(service, &|_| None);
        for step in state.swap(key, Some(applied)).steps {
            if let Step::Add(entry) = step {
                let collection = elements.entry(entry.collection).or_default();
                collection.insert(entry.key, entry.content);
            }
        }
    }
    Walk::new(&elements, settings, packet).run()
}

/// Follows a packet through the elements that the kernel has. `None` if it has no table of ours.
pub fn trace_live(
    kernel: &mut dyn Kernel,
    settings: &Settings,
    packet: &Packet,
) -> Result<Option<Trace>, KernelError> {
    if kernel.structure()?.is_none() {
        return Ok(None);
    }
    // Chains and rules are not looked at: the walk knows them.
    let structure = Structure::default();
    let observed = Observed::read(kernel, structure, settings.family, Depth::Reachable)?;
    let walk = Walk::new(&observed.elements, settings, packet);
    Ok(Some(walk.run()))
}

struct Walk<'a> {
    elements: &'a Elements,
    settings: &'a Settings,
    packet: &'a Packet,
    steps: Vec<String>,
    masqueraded: bool,
}

impl<'a> Walk<'a> {
    fn new(elements: &'a Elements, settings: &'a Settings, packet: &'a Packet) -> Self {
        Self {
            elements,
            settings,
            packet,
            steps: Vec::new(),
            masqueraded: false,
        }
    }

    fn run(mut self) -> Trace {
        let fate = self.fate();
        Trace {
            steps: self.steps,
            fate,
            masqueraded: self.masqueraded,
        }
    }

    fn say(&mut self, words: impl Into<String>) {
        self.steps.push(words.into());
    }

    fn content(&self, collection: Collection, key: &Value) -> Option<&'a Content> {
        self.elements.get(&collection)?.get(key)
    }

    fn number(&self, front: &Front, map: FrontMap) -> Option<u32> {
        let collection = Collection::of(front.kind(), map);
        self.content(collection, &front.key())?
            .data()?
            .last_number()
    }

    fn fate(&mut self) -> Fate {
        let destination = self.packet.destination;
        let by_address = Front {
            address: Some(destination.ip()),
            protocol: self.packet.protocol,
            port: destination.port(),
        };
        let by_port = Front {
            address: None,
            ..by_address
        };
        if self.number(&by_address, FrontMap::Services).is_some() {
            return self.front(&by_address);
        }
        if self.is_node_port_address() && self.number(&by_port, FrontMap::Services).is_some() {
            return self.front(&by_port);
        }
        if destination.ip().is_loopback()
            && self.is_rejected_on_loopback()
            && self.number(&by_port, FrontMap::Services).is_some()
        {
            self.say("a NodePort on a loopback address, which no listener has");
            return Fate::Refused;
        }
        let key = address(destination.ip());
        if self.content(Collection::ClusterIps, &key).is_some() {
            self.say(format!(
                "{} is a ClusterIP that has no such port",
                destination.ip()
            ));
            return Fate::Refused;
        }
        let is_local = self.packet.local_addresses.contains(&destination.ip());
        if self.is_in_service_networks(key) && !is_local {
            self.say(format!(
                "{} is in the ServiceCIDRs, and no Service has it",
                destination.ip()
            ));
            return Fate::Dropped;
        }
        Fate::Untouched
    }

    fn is_in_service_networks(&self, key: Value) -> bool {
        let networks = self.elements.get(&Collection::ServiceNetworks);
        networks.into_iter().flatten().any(|(first, content)| {
            let last = content.end();
            *first <= key && last.is_some_and(|last| key <= last)
        })
    }

    fn is_rejected_on_loopback(&self) -> bool {
        match self.settings.loopback {
            LoopbackNodePorts::Untouched => false,
            LoopbackNodePorts::Rejected => true,
            LoopbackNodePorts::TcpServed => self.packet.protocol != Protocol::Tcp,
        }
    }

    fn is_node_port_address(&self) -> bool {
        let address = self.packet.destination.ip();
        match &self.settings.node_port_tail {
            NodePortTail::AnyLocal => {
                self.packet.local_addresses.contains(&address) && !address.is_loopback()
            }
            NodePortTail::Addresses(addresses) => addresses.contains(&address),
        }
    }

    fn front(&mut self, front: &Front) -> Fate {
        let services = Collection::of(front.kind(), FrontMap::Services);
        let value = self.number(front, FrontMap::Services).unwrap_or(0);
        let (flags, count) = (Flags(value & !COUNT_MASK), value & COUNT_MASK);
        let name = match self.content(services, &front.key()) {
            Some(Content::Named(_, name)) => name.to_string(),
            _ => "a Service without a name".to_owned(),
        };
        self.say(format!(
            "{}: {front} is {name}, {count} endpoints",
            services.name()
        ));
        let is_pod = self.is_pod();
        if flags.contains(Flags::MASQUERADE_FOREIGN) && !is_pod {
            self.masqueraded = true;
            self.say("the sender is not a pod of this node: masquerade");
        }
        if flags.contains(Flags::DROP) && count == 0 {
            self.say("no endpoint on this node, which its policy demands");
            return Fate::Dropped;
        }
        if flags.contains(Flags::RANGES) && !self.is_in_ranges(front) {
            self.say(format!(
                "{} is not in its source ranges",
                self.packet.source
            ));
            return Fate::Dropped;
        }
        if flags.contains(Flags::MASQUERADE) {
            self.masqueraded = true;
            self.say("masquerade");
        }
        let mut list = List::Cluster;
        if flags.contains(Flags::LOCAL) && !is_pod {
            if self.packet.local_addresses.contains(&self.packet.source) {
                self.masqueraded = true;
                self.say("policy Local, but this node itself sends: all endpoints, masquerade");
            } else {
                list = List::Local;
                self.say("policy Local: endpoints of this node alone");
            }
        }
        if flags.contains(Flags::STICKY) || flags.contains(Flags::STICKY_LOCAL) {
            let seconds = self.number(front, FrontMap::Timeouts).unwrap_or(0);
            self.say(format!(
                "affinity: the endpoint that it had within {seconds} s, else one of these"
            ));
        }
        self.endpoints(front, list)
    }

    fn endpoints(&mut self, front: &Front, list: List) -> Fate {
        let map = match list {
            List::Cluster => FrontMap::Services,
            List::Local => FrontMap::LocalCounts,
        };
        let count = self.number(front, map).unwrap_or(0) & COUNT_MASK;
        let collection = Collection::of(front.kind(), FrontMap::Endpoints);
        let numbers = 0..usize::try_from(count).unwrap_or(0);
        let endpoints: Vec<SocketAddr> = numbers
            .filter_map(|place| {
                let key = front.key().with_number(list.number(place));
                let content = self.content(collection, &key)?;
                read_endpoint(self.settings.family, content.data()?)
            })
            .collect();
        match (endpoints.is_empty(), list) {
            (false, _) => Fate::Translated(endpoints),
            (true, List::Cluster) => Fate::Refused,
            (true, List::Local) => Fate::Dropped,
        }
    }

    fn is_pod(&self) -> bool {
        let device = self.packet.device.as_deref();
        match &self.settings.local_detector {
            None => false,
            Some(LocalDetector::Network(network)) => network.contains(&self.packet.source),
            Some(LocalDetector::Bridge(name)) => device == Some(&**name),
            Some(LocalDetector::InterfacePrefix(prefix)) => {
                device.is_some_and(|device| device.starts_with(&**prefix))
            }
        }
    }

    fn is_in_ranges(&self, front: &Front) -> bool {
        let key = front.key().with(address(self.packet.source).as_bytes());
        let ranges = self.elements.get(&Collection::SourceRanges);
        let ranges: BTreeMap<&Value, &Content> = ranges.into_iter().flatten().collect();
        ranges.into_iter().any(|(first, content)| match content {
            Content::Until(last) => *first <= key && key <= *last,
            _ => false,
        })
    }
}
