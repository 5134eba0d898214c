//! Operator's settings of a node's address daemon.

use std::{path::PathBuf, time::Duration};

use weft_ipam::{MonitorSettings, Uid, objects::NetworkObjects, pool};

/// Operator's settings.
#[derive(Clone, Debug)]
pub struct IpamSettings {
    /// Name of this node.
    pub node: String,
    /// Directory of the address store.
    pub state_directory: PathBuf,
    /// API group and namespace of the NodeNetworkConfigs.
    pub objects: NetworkObjects,
    /// Settings of the pool. The node's UID is read from the API server.
    pub pool: pool::Settings,
    /// Settings of the monitor, which makes the request follow the demand.
    pub monitor: MonitorSettings,
    /// Interval between sweeps for leaked addresses.
    pub sweep: Duration,
    /// Delay before a failed store is opened again.
    pub store_retry: Duration,
    /// Time limit of a NodeNetworkConfig write.
    pub write_limit: Duration,
}

impl IpamSettings {
    /// The default settings for a node.
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
