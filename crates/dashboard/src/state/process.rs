use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A process behind the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its name, which actions use.
    pub name: String,
    /// The node it belongs to, if to one.
    pub node: Option<String>,
    /// What it does.
    pub component: String,
    /// Its id, while it runs.
    pub pid: Option<u32>,
    /// What it is doing.
    pub state: ProcessState,
    /// Since when.
    pub since: Timestamp,
    /// What else there is to say.
    pub detail: String,
    /// What people may do with it now.
    pub actions: Vec<Action>,
}

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It was started and is not at work yet.
    Starting,
    /// It is at work.
    Running,
    /// It was stopped.
    Stopped,
    /// It ended by itself.
    Failed,
}

/// What people may do with a process.
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

/// There is no such action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such action")]
pub struct UnknownAction;

impl FromStr for Action {
    type Err = UnknownAction;

    fn from_str(text: &str) -> Result<Self, UnknownAction> {
        let mut all = Self::ALL.into_iter();
        all.find(|action| action.to_string() == text)
            .ok_or(UnknownAction)
    }
}
