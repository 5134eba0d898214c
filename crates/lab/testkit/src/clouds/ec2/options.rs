//! Options of the EC2 double, and the tables, routes and instances that it starts with.

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Options of the EC2 double.
#[derive(Clone, Debug)]
pub struct Ec2Options {
    /// Loopback port to listen on; 0 selects a free one.
    pub port: u16,
    /// Route tables at the start and after a reset.
    pub tables: Vec<Ec2Table>,
    /// Instances at the start.
    pub instances: Vec<Ec2Instance>,
    /// Most routes in a table.
    pub quota: usize,
    /// Most tables or instances on a page.
    pub page: usize,
    /// Time that every call takes.
    pub latency: Duration,
    /// Time after a write for which reads of route tables return the state before it.
    pub lag: Duration,
    /// Limits for each reading and each writing action; no limits if absent.
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
    /// Capacity of the bucket.
    pub burst: u32,
    /// Tokens added per second.
    pub per_second: f64,
}

impl Throttle {
    /// Approximate limits of the real API, for reads and for writes.
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
    /// ID of the route table, `rtb-…`.
    pub id: String,
    /// ID of its VPC, `vpc-…`.
    pub vpc: String,
    /// Tags by key.
    pub tags: BTreeMap<String, String>,
    /// Routes by destination.
    pub routes: BTreeMap<IpNet, Ec2Target>,
}

impl Ec2Table {
    /// An empty table with the tag of a cluster.
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

/// Target of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Ec2Target {
    /// ID of the instance, `i-…`.
    Instance(String),
    /// `eni-…` of no known instance.
    Interface(String),
    /// `local`, `igw-…`.
    Gateway(String),
}

/// A route, with the table it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ec2Route {
    /// ID of the route table, `rtb-…`.
    pub table: String,
    /// Destination CIDR.
    pub destination: IpNet,
    /// Target to which the packets are sent.
    pub target: Ec2Target,
}

/// An instance. As JSON: `{"id": "i-1", "ip": "10.0.0.2"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ec2Instance {
    /// ID of the instance, `i-…`.
    pub id: String,
    /// Private address.
    pub ip: Ipv4Addr,
    /// `eni-…`; the first one has the address. Empty for a single interface without an ID.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// True if the instance drops packets that are not from or to its own address.
    #[serde(default = "yes")]
    pub source_dest_check: bool,
    /// True if it was terminated. Its routes are then in the state `blackhole`.
    #[serde(default)]
    pub terminated: bool,
}

fn yes() -> bool {
    true
}

impl Ec2Instance {
    /// A running instance, with the source/destination check on.
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
