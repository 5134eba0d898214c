//! JSON of the Hetzner API, reduced to the fields that are read.

use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
pub(super) struct NetworkReply {
    pub(super) network: Network,
}

#[derive(Debug, Deserialize)]
pub(super) struct NetworksReply {
    pub(super) networks: Vec<Network>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Network {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) routes: Vec<Route>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Route {
    pub(super) destination: String,
    pub(super) gateway: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ActionReply {
    pub(super) action: Action,
}

#[derive(Debug, Deserialize)]
pub(super) struct ActionsReply {
    pub(super) actions: Vec<Action>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Action {
    pub(super) id: u64,
    pub(super) status: ActionStatus,
    #[serde(default)]
    pub(super) error: Option<Problem>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ActionStatus {
    Running,
    Success,
    Error,
}

#[derive(Debug, Deserialize)]
pub(super) struct ProblemReply {
    pub(super) error: Problem,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Problem {
    pub(super) code: String,
    #[serde(default)]
    pub(super) message: String,
    /// Its shape depends on the code.
    #[serde(default)]
    pub(super) details: serde_json::Value,
}

#[derive(Debug, Deserialize)]
pub(super) struct ServerReply {
    pub(super) server: Server,
}

#[derive(Debug, Deserialize)]
pub(super) struct ServersReply {
    pub(super) servers: Vec<Server>,
    pub(super) meta: Meta,
}

#[derive(Debug, Deserialize)]
pub(super) struct Meta {
    pub(super) pagination: Pagination,
}

#[derive(Debug, Deserialize)]
pub(super) struct Pagination {
    pub(super) next_page: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Server {
    pub(super) id: u64,
    #[serde(default)]
    pub(super) private_net: Vec<PrivateNet>,
}

impl Server {
    /// Number of entries for [`Pages`](crate::pages::Pages): the server and its networks.
    pub(super) fn entries(&self) -> usize {
        1 + self.private_net.len()
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct PrivateNet {
    pub(super) network: u64,
    /// Parsed where it is needed: one odd server must not hide the others.
    #[serde(default)]
    pub(super) ip: Option<String>,
}
