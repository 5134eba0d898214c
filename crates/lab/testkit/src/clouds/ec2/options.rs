use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// How the double behaves.
#[derive(Clone, Debug)]
pub struct Ec2Options {
    /// Where it listens on loopback; 0 takes a free port.
    pub port: u16,
    /// The route tables.
    pub tables: Vec<Ec2Table>,
    /// The instances.
    pub instances: Vec<Ec2Instance>,
    /// How many routes fit into a table.
    pub quota: usize,
    /// How many tables or instances a page holds at most.
    pub page: usize,
    /// How long a call takes.
    pub latency: Duration,
    /// How long reads lag behind writes.
    pub lag: Duration,
    /// How many reads of a kind are allowed, and how many writes; no limit if absent.
    pub throttle: Option<(Throttle, Throttle)>,
}

impl Default for Ec2Options {
    fn default() -> Self {
        Self {
            port: 0,
            tables: vec![Ec2Table::tagged("rtb-1", "weft")],
            instances: Vec::new(),
            quota: 50,
            page: 100,
            latency: Duration::ZERO,
            lag: Duration::ZERO,
            throttle: None,
        }
    }
}

/// A token bucket for each action.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    /// Calls at once.
    pub burst: u32,
    /// Calls a second in the long run.
    pub per_second: f64,
}

impl Throttle {
    /// About what the real one allows for reads and for writes.
    pub const REAL: (Self, Self) = (
        Self {
            burst: 100,
            per_second: 20.0,
        },
        Self {
            burst: 50,
            per_second: 5.0,
        },
    );
}

/// A route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ec2Table {
    /// `rtb-…`.
    pub id: String,
    /// `vpc-…`.
    pub vpc: String,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Its routes by destination.
    pub routes: BTreeMap<IpNet, Ec2Target>,
}

impl Ec2Table {
    /// An empty table that is tagged as a cluster's.
    pub fn tagged(id: &str, cluster: &str) -> Self {
        let tag = (
            format!("kubernetes.io/cluster/{cluster}"),
            "owned".to_owned(),
        );
        Self {
            id: id.to_owned(),
            vpc: "vpc-1".to_owned(),
            tags: BTreeMap::from([tag]),
            routes: BTreeMap::new(),
        }
    }
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Ec2Target {
    /// `i-…`.
    Instance(String),
    /// `eni-…` that belongs to no instance of ours.
    Interface(String),
    /// `local`, `igw-…`.
    Gateway(String),
}

/// A route, with the table it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ec2Route {
    /// `rtb-…`.
    pub table: String,
    /// Where packets are going to.
    pub destination: IpNet,
    /// Where they are sent to.
    pub target: Ec2Target,
}

/// An instance. As JSON: `{"id": "i-1", "ip": "10.0.0.2"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ec2Instance {
    /// `i-…`.
    pub id: String,
    /// Its private address.
    pub ip: Ipv4Addr,
    /// `eni-…`, the first one having the address; absent means one that nobody names.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// Whether packets of others are dropped.
    #[serde(default = "yes")]
    pub source_dest_check: bool,
    /// Whether it was terminated: its routes lead nowhere.
    #[serde(default)]
    pub terminated: bool,
}

fn yes() -> bool {
    true
}

impl Ec2Instance {
    /// A running instance as it is after its start.
    pub fn new(id: &str, ip: Ipv4Addr) -> Self {
        Self {
            id: id.to_owned(),
            ip,
            interfaces: Vec::new(),
            source_dest_check: true,
            terminated: false,
        }
    }
}
