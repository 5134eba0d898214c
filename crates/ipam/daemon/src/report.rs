//! What people and tools are told about a node's addresses.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};
use weft_cns::{
    AddressFilter, AddressState, AddressStatus, AddressesResponse, PodContextResponse, PodRecord,
    PoolCounts, Response, RestData, RestDataResponse, Serving, StatusResponse,
};
use weft_ipam::{
    ContainerResult, needed,
    pool::{Attachment, Census, Key, State},
    scaling::Scaler,
};

use crate::{desk::Picture, metrics::sum};

fn census(picture: &Picture<'_>) -> Census {
    let families = picture.pool.served_families().into_iter();
    let counts = families.map(|family| picture.pool.census(family));
    counts.fold(Census::default(), sum)
}

fn demand(picture: &Picture<'_>) -> u32 {
    let pods = picture.pods.map_or(0, <[_]>::len);
    needed(picture.pool, u32::try_from(pods).unwrap_or(u32::MAX))
}

/// Why an ADD cannot be served; `None` if it can.
pub(crate) fn obstacle(picture: &Picture<'_>) -> Option<&'static str> {
    let full = picture.config.is_some_and(|config| {
        let mut containers = config.status.containers.iter();
        containers.any(|container| container.result == Some(ContainerResult::SubnetFull))
    });
    if !picture.store_open {
        Some("state cannot be written")
    } else if picture.config.is_none() {
        Some("the NodeNetworkConfig of this node was not seen yet")
    } else if picture.pool.awaits_pods() {
        Some("the pods of this node were not listed yet")
    } else if !picture.pool.is_ready() {
        Some("addresses of this node are not known yet")
    } else if census(picture).available == 0 && full {
        Some("node and subnet have run out of addresses")
    } else {
        None
    }
}

/// What an operator should know of a daemon that serves.
fn remark(picture: &Picture<'_>) -> Option<&'static str> {
    let rests = picture.pool.rests();
    rests.then_some(
        "the address store was lost: addresses that no running pod uses are held back for up to 4 minutes",
    )
}

pub(crate) fn status(picture: &Picture<'_>) -> StatusResponse {
    let census = census(picture);
    let requested = picture.config.map_or(0, |config| config.spec.requested);
    let obstacle = obstacle(picture);
    StatusResponse {
        serving: match obstacle {
            None => Serving::Ready,
            Some(_) => Serving::Unavailable,
        },
        reason: (obstacle.or_else(|| remark(picture)))
            .unwrap_or_default()
            .to_owned(),
        pool: PoolCounts {
            assigned: census.assigned.into(),
            available: census.available.into(),
            cooling: census.cooling.into(),
            pending_release: census.releasing.into(),
            pending_programming: census.programming.into(),
            quarantined: census.quarantined.into(),
            waiting: picture.pool.waiting().into(),
            demand: demand(picture).into(),
            requested: u64::try_from(requested).unwrap_or_default(),
        },
        response: Response::success(),
    }
}

/// As upstream calls it; what cools is not to be had, and what is quarantined is a pod's.
fn address_state(state: &State) -> AddressState {
    match state {
        State::Programming | State::Cooldown { .. } => AddressState::PendingProgramming,
        State::Available { .. } => AddressState::Available,
        State::Assigned { .. } | State::Quarantined { .. } => AddressState::Assigned,
        State::Releasing { .. } => AddressState::PendingRelease,
    }
}

/// Upstream's id of an address is the entry's name; of several in a block it is the address.
fn address_id(picture: &Picture<'_>, address: IpAddr) -> (String, String) {
    match picture.pool.origin(address) {
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

fn all_addresses(picture: &Picture<'_>) -> Vec<AddressStatus> {
    let attachments = picture.pool.attachments();
    let status = |(address, state): (IpAddr, &State)| {
        let (id, nc_id) = address_id(picture, address);
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
    picture.pool.states().map(status).collect()
}

pub(crate) fn addresses(picture: &Picture<'_>, filter: &AddressFilter) -> AddressesResponse {
    let mut addresses = all_addresses(picture);
    addresses.retain(|address| filter.states.contains(&address.state));
    AddressesResponse {
        addresses,
        response: Response::success(),
    }
}

fn by_key(picture: &Picture<'_>) -> BTreeMap<String, Vec<String>> {
    let attachments = picture.pool.attachments().iter();
    let ids = |held: &Attachment| {
        let leases = held.leases.iter();
        leases
            .map(|lease| address_id(picture, lease.address).0)
            .collect()
    };
    attachments
        .map(|(key, held)| (key.to_string(), ids(held)))
        .collect()
}

pub(crate) fn pod_context(picture: &Picture<'_>) -> PodContextResponse {
    PodContextResponse {
        pod_context: by_key(picture),
        response: Response::success(),
    }
}

pub(crate) fn rest_data(picture: &Picture<'_>) -> RestDataResponse {
    let addresses = all_addresses(picture).into_iter();
    RestDataResponse {
        data: RestData {
            by_key: by_key(picture),
            addresses: addresses
                .map(|address| (address.id.clone(), address))
                .collect(),
        },
        response: Response::success(),
    }
}

/// What is known of a pod's addresses, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Namespace and name.
    pub pod: String,
    /// Whether the API server says that it runs here and needs an address.
    pub counted: bool,
    /// What it holds.
    pub attachments: Vec<Held>,
    /// Why an ADD cannot be served at present.
    pub obstacle: Option<String>,
    /// Addresses free to be assigned.
    pub available: u32,
    /// ADDs that wait.
    pub waiting: u32,
    /// Addresses that the node needs.
    pub demand: u32,
    /// Addresses that the node should hold.
    pub target: u32,
}

/// An attachment of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Network, container and interface.
    pub key: String,
    /// Its addresses, and what they are at.
    pub addresses: BTreeMap<IpAddr, String>,
    /// Since how many seconds.
    pub seconds: u64,
}

pub(crate) fn explain(picture: &Picture<'_>, namespace: &str, name: &str) -> Explanation {
    let pods = picture.pods.unwrap_or_default().iter();
    let mut same =
        pods.filter(|pod| &*pod.identity.namespace == namespace && &*pod.identity.name == name);
    let states: BTreeMap<IpAddr, &State> = picture.pool.states().collect();
    let attachments = picture.pool.attachments().iter();
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
        seconds: picture.now.since(held.at).as_secs(),
    });
    let demand = demand(picture);
    let available = census(picture).available;
    let resting = || remark(picture).filter(|_| available == 0);
    let obstacle = obstacle(picture).or_else(resting);
    let scaler = picture.config.and_then(|config| config.status.scaler);
    Explanation {
        pod: format!("{namespace}/{name}"),
        counted: same.next().is_some(),
        attachments: held.collect(),
        obstacle: obstacle.map(str::to_owned),
        available,
        waiting: picture.pool.waiting(),
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
            "node: {available} free, {waiting} waiting, demand {demand}, target {target}"
        )
    }
}

/// A picture of the pool, for people.
pub fn status_text(status: &StatusResponse) -> String {
    let pool = &status.pool;
    let mut text = String::new();
    let serving = match status.serving {
        Serving::Ready if status.reason.is_empty() => "ready".to_owned(),
        Serving::Ready => format!("ready: {}", status.reason),
        _ => format!("not ready: {}", status.reason),
    };
    let _infallible = writeln!(text, "{serving}");
    for (what, count) in [
        ("assigned", pool.assigned),
        ("free", pool.available),
        ("cooling", pool.cooling),
        ("pending release", pool.pending_release),
        ("pending programming", pool.pending_programming),
        ("quarantined", pool.quarantined),
        ("waiting", pool.waiting),
        ("demand", pool.demand),
        ("requested", pool.requested),
    ] {
        let _infallible = writeln!(text, "{what:<20}{count:>6}");
    }
    text
}
