//! Event traces of simulated clusters.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net};
use weft_model::SharedStr;

use crate::{Cidr, Moment, Node, NodeAddress, Random, Route};

/// An event of a cluster or its provider.
#[derive(Clone, Debug)]
pub enum ClusterEvent {
    /// A node was added or changed.
    Apply(Node),
    /// A node was deleted.
    Delete(SharedStr),
    /// The watch breaks; nodes are listed again after this time, and no event arrives until then.
    WatchCut(Duration),
    /// The controller restarts, with the record of routes that are ours and nothing else.
    Restart,
    /// A route is deleted at the provider, from outside.
    RouteLost(Cidr),
    /// A foreign route is added at the provider.
    ForeignRoute(Route),
}

/// Initial nodes and timed events of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Nodes that exist at the start, with their routes.
    pub initial: Vec<Node>,
    /// Events in order of time.
    pub events: Vec<(Moment, ClusterEvent)>,
}

impl Trace {
    /// Sorts the events by time; those of one moment keep their order.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.events.sort_by_key(|(at, _)| *at);
        self
    }
}

/// Allocates names, addresses and the lowest free range: a range is used again soon after it was
/// freed.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    joined: u32,
    taken: BTreeSet<u32>,
}

impl Fleet {
    /// The range that contains the ranges of all nodes.
    pub fn cluster_cidr() -> IpNet {
        IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 64, 0, 0), 10))
    }

    /// A new node in its final state, with range and address.
    pub fn join(&mut self) -> Node {
        let number = self.joined;
        self.joined += 1;
        let mut free = 0;
        while self.taken.contains(&free) {
            free += 1;
        }
        self.taken.insert(free);
        let base = u32::from(Ipv4Addr::new(10, 64, 0, 0));
        let range = Ipv4Net::new_assert(Ipv4Addr::from(base + free * 256), 24);
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(172, 16, 0, 1)) + number);
        Node {
            name: SharedStr::new(&format!("node-{number}")),
            uid: SharedStr::new(&format!("uid-{number}")),
            pod_cidrs: vec![Cidr::from(IpNet::V4(range))],
            addresses: vec![NodeAddress::internal(IpAddr::V4(address))],
            ..Node::default()
        }
    }

    /// Frees the node's range.
    pub fn leave(&mut self, node: &Node) {
        for cidr in &node.pod_cidrs {
            if let Ok(IpNet::V4(net)) = cidr.net() {
                let base = u32::from(Ipv4Addr::new(10, 64, 0, 0));
                self.taken
                    .remove(&((u32::from(net.network()) - base) / 256));
            }
        }
    }
}

/// Parameters of a trace in which nodes join and leave.
#[derive(Clone, Copy, Debug)]
pub struct Churn {
    /// Number of nodes at the start.
    pub nodes: usize,
    /// Mean number of nodes that join in an hour; as many leave.
    pub per_hour: f64,
    /// Number of nodes that join or leave together.
    pub burst: usize,
    /// Length of the trace.
    pub length: Duration,
}

impl Churn {
    /// A random trace with these parameters.
    pub fn trace(&self, seed: u64) -> Trace {
        let mut random = Random::new(seed);
        let mut fleet = Fleet::default();
        let initial: Vec<Node> = (0..self.nodes).map(|_| fleet.join()).collect();
        let mut alive = initial.clone();
        let mut trace = Trace {
            initial,
            events: Vec::new(),
        };
        // Let the start settle first; it is measured by other scenarios.
        let mut now = Moment::seconds(60);
        let end = Moment::after_start(self.length);
        #[expect(clippy::cast_precision_loss, reason = "bursts are small")]
        let bursts = self.per_hour / self.burst as f64;
        let mean = Duration::from_secs_f64(1800.0 / bursts);
        let mut joining = true;
        loop {
            now = now + random.exponential(mean);
            if now >= end {
                break;
            }
            for _ in 0..self.burst {
                let at = now + random.between(Duration::ZERO, Duration::from_secs(10));
                if joining {
                    let node = fleet.join();
                    joins(&mut trace, &node, at, &mut random);
                    alive.push(node);
                } else if let Some(node) = pick(&mut alive, &mut random) {
                    fleet.leave(&node);
                    trace.events.push((at, ClusterEvent::Delete(node.name)));
                }
            }
            // A range is free only when its node is gone.
            now = now + Duration::from_secs(13);
            joining = !joining;
        }
        heartbeats(&mut trace, end);
        trace.sorted()
    }
}

fn pick(alive: &mut Vec<Node>, random: &mut Random) -> Option<Node> {
    let count = u64::try_from(alive.len()).ok()?;
    let place = usize::try_from(random.below(count)).ok()?;
    (place < alive.len()).then(|| alive.swap_remove(place))
}

/// A node appears, gets its range, and reports its address.
pub(crate) fn joins(trace: &mut Trace, node: &Node, at: Moment, random: &mut Random) {
    let millis = Duration::from_millis;
    let bare = Node {
        pod_cidrs: Vec::new(),
        addresses: Vec::new(),
        ..node.clone()
    };
    let ranged = Node {
        pod_cidrs: node.pod_cidrs.clone(),
        ..bare.clone()
    };
    let range_at = at + random.between(millis(20), millis(300));
    let address_at = range_at.max(at + random.between(millis(300), millis(2500)));
    trace.events.push((at, ClusterEvent::Apply(bare)));
    trace.events.push((range_at, ClusterEvent::Apply(ranged)));
    trace
        .events
        .push((address_at, ClusterEvent::Apply(node.clone())));
}

/// Adds a heartbeat every ten seconds, of a node that stays to the end.
fn heartbeats(trace: &mut Trace, end: Moment) {
    let gone: BTreeSet<SharedStr> = trace
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            ClusterEvent::Delete(name) => Some(name.clone()),
            _ => None,
        })
        .collect();
    let steady = trace.initial.iter().find(|node| !gone.contains(&node.name));
    let Some(node) = steady.cloned() else {
        return;
    };
    let mut at = Moment::seconds(10);
    while at < end {
        trace.events.push((at, ClusterEvent::Apply(node.clone())));
        at = at + Duration::from_secs(10);
    }
}
