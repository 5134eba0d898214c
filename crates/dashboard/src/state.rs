//! What the page shows, as plain values. Their JSON is what the page reads.
//!
//! Optional things are `null` or empty lists in JSON and never missing.

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
    /// When something in here changed last.
    pub generated: Timestamp,
    /// What kind of network this is.
    pub mode: Mode,
    /// The cluster.
    pub cluster: ClusterState,
    /// Its nodes, by name.
    pub nodes: Vec<Node>,
    /// Its Services, by namespace and name.
    pub services: Vec<Service>,
    /// What happened, the oldest first.
    pub timeline: Timeline,
    /// What was not written and not asked, if somebody counts that.
    pub savings: Option<Savings>,
    /// The processes behind the network, if they are known.
    pub processes: Vec<Process>,
    /// What is looked at all the time.
    pub checks: Vec<Check>,
}

/// What kind of network is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One on this machine, to play with.
    Playground,
    /// A real one.
    Cluster,
}

/// The cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterState {
    /// Its name.
    pub name: String,
    /// The URL of its API server.
    pub server: String,
    /// Whether the API server answers.
    pub reachable: bool,
    /// Since when it does, or does not.
    pub since: Timestamp,
}

/// What was done, beside what doing everything again would have taken.
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

/// Something that is looked at all the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What is looked at.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was seen.
    pub detail: String,
}

impl State {
    /// A network of which nothing is known yet but how to reach it.
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

/// The time, as exact as people read it.
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    let to_milliseconds = TimestampRound::new()
        .smallest(Unit::Millisecond)
        .mode(RoundMode::Trunc);
    now.round(to_milliseconds).unwrap_or(now)
}
