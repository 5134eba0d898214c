//! Reports on a node's addresses: readiness, CNS debug pages, and explanations for operators.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};
use weft_cns::{
    AddressFilter, AddressState, AddressStatus, AddressesResponse, FamilyCounts, IpSubnet,
    PodContextResponse, PodRecord, PoolCounts, Response, RestData, RestDataResponse, Serving,
    StatusResponse,
};
use weft_ipam::{
    ContainerResult, needed,
    pool::{AddressCounts, Attachment, Key, Pool, State},
    scaling::Scaler,
};
use weft_model::IpFamily;

use crate::handle::{Snapshot, Startup};

/// Counts of the family with the fewest free addresses: a pod needs one of each.
pub(crate) fn scarcest(pool: &Pool) -> AddressCounts {
    let families = pool.served_families().into_iter();
    let counts = families.map(|family| pool.address_counts(family));
    counts
        .min_by_key(|counts| counts.available)
        .unwrap_or_default()
}

fn family_counts(counts: AddressCounts) -> FamilyCounts {
    FamilyCounts {
        assigned: counts.assigned.into(),
        available: counts.available.into(),
        cooling: counts.cooling.into(),
        pending_release: counts.releasing.into(),
        pending_programming: counts.programming.into(),
        quarantined: counts.quarantined.into(),
    }
}

/// Name of a family in reports and metrics.
pub(crate) fn family_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "ipv4",
        IpFamily::V6 => "ipv6",
    }
}

/// Gateways of the subnets that pods get addresses of; none while addresses are unknown.
fn gateways(snapshot: &Snapshot<'_>) -> Vec<IpSubnet> {
    let config = snapshot.config.filter(|_| snapshot.pool.is_ready());
    let containers = config.map_or(&[][..], |config| &config.status.containers);
    let families = |container| IpFamily::ALL.map(|family| (container, family));
    let mut found = Vec::new();
    for (container, family) in containers.iter().flat_map(families) {
        if let Some(address) = container.gateway(family) {
            let gateway = IpSubnet::of(address, container.prefix(family));
            if !found.contains(&gateway) {
                found.push(gateway);
            }
        }
    }
    found
}

fn demand(snapshot: &Snapshot<'_>) -> u32 {
    let pods = snapshot.pods.map_or(0, <[_]>::len);
    needed(snapshot.pool, u32::try_from(pods).unwrap_or(u32::MAX))
}

/// The reason why an ADD cannot be served; `None` if it can.
pub(crate) fn obstacle(snapshot: &Snapshot<'_>) -> Option<&'static str> {
    let full = snapshot.config.is_some_and(|config| {
        let mut containers = config.status.containers.iter();
        containers.any(|container| container.result == Some(ContainerResult::SubnetFull))
    });
    if !snapshot.store_open {
        Some("the address store cannot be written")
    } else if snapshot.config.is_none() {
        Some("the NodeNetworkConfig of this node was not observed yet")
    } else if is_of_former_node(snapshot) {
        Some(
            "the NodeNetworkConfig is of a deleted Node of this name: addresses are unknown until \
             the controller ipam has replaced it",
        )
    } else if snapshot.config.is_some_and(|config| config.deleting) {
        Some(
            "the NodeNetworkConfig of this node was deleted: addresses are unknown until the \
             controller ipam has created it again",
        )
    } else if snapshot.pool.awaits_pods() {
        Some("the pods of this node were not listed yet")
    } else if !snapshot.pool.is_ready() {
        Some("the addresses of this node are not known yet")
    } else if scarcest(snapshot.pool).available == 0 && full {
        Some("node and subnet have run out of addresses")
    } else {
        None
    }
}

/// True if the NodeNetworkConfig has another Node as owner: the Node was deleted, and registered again.
fn is_of_former_node(snapshot: &Snapshot<'_>) -> bool {
    let (Some(config), Some(node)) = (snapshot.config, snapshot.node) else {
        return false;
    };
    config.owner.as_ref() != Some(node)
}

/// A condition that operators should know although ADDs are served.
fn remark(snapshot: &Snapshot<'_>) -> Option<&'static str> {
    let holds_back = snapshot.pool.holds_back();
    holds_back.then_some(
        "the address store was lost: addresses that no running pod uses are held back for up to 4 minutes",
    )
}

pub(crate) fn status(snapshot: &Snapshot<'_>) -> StatusResponse {
    let counts = family_counts(scarcest(snapshot.pool));
    let requested = snapshot.config.map_or(0, |config| config.spec.requested);
    let obstacle = obstacle(snapshot);
    let families = snapshot.pool.served_families().into_iter();
    StatusResponse {
        serving: match obstacle {
            None => Serving::Ready,
            Some(_) => Serving::Unavailable,
        },
        reason: (obstacle.or_else(|| remark(snapshot)))
            .unwrap_or_default()
            .to_owned(),
        // A store that cannot be written, or a former Node's addresses, are not about the start.
        starting: snapshot.startup == Startup::Pending
            && snapshot.store_open
            && obstacle.is_some()
            && !is_of_former_node(snapshot),
        gateways: gateways(snapshot),
        container_runtime: snapshot.container_runtime.to_owned(),
        pool: PoolCounts {
            assigned: counts.assigned,
            available: counts.available,
            cooling: counts.cooling,
            pending_release: counts.pending_release,
            pending_programming: counts.pending_programming,
            quarantined: counts.quarantined,
            families: families
                .map(|family| {
                    let counts = snapshot.pool.address_counts(family);
                    (family_name(family).to_owned(), family_counts(counts))
                })
                .collect(),
            waiting: snapshot.pool.waiting().into(),
            demand: demand(snapshot).into(),
            requested: u64::try_from(requested).unwrap_or_default(),
        },
        response: Response::success(),
    }
}

/// Upstream's name of a state. It has none for cooldown, which is not available, nor for
/// quarantine, in which a pod holds the address.
fn address_state(state: &State) -> AddressState {
    match state {
        State::Programming | State::Cooldown { .. } => AddressState::PendingProgramming,
        State::Available { .. } => AddressState::Available,
        State::Assigned { .. } | State::Quarantined { .. } => AddressState::Assigned,
        State::Releasing { .. } => AddressState::PendingRelease,
    }
}

/// Upstream's id of an address is the entry's name; for an address of a block it is name and
/// address.
fn address_id(snapshot: &Snapshot<'_>, address: IpAddr) -> (String, String) {
    match snapshot.pool.origin(address) {
        None => (address.to_string(), String::new()),
        Some((name, container)) => (format!("{name}/{address}"), container.to_string()),
    }
}

fn record(key: &Key, held: &Attachment) -> PodRecord {
    PodRecord {
        pod_name: held.pod.name.to_string(),
        pod_namespace: held.pod.namespace.to_string(),
        pod_infra_container_id: key.container.to_string(),
        pod_interface_id: key.container.to_string(),
        version: 1,
        secondary_interface_set: false,
        pod_uid: held.pod.uid.as_ref().map(ToString::to_string),
    }
}

fn all_addresses(snapshot: &Snapshot<'_>) -> Vec<AddressStatus> {
    let attachments = snapshot.pool.attachments();
    let status = |(address, state): (IpAddr, &State)| {
        let (id, nc_id) = address_id(snapshot, address);
        let owner = state.owner();
        AddressStatus {
            state: address_state(state),
            id,
            ip_address: address,
            last_state_transition: String::new(),
            nc_id,
            pod_info: owner.and_then(|key| Some(record(key, attachments.get(key)?))),
        }
    };
    snapshot.pool.states().map(status).collect()
}

pub(crate) fn addresses(snapshot: &Snapshot<'_>, filter: &AddressFilter) -> AddressesResponse {
    let mut addresses = all_addresses(snapshot);
    addresses.retain(|address| filter.states.contains(&address.state));
    AddressesResponse {
        addresses,
        response: Response::success(),
    }
}

fn by_key(snapshot: &Snapshot<'_>) -> BTreeMap<String, Vec<String>> {
    let attachments = snapshot.pool.attachments().iter();
    let ids = |held: &Attachment| {
        let leases = held.leases.iter();
        leases
            .map(|lease| address_id(snapshot, lease.address).0)
            .collect()
    };
    attachments
        .map(|(key, held)| (key.to_string(), ids(held)))
        .collect()
}

pub(crate) fn pod_context(snapshot: &Snapshot<'_>) -> PodContextResponse {
    PodContextResponse {
        pod_context: by_key(snapshot),
        response: Response::success(),
    }
}

pub(crate) fn rest_data(snapshot: &Snapshot<'_>) -> RestDataResponse {
    let addresses = all_addresses(snapshot).into_iter();
    RestDataResponse {
        data: RestData {
            by_key: by_key(snapshot),
            addresses: addresses
                .map(|address| (address.id.clone(), address))
                .collect(),
        },
        response: Response::success(),
    }
}

/// State of a pod's addresses, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Namespace and name of the pod.
    pub pod: String,
    /// True if the API server says that it runs here and needs an address.
    pub counted: bool,
    /// Attachments that the pod holds.
    pub attachments: Vec<Held>,
    /// The reason why an ADD cannot be served at present.
    pub obstacle: Option<String>,
    /// Free addresses of the family that has the fewest.
    pub available: u32,
    /// Number of waiting ADDs.
    pub waiting: u32,
    /// Number of addresses of each family that the node needs.
    pub demand: u32,
    /// Number of addresses of each family that the node should hold.
    pub target: u32,
}

/// An attachment of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Network, container and interface.
    pub key: String,
    /// Its addresses with their states.
    pub addresses: BTreeMap<IpAddr, String>,
    /// Age in seconds.
    pub seconds: u64,
}

pub(crate) fn explain(snapshot: &Snapshot<'_>, namespace: &str, name: &str) -> Explanation {
    let pods = snapshot.pods.unwrap_or_default().iter();
    let mut same =
        pods.filter(|pod| &*pod.identity.namespace == namespace && &*pod.identity.name == name);
    let states: BTreeMap<IpAddr, &State> = snapshot.pool.states().collect();
    let attachments = snapshot.pool.attachments().iter();
    let ours = attachments
        .filter(|(_, held)| &*held.pod.namespace == namespace && &*held.pod.name == name);
    let held = ours.map(|(key, held)| Held {
        key: key.to_string(),
        addresses: (held.leases.iter())
            .map(|lease| {
                let state = states.get(&lease.address);
                let state = state.map_or("unknown", |state| state.label());
                (lease.address, state.to_owned())
            })
            .collect(),
        seconds: snapshot.now.since(held.at).as_secs(),
    });
    let demand = demand(snapshot);
    let available = scarcest(snapshot.pool).available;
    let resting = || remark(snapshot).filter(|_| available == 0);
    let obstacle = obstacle(snapshot).or_else(resting);
    let scaler = snapshot.config.and_then(|config| config.status.scaler);
    Explanation {
        pod: format!("{namespace}/{name}"),
        counted: same.next().is_some(),
        attachments: held.collect(),
        obstacle: obstacle.map(str::to_owned),
        available,
        waiting: snapshot.pool.waiting(),
        demand,
        target: Scaler::read(scaler.as_ref()).0.target(demand),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pod {}", self.pod)?;
        let counted = if self.counted {
            "is bound to this node and counts in its demand"
        } else {
            "is not among the pods of this node that need addresses"
        };
        writeln!(f, "  {counted}")?;
        for held in &self.attachments {
            for (address, state) in &held.addresses {
                writeln!(
                    f,
                    "  has {address} ({state}) as {} for {} s",
                    held.key, held.seconds
                )?;
            }
        }
        if self.attachments.is_empty() {
            writeln!(f, "  has no address")?;
            match &self.obstacle {
                Some(obstacle) => writeln!(f, "  an ADD would wait: {obstacle}")?,
                None if self.available == 0 => {
                    writeln!(f, "  an ADD would wait until addresses arrive")?;
                }
                None => writeln!(f, "  an ADD would be served at once")?,
            }
        }
        let Self {
            available,
            waiting,
            demand,
            target,
            ..
        } = self;
        writeln!(
            f,
            "node, addresses of each family: {available} free, {waiting} waiting, demand {demand}, \
             target {target}"
        )
    }
}

/// The status of the pool as a table, for operators. Every figure counts addresses of the family of
/// its column.
pub fn status_text(status: &StatusResponse) -> String {
    let pool = &status.pool;
    let mut text = String::new();
    let serving = match status.serving {
        Serving::Ready if status.reason.is_empty() => "ready".to_owned(),
        Serving::Ready => format!("ready: {}", status.reason),
        _ => format!("not ready: {}", status.reason),
    };
    let _infallible = writeln!(text, "{serving}");
    let mut row = |what: &str, cells: Vec<String>| {
        let _infallible = write!(text, "{what:<20}");
        for cell in cells {
            let _infallible = write!(text, "{cell:>6}");
        }
        text.push('\n');
    };
    let names = pool.families.keys();
    row(
        "addresses",
        names.map(|name| name.replace("ip", "IP")).collect(),
    );
    let of_each = |count: &dyn Fn(&FamilyCounts) -> u64| {
        let families = pool.families.values();
        families.map(|counts| count(counts).to_string()).collect()
    };
    row("assigned", of_each(&|counts| counts.assigned));
    row("free", of_each(&|counts| counts.available));
    row("cooling", of_each(&|counts| counts.cooling));
    row("pending release", of_each(&|counts| counts.pending_release));
    row(
        "pending programming",
        of_each(&|counts| counts.pending_programming),
    );
    row("quarantined", of_each(&|counts| counts.quarantined));
    row("waiting", of_each(&|_| pool.waiting));
    row("demand", of_each(&|_| pool.demand));
    row("requested", of_each(&|_| pool.requested));
    text
}
