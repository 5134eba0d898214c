//! Processes as the page shows them, and the actions on them.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A process behind the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Name, which actions use.
    pub name: String,
    /// Name of its node, if it belongs to one.
    pub node: Option<String>,
    /// Component, such as `proxy`.
    pub component: String,
    /// Process ID while it runs.
    pub pid: Option<u32>,
    /// Current state.
    pub state: ProcessState,
    /// Time of the last change of `state`.
    pub since: Timestamp,
    /// Further information.
    pub detail: String,
    /// Actions that are allowed now.
    pub actions: Vec<Action>,
}

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// Started, not ready yet.
    Starting,
    /// Running and ready.
    Running,
    /// Stopped on request.
    Stopped,
    /// Ended without a request.
    Failed,
}

/// An action on a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Start it.
    Start,
    /// Stop it.
    Stop,
    /// Stop it and start it again.
    Restart,
}

impl Action {
    const ALL: [Self; 3] = [Self::Start, Self::Stop, Self::Restart];
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
        })
    }
}

/// The text names no action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown action: expected start, stop or restart")]
pub struct UnknownAction;

impl FromStr for Action {
    type Err = UnknownAction;

    fn from_str(text: &str) -> Result<Self, UnknownAction> {
        let mut all = Self::ALL.into_iter();
        all.find(|action| action.to_string() == text)
            .ok_or(UnknownAction)
    }
}
