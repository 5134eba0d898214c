//! Ways of packets from clients to fronts, and differences between those on two sites.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
};

use weft_testkit::packets::{Answer, Fate, Location, Probe, Site, Transport};

use super::front::Front;

/// A sender of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Client {
    /// Pods that are not endpoints of the Service, each with an address of its own.
    Pods,
    /// A pod of this node that is an endpoint of the Service, ready or not.
    Endpoint(IpAddr),
    /// The node, from its primary address.
    Node,
    /// Outside of the cluster, each with an address of its own.
    Outside,
    /// Outside, with an address in ranges that load balancers allow.
    Allowed,
}

impl Client {
    const ALLOWED: [&str; 2] = ["203.0.113.5", "2001:db8:1::5"];

    fn all(front: &Front) -> Vec<Self> {
        if front.target.ip().is_loopback() {
            return vec![Self::Node];
        }
        let mut clients = vec![Self::Pods, Self::Node, Self::Outside, Self::Allowed];
        let [first, last] = [front.local_endpoints.first(), front.local_endpoints.last()];
        let own: BTreeSet<IpAddr> = first.into_iter().chain(last).copied().collect();
        clients.extend(own.into_iter().map(Self::Endpoint));
        clients
    }

    fn location(self) -> Location {
        match self {
            Self::Pods | Self::Endpoint(_) => Location::Pods,
            Self::Node => Location::Node,
            Self::Outside | Self::Allowed => Location::Outside,
        }
    }

    fn source(self, front: &Front, number: u16) -> IpAddr {
        let is_ipv6 = front.target.is_ipv6();
        match self {
            Self::Endpoint(address) => address,
            Self::Allowed => Self::ALLOWED[usize::from(is_ipv6)].parse().unwrap(),
            Self::Node if front.target.ip().is_loopback() => front.target.ip(),
            Self::Node | Self::Pods | Self::Outside => self.location().source(number, is_ipv6),
        }
    }

    /// The part of its ways that is the same on two sites once it has sent often enough.
    fn detail(self, front: &Front) -> Detail {
        match self {
            // Affinity keeps one address at one endpoint, which is another one on each site, and
            // may be the sender.
            Self::Endpoint(_) if front.has_affinity => Detail::Arrival,
            Self::Allowed => Detail::Source,
            Self::Node if front.has_affinity => Detail::Source,
            Self::Pods | Self::Outside | Self::Node | Self::Endpoint(_) => Detail::Endpoint,
        }
    }

    /// True if each of its requests has a source of its own, so that no other front decides about
    /// its endpoint.
    fn is_many(self) -> bool {
        matches!(self, Self::Pods | Self::Outside)
    }
}

/// The part of a way that two sites can be compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Detail {
    /// Only whether a request arrives.
    Arrival,
    /// The source that its receiver sees, too.
    Source,
    /// And the endpoint.
    Endpoint,
}

/// The way of a packet, without what differs by chance or by a documented choice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// `None` for parts that are random.
    Arrived {
        at: Option<SocketAddr>,
        seen: Option<(Seen, Back)>,
    },
    /// It left the node with the address that it was sent to.
    Untranslated(Seen),
    Refused(Refusal),
    /// The node itself accepted the connection, as it does for health checks.
    Accepted,
    Silent,
    /// A second connection of the same client came to another endpoint in spite of affinity.
    Strayed,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Itself,
    Another(IpAddr),
}

/// The answer of an endpoint as its client gets it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Back {
    FromFront(Answer),
    /// Not translated on the way, as between two pods that see each other's addresses.
    Direct(Answer),
    Missing,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Refusal {
    /// By a reset or by ICMP.
    Tcp,
    /// ICMP of this code.
    Code(u8),
}

impl Way {
    fn of(fate: &Fate, probe: &Probe, detail: Detail) -> Self {
        if let Some((at, seen)) = fate.arrived {
            let seen_as = if seen == probe.source {
                Seen::Itself
            } else {
                Seen::Another(seen)
            };
            if at == probe.target {
                return Self::Untranslated(seen_as);
            }
            let answer = match fate.answered {
                None => Back::Missing,
                Some((answer, from)) if from == probe.target => Back::FromFront(answer),
                Some((answer, _)) => Back::Direct(answer),
            };
            return Self::Arrived {
                at: (detail >= Detail::Endpoint).then_some(at),
                seen: (detail >= Detail::Source).then_some((seen_as, answer)),
            };
        }
        match fate.answered {
            None => Self::Silent,
            Some((Answer::Accepted, _)) => Self::Accepted,
            Some(_) if probe.transport == Transport::Tcp => Self::Refused(Refusal::Tcp),
            Some((Answer::Unreachable(code), _)) => Self::Refused(Refusal::Code(code)),
            Some((Answer::Reset, _)) => unreachable!("only TCP has resets"),
        }
    }
}

/// The ways from each client to each front.
#[derive(Default)]
pub(super) struct Observations(BTreeMap<(String, Client, Front), BTreeSet<Way>>);

/// Sends from every client to every front, `tries` times for each endpoint.
pub(super) fn observe(site: &mut Site, fronts: &[Front], tries: usize) -> Observations {
    let mut number = 0;
    let mut probes = Vec::new();
    let mut of = Vec::new();
    for front in fronts {
        for client in Client::all(front) {
            let count = match client.detail(front) {
                Detail::Endpoint => 2 + tries * front.endpoints.len(),
                Detail::Arrival | Detail::Source => 2,
            };
            for _ in 0..count {
                number += 1;
                probes.push(Probe {
                    from: client.location(),
                    source: client.source(front, number),
                    transport: front.transport,
                    target: front.target,
                });
                of.push((client, front));
            }
        }
    }
    let fates = site.send(&probes);
    let mut found = Observations::default();
    for ((fate, probe), (client, front)) in fates.iter().zip(&probes).zip(&of) {
        let way = Way::of(fate, probe, client.detail(front));
        found.add(*client, front, way);
    }
    // The same senders once more: affinity leads each to its endpoint.
    let again: Vec<usize> = (0..probes.len())
        .filter(|at| of[*at].1.has_affinity && of[*at].0.is_many())
        .collect();
    let second: Vec<Probe> = again.iter().map(|at| probes[*at]).collect();
    for (fate, at) in site.send(&second).iter().zip(again) {
        let endpoint = |fate: &Fate| fate.arrived.map(|(endpoint, _)| endpoint);
        if endpoint(fate) != endpoint(&fates[at]) {
            found.add(of[at].0, of[at].1, Way::Strayed);
        }
    }
    found
}

impl Observations {
    fn add(&mut self, client: Client, front: &Front, way: Way) {
        let key = (front.name.clone(), client, front.clone());
        self.0.entry(key).or_default().insert(way);
    }

    /// Sentences about ways of one site that the other does not have.
    pub(super) fn differences(&self, found: &Self) -> Vec<String> {
        let pairs = self.0.iter().zip(&found.0);
        let different = pairs.filter(|((_, expected), (_, found))| expected != found);
        let words = different.map(|(((name, client, front), expected), (_, found))| {
            let only = |these: &BTreeSet<Way>, those: &BTreeSet<Way>| {
                these
                    .difference(those)
                    .map(|way| format!("{way:?}"))
                    .collect::<Vec<_>>()
            };
            format!(
                "{name}: {client:?} to {:?} {}{}: only the reference {:?}, only weft {:?}",
                front.transport,
                front.target,
                if front.has_affinity {
                    " with affinity"
                } else {
                    ""
                },
                only(expected, found),
                only(found, expected),
            )
        });
        words.collect()
    }

    /// Takes over what nftables does where the modes of upstream differ. What the node itself sends
    /// to an external address without endpoints may be refused by nftables, but leaves the node
    /// untranslated with iptables, which refuses on the way in and through. Addresses of
    /// the ServiceCIDRs that no Service of this proxy has are dropped by nftables alone. And iptables
    /// remembers 100 clients for affinity (`xt_recent`).
    pub(super) fn forgive_iptables(&mut self, nftables: &Self) {
        for ((key, ways), other) in self.0.iter_mut().zip(nftables.0.values()) {
            ways.remove(&Way::Strayed);
            let (_, client, front) = key;
            let is_untranslated = |way: &Way| matches!(way, Way::Untranslated(_));
            if !ways.iter().all(is_untranslated) {
                continue;
            }
            let is_refused = |way: &Way| matches!(way, Way::Refused(_));
            let is_refused = *client == Client::Node && other.iter().all(is_refused);
            let is_dropped = front.is_cluster_ip() && other.iter().all(|way| *way == Way::Silent);
            if is_refused || is_dropped {
                ways.clone_from(other);
            }
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for way in self.0.values().flatten() {
            match way {
                Way::Arrived { .. } => counts.arrived += 1,
                Way::Untranslated(_) => counts.untranslated += 1,
                Way::Refused(_) => counts.refused += 1,
                Way::Accepted => counts.accepted += 1,
                Way::Silent => counts.silent += 1,
                Way::Strayed => counts.strayed += 1,
            }
        }
        counts.pairs = self.0.len();
        counts
    }
}

/// Number of pairs of client and front, and of the different ways between them.
#[derive(Default)]
pub(super) struct Counts {
    pairs: usize,
    arrived: usize,
    untranslated: usize,
    refused: usize,
    accepted: usize,
    silent: usize,
    strayed: usize,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.pairs += other.pairs;
        self.arrived += other.arrived;
        self.untranslated += other.untranslated;
        self.refused += other.refused;
        self.accepted += other.accepted;
        self.silent += other.silent;
        self.strayed += other.strayed;
    }

    /// Panics if so few packets went each way that two broken proxies could agree.
    pub(super) fn assert_enough(&self) {
        let Self {
            pairs,
            arrived,
            refused,
            silent,
            ..
        } = self;
        assert!(*arrived > 100 && *refused > 100 && *silent > 10, "{self}");
        assert!(arrived * 10 > *pairs, "{self}");
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pairs,
            arrived,
            untranslated,
            refused,
            accepted,
            silent,
            strayed,
        } = self;
        write!(
            f,
            "{pairs} pairs of client and front; {arrived} ways to endpoints, {untranslated} \
             untranslated, {refused} refused, {accepted} accepted by the node, {silent} silent, {strayed} strayed from affinity"
        )
    }
}
