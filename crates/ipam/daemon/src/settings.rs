//! What an operator decides about a node's addresses.

use std::{path::PathBuf, time::Duration};

use weft_ipam::{MonitorSettings, Uid, objects::NetworkObjects, pool};

/// What an operator decides.
#[derive(Clone, Debug)]
pub struct IpamSettings {
    /// This node's name.
    pub node: String,
    /// Where to remember who has which address.
    pub state_directory: PathBuf,
    /// Whose objects are used.
    pub objects: NetworkObjects,
    /// How the pool behaves. The node's UID is asked for.
    pub pool: pool::Settings,
    /// How the request follows the demand.
    pub monitor: MonitorSettings,
    /// How often leaks are looked for.
    pub sweep: Duration,
    /// How soon a store that failed is tried again.
    pub store_retry: Duration,
    /// How long a write of the NodeNetworkConfig may take.
    pub write_limit: Duration,
}

impl IpamSettings {
    /// The usual ones.
    pub fn new(node: &str, state_directory: impl Into<PathBuf>) -> Self {
        Self {
            node: node.to_owned(),
            state_directory: state_directory.into(),
            objects: NetworkObjects::default(),
            pool: pool::Settings::new(Uid::default()),
            monitor: MonitorSettings::default(),
            sweep: Duration::from_secs(60),
            store_retry: Duration::from_secs(2),
            write_limit: Duration::from_secs(10),
        }
    }
}
