//! Allocator of cluster IPs and node ports.
//!
//! An IPAddress object is the only record of an address in use. Node ports are kept in memory and
//! read from the Services at start.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use ipnet::IpNet;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use weft_model::SharedStr;

use super::{HEADLESS, View};
use crate::{
    api::Api,
    handler::write,
    meta::{Meta as _, object_mut},
    options::DryRun,
    rules::WriteScope,
    status::FieldError,
    store::{Object, Stored},
};

const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;
/// Size of the lower band of the port range, which is used for dynamic allocation last.
const RESERVED_PORTS: u16 = 86;
/// Random tries before a search from the start of the range.
const RANDOM_TRIES: usize = 64;

/// Address ranges, and the allocated node ports.
#[derive(Debug)]
pub(crate) struct Allocator {
    ranges: Vec<IpNet>,
    families: Vec<&'static str>,
    /// Node ports with the key of their Service.
    ports: Mutex<BTreeMap<u16, SharedStr>>,
}

impl Allocator {
    /// Allocates from one range, or from two of different families.
    pub(crate) fn new(ranges: Vec<IpNet>) -> Self {
        let family = |range: &IpNet| match range {
            IpNet::V4(_) => "IPv4",
            IpNet::V6(_) => "IPv6",
        };
        Self {
            families: ranges.iter().map(family).collect(),
            ranges,
            ports: Mutex::default(),
        }
    }

    pub(crate) fn families(&self) -> &[&'static str] {
        &self.families
    }

    pub(crate) fn ranges(&self) -> &[IpNet] {
        &self.ranges
    }

    /// The first usable address, which the Service `default/kubernetes` has.
    pub(crate) fn first_address(&self) -> Option<IpAddr> {
        let range = self.ranges.first()?;
        Some(at(range, 1))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u16, SharedStr>> {
        self.ports.lock()
    }

    /// Records the node ports of a stored Service.
    pub(crate) fn learn(&self, object: &Object) {
        let owner = SharedStr::new(&owner(object));
        let mut ports = self.lock();
        for port in node_ports(object) {
            ports.insert(port, owner.clone());
        }
    }
}

fn owner(object: &Object) -> String {
    format!("{}/{}", object.namespace(), object.name())
}

fn at(range: &IpNet, offset: u128) -> IpAddr {
    match range.network() {
        IpAddr::V4(base) => {
            let offset = u32::try_from(offset).unwrap_or(u32::MAX);
            IpAddr::V4(Ipv4Addr::from(u32::from(base).saturating_add(offset)))
        }
        IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from(u128::from(base).saturating_add(offset))),
    }
}

/// Number of usable addresses: without the network address and, for IPv4, the broadcast address.
fn usable(range: &IpNet) -> u128 {
    let bits = u32::from(range.max_prefix_len() - range.prefix_len());
    let size = 1_u128.checked_shl(bits).unwrap_or(u128::MAX);
    match range {
        IpNet::V4(_) => size.saturating_sub(2),
        IpNet::V6(_) => size.saturating_sub(1),
    }
}

/// Size of the lower band of a range, which is used for dynamic allocation last.
fn reserved(range: &IpNet) -> u128 {
    (usable(range) / 16).clamp(16, 256)
}

/// Addresses and ports that a write allocates.
#[derive(Debug, Default)]
pub(super) struct Claims {
    addresses: Vec<IpAddr>,
    ports: BTreeSet<u16>,
}

/// Chooses or checks addresses and ports and sets them in the object.
pub(super) fn claim(
    scope: &WriteScope<'_>,
    old: Option<&Object>,
    object: &mut Object,
) -> Result<Claims, FieldError> {
    let mut claims = Claims::default();
    claim_addresses(scope, old, object, &mut claims)?;
    claim_ports(scope, object, &mut claims)?;
    Ok(claims)
}

fn claim_addresses(
    scope: &WriteScope<'_>,
    old: Option<&Object>,
    object: &mut Object,
    claims: &mut Claims,
) -> Result<(), FieldError> {
    let view = View(object);
    if view.kind() == "ExternalName" {
        return Ok(());
    }
    if view.is_headless() {
        object_mut(object, "spec").insert("clusterIPs".into(), json!([HEADLESS]));
        return Ok(());
    }
    let list = |object: &Object| -> Vec<String> {
        let list = object.at(&["spec", "clusterIPs"]).and_then(Value::as_array);
        list.into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let held = old.map(list).unwrap_or_default();
    let mut said = list(object);
    if said.is_empty() {
        let single = View(object).text("clusterIP").to_owned();
        said.extend((!single.is_empty()).then_some(single));
    }
    let families: Vec<String> = object
        .at(&["spec", "ipFamilies"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|family| Some(family.as_str()?.to_owned()))
        .collect();
    let allocator = &scope.api.allocator;
    for (position, family) in families.iter().enumerate() {
        let Some(index) = allocator.families.iter().position(|known| known == family) else {
            continue;
        };
        let range = &allocator.ranges[index];
        match said.get(position) {
            Some(address) if held.contains(address) => {}
            Some(address) => {
                let checked = check_address(scope, range, address, &said)?;
                claims.addresses.push(checked);
            }
            None => {
                let address = free_address(scope, range).ok_or_else(|| {
                    let text = "failed to allocate a serviceIP: range is full";
                    FieldError::invalid("spec.clusterIPs", &json!(said), text)
                })?;
                claims.addresses.push(address);
                said.push(address.to_string());
            }
        }
    }
    let spec = object_mut(object, "spec");
    if let Some(first) = said.first() {
        spec.insert("clusterIP".into(), first.clone().into());
    }
    spec.insert("clusterIPs".into(), said.into());
    Ok(())
}

fn check_address(
    scope: &WriteScope<'_>,
    range: &IpNet,
    address: &str,
    all: &[String],
) -> Result<IpAddr, FieldError> {
    let refused = |why: &str| {
        let text = format!("failed to allocate IP {address}: {why}");
        FieldError::invalid("spec.clusterIPs", &json!(all), &text)
    };
    let parsed: IpAddr = address
        .parse()
        .map_err(|_| refused("the provided IP is not valid"))?;
    if !range.contains(&parsed) {
        return Err(refused(
            "the provided network does not match the current range",
        ));
    }
    if is_taken(scope, parsed) {
        return Err(refused("provided IP is already allocated"));
    }
    Ok(parsed)
}

const ADDRESSES: &str = "ipaddresses.networking.k8s.io";

fn is_taken(scope: &WriteScope<'_>, address: IpAddr) -> bool {
    scope
        .writer
        .get(&ADDRESSES.into(), &address.to_string())
        .is_some()
}

/// A random free address above the reserved band, else any free one.
fn free_address(scope: &WriteScope<'_>, range: &IpNet) -> Option<IpAddr> {
    let (count, low) = (usable(range), reserved(range));
    let is_free = |address: &IpAddr| !is_taken(scope, *address);
    if count > low {
        let span = u64::try_from(count - low).unwrap_or(u64::MAX);
        for _ in 0..RANDOM_TRIES {
            let offset = 1 + low + u128::from(scope.api.random.below(span));
            let address = at(range, offset.min(count));
            if is_free(&address) {
                return Some(address);
            }
        }
    }
    let scan = |from: u128, to: u128| (from..=to).map(|offset| at(range, offset)).find(is_free);
    scan(1 + low.min(count), count).or_else(|| scan(1, low.min(count)))
}

fn node_ports(object: &Object) -> Vec<u16> {
    let number = |value: &Value| {
        value
            .as_u64()
            .and_then(|n| u16::try_from(n).ok())
            .filter(|n| *n > 0)
    };
    let view = View(object);
    let ports = view
        .ports()
        .iter()
        .filter_map(|port| number(port.get("nodePort")?));
    let health = object.at(&["spec", "healthCheckNodePort"]).and_then(number);
    ports.chain(health).collect()
}

fn claim_ports(
    scope: &WriteScope<'_>,
    object: &mut Object,
    claims: &mut Claims,
) -> Result<(), FieldError> {
    let view = View(object);
    let (wants_ports, wants_health) = (view.has_node_ports(), view.needs_health_port());
    let me = owner(object);
    let taken = scope.api.allocator.lock().clone();
    let mine = |port: u16| taken.get(&port).is_none_or(|owner| *owner == *me);
    let mut chosen: BTreeMap<PortNumber, u16> = BTreeMap::new();
    let mut ports = view.ports().to_vec();
    for (position, port) in ports.iter_mut().enumerate() {
        let Value::Object(port) = port else { continue };
        let said = port.get("nodePort").and_then(Value::as_u64).unwrap_or(0);
        let same = PortNumber(port.get("port").and_then(Value::as_u64).unwrap_or(0));
        if said != 0 {
            let field = format!("spec.ports[{position}].nodePort");
            let number = check_port(&field, said, mine)?;
            claims.ports.insert(number);
            chosen.insert(same, number);
        } else if wants_ports {
            // Protocols of the same port share one node port.
            let number = match chosen.get(&same) {
                Some(number) => *number,
                None => free_port(scope.api, &taken, &claims.ports).ok_or_else(|| {
                    let text = "failed to allocate a nodePort: range is full";
                    FieldError::invalid("spec.ports", &Value::Null, text)
                })?,
            };
            port.insert("nodePort".into(), number.into());
            claims.ports.insert(number);
            chosen.insert(same, number);
        }
    }
    let health = object
        .at(&["spec", "healthCheckNodePort"])
        .and_then(Value::as_u64)
        .unwrap_or(0);
    let spec = object_mut(object, "spec");
    if spec.contains_key("ports") {
        spec.insert("ports".into(), ports.into());
    }
    if wants_health {
        let number = match health {
            0 => free_port(scope.api, &taken, &claims.ports),
            said => Some(check_port("spec.healthCheckNodePort", said, mine)?),
        };
        if let Some(number) = number {
            spec.insert("healthCheckNodePort".into(), number.into());
            claims.ports.insert(number);
        }
    }
    Ok(())
}

/// A port number of a Service; protocols of the same port share a node port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PortNumber(u64);

fn check_port(field: &str, said: u64, mine: impl Fn(u16) -> bool) -> Result<u16, FieldError> {
    let number = u16::try_from(said)
        .ok()
        .filter(|number| NODE_PORTS.contains(number));
    let Some(number) = number else {
        let text = format!(
            "provided port is not in the valid range. The range of valid ports is {}-{}",
            NODE_PORTS.start(),
            NODE_PORTS.end()
        );
        return Err(FieldError::invalid(field, &json!(said), &text));
    };
    if !mine(number) {
        let text = "provided port is already allocated";
        return Err(FieldError::invalid(field, &json!(said), text));
    }
    Ok(number)
}

fn free_port(api: &Api, taken: &BTreeMap<u16, SharedStr>, claimed: &BTreeSet<u16>) -> Option<u16> {
    let is_free = |port: &u16| !taken.contains_key(port) && !claimed.contains(port);
    let (first, last) = (NODE_PORTS.start() + RESERVED_PORTS, *NODE_PORTS.end());
    for _ in 0..RANDOM_TRIES {
        let offset = u16::try_from(api.random.below(u64::from(last - first) + 1)).unwrap_or(0);
        if is_free(&(first + offset)) {
            return Some(first + offset);
        }
    }
    (first..=last)
        .find(is_free)
        .or_else(|| (*NODE_PORTS.start()..first).find(is_free))
}

/// Creates IPAddress objects of new addresses, deletes those of released ones, and records ports.
pub(super) fn settle(
    scope: &WriteScope<'_>,
    old: Option<&Object>,
    object: &Object,
    claims: &Claims,
) {
    let served = scope.api.registry.served();
    let Some(kind) = served.find("networking.k8s.io", "v1", "ipaddresses") else {
        return;
    };
    let addresses = write::scope(scope.api, scope.writer, kind);
    for address in &claims.addresses {
        let family = if address.is_ipv6() { "IPv6" } else { "IPv4" };
        let record = json!({
            "kind": "IPAddress",
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {
                "name": address.to_string(),
                "uid": scope.api.random.uuid(),
                "creationTimestamp": scope.api.clock.now_text(),
                "labels": {
                    "ipaddress.kubernetes.io/ip-family": family,
                    "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
                },
            },
            "spec": {"parentRef": {
                "group": "", "resource": "services",
                "namespace": object.namespace(), "name": object.name(),
            }},
        });
        if let Value::Object(record) = record {
            write::store(&addresses, record, DryRun::No);
        }
    }
    let kept: Vec<&str> = cluster_ips(object);
    if let Some(old) = old {
        for address in cluster_ips(old) {
            if !kept.contains(&address) {
                scope.writer.remove(&kind.storage, address);
            }
        }
    }
    let me = SharedStr::new(&owner(object));
    let mut ports = scope.api.allocator.lock();
    ports.retain(|_, owner| *owner != me);
    for port in node_ports(object) {
        ports.insert(port, me.clone());
    }
}

fn cluster_ips(object: &Object) -> Vec<&str> {
    let list = object.at(&["spec", "clusterIPs"]).and_then(Value::as_array);
    let texts = list.into_iter().flatten().filter_map(Value::as_str);
    texts.filter(|address| *address != HEADLESS).collect()
}

/// Releases addresses and ports of a removed Service.
pub(crate) fn release(api: &Api, writer: &crate::store::Writer<'_>, stored: &Stored) {
    let object = stored.decode();
    for address in cluster_ips(&object) {
        writer.remove(&ADDRESSES.into(), address);
    }
    let me = owner(&object);
    api.allocator.lock().retain(|_, owner| **owner != *me);
}
