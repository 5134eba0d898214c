//! The state of the page as plain values. Their JSON is the page's API.
//!
//! Optional values are `null` or empty lists in JSON and never missing.

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use serde::{Deserialize, Serialize};

mod network;
mod process;
mod timeline;

pub use network::{Endpoint, Node, Pod, Pool, Port, Route, Service};
pub use process::{Action, Process, ProcessState, UnknownAction};
pub use timeline::{Cost, Entry, Note, Timeline};

/// Everything that the page shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Time of the last change.
    pub generated: Timestamp,
    /// Playground or cluster.
    pub mode: Mode,
    /// Name and reachability of the cluster.
    pub cluster: ClusterState,
    /// Nodes, sorted by name.
    pub nodes: Vec<Node>,
    /// Services, sorted by namespace and name.
    pub services: Vec<Service>,
    /// The latest changes, oldest first.
    pub timeline: Timeline,
    /// Work avoided so far, where it is counted.
    pub savings: Option<Savings>,
    /// Processes behind the network, if known.
    pub processes: Vec<Process>,
    /// Checks that run all the time.
    pub checks: Vec<Check>,
}

/// Kind of network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A playground on this machine.
    Playground,
    /// A real cluster.
    Cluster,
}

/// Name, address and reachability of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterState {
    /// Name of the cluster.
    pub name: String,
    /// URL of the API server.
    pub server: String,
    /// The API server answers.
    pub reachable: bool,
    /// Time of the last change of `reachable`.
    pub since: Timestamp,
}

/// Work done, and the work that a full rewrite or polling would have taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Savings {
    /// Bytes written to the kernel.
    pub bytes_written: u64,
    /// Bytes that full rewrites would have been.
    pub bytes_full: u64,
    /// Calls made to the API.
    pub calls_made: u64,
    /// Calls that polling would have made.
    pub calls_polling: u64,
}

/// A check that runs all the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Name, such as `pod to Service`.
    pub name: String,
    /// The check passes.
    pub ok: bool,
    /// Latest result in words.
    pub detail: String,
}

impl State {
    /// A network without objects.
    pub fn new(mode: Mode, name: &str, server: &str) -> Self {
        let now = now();
        Self {
            generated: now,
            mode,
            cluster: ClusterState {
                name: name.to_owned(),
                server: server.to_owned(),
                reachable: true,
                since: now,
            },
            nodes: Vec::new(),
            services: Vec::new(),
            timeline: Timeline::default(),
            savings: None,
            processes: Vec::new(),
            checks: Vec::new(),
        }
    }
}

/// The current time in milliseconds.
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    let to_milliseconds = TimestampRound::new()
        .smallest(Unit::Millisecond)
        .mode(RoundMode::Trunc);
    now.round(to_milliseconds).unwrap_or(now)
}
