//! Builders of objects and events for tests.

use std::{collections::BTreeSet, time::Duration};

use weft_ipam::{
    Entry, NetworkContainer, NodeConfig, NodeSpec, NodeStatus, Uid,
    pool::{
        AddRequest, Event, Identity, Journal, Key, PodIdentity, Pool, Record, Reply, RequestId,
        Settings, Step,
    },
};
use weft_model::{Moment, SharedStr};

pub(crate) fn at(seconds: u64) -> Moment {
    Moment::seconds(seconds)
}

pub(crate) fn identity(boot: &str) -> Identity {
    Identity {
        machine: SharedStr::new("machine"),
        boot: SharedStr::new(boot),
    }
}

pub(crate) fn settings() -> Settings {
    Settings::new(Uid::from("node-uid"))
}

pub(crate) fn pool_with(settings: Settings) -> Pool {
    let records = vec![Record::Identity(identity("boot"))];
    Pool::restore(settings, identity("boot"), Journal::Kept(records), at(0)).pool
}

pub(crate) fn pool() -> Pool {
    pool_with(settings())
}

pub(crate) fn instant() -> Pool {
    pool_with(Settings {
        cooldown: Duration::ZERO,
        ..settings()
    })
}

pub(crate) fn key(container: &str) -> Key {
    Key::new("podnet", container, "eth0")
}

pub(crate) fn pod(name: &str) -> PodIdentity {
    PodIdentity {
        namespace: SharedStr::new("default"),
        name: SharedStr::new(name),
        uid: Some(Uid::from(format!("uid-{name}"))),
    }
}

/// A config with one container whose entries are `name` to address or block.
pub(crate) fn config(version: u64, entries: &[(&str, &str)]) -> NodeConfig {
    NodeConfig {
        name: "n1".into(),
        uid: "config-uid".into(),
        owner: Some("node-uid".into()),
        version: version.into(),
        deleting: false,
        finalized: true,
        spec: NodeSpec::default(),
        status: NodeStatus {
            scaler: None,
            containers: vec![container("nc", "10.1.0.0/16", entries)],
            phase: None,
        },
    }
}

pub(crate) fn container(id: &str, subnet: &str, entries: &[(&str, &str)]) -> NetworkContainer {
    let subnet: ipnet::IpNet = subnet.parse().unwrap();
    NetworkContainer {
        id: id.into(),
        version: 1,
        dynamic: true,
        subnet: SharedStr::new("pods"),
        subnets: vec![subnet],
        gateways: vec![subnet.hosts().next().unwrap()],
        entries: entries
            .iter()
            .map(|(name, ip)| Entry {
                name: (*name).into(),
                ip: SharedStr::new(ip),
            })
            .collect(),
        result: None,
    }
}

pub(crate) fn listed(mut config: NodeConfig, names: &[&str]) -> NodeConfig {
    config.spec.not_in_use = names.iter().map(|name| (*name).into()).collect();
    config
}

pub(crate) fn observe(pool: &mut Pool, config: &NodeConfig, now: Moment) -> Step {
    pool.handle(Event::Observed(Box::new(config.clone())), now)
}

pub(crate) fn request(id: u64, name: &str, now: Moment) -> AddRequest {
    AddRequest {
        id: RequestId(id),
        key: key(name),
        pod: pod(name),
        desired: Vec::new(),
        deadline: now + Duration::from_secs(25),
    }
}

pub(crate) fn add(pool: &mut Pool, name: &str, now: Moment) -> Step {
    pool.handle(Event::Add(request(1, name, now)), now)
}

pub(crate) fn delete(pool: &mut Pool, name: &str, now: Moment) -> Step {
    pool.handle(Event::Delete(RequestId(2), key(name)), now)
}

/// The addresses of the only reply.
#[track_caller]
pub(crate) fn addresses(step: &Step) -> Vec<String> {
    match step.replies.as_slice() {
        [(_, Reply::Assigned(leases))] => leases
            .iter()
            .map(|lease| lease.address.to_string())
            .collect(),
        other => panic!("not one assignment: {other:?}"),
    }
}

pub(crate) fn names(names: &[&str]) -> BTreeSet<weft_ipam::GrantName> {
    names.iter().map(|name| (*name).into()).collect()
}

/// The pool after a crash: restored from these records only.
pub(crate) fn restarted(settings: Settings, records: &[Record], boot: &str, now: Moment) -> Pool {
    let journal = Journal::Kept(records.to_vec());
    Pool::restore(settings, identity(boot), journal, now).pool
}
