//! The API group and namespace of the objects between a node's address daemon and the cluster.

use super::{AZURE_GROUP, AZURE_VERSION, GROUP, VERSION};

/// Group and namespace of the NodeNetworkConfigs and ClusterSubnetStates that a node uses: Weft's,
/// or Azure's, which another controller writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkObjects {
    /// API group of the objects.
    pub group: String,
    /// Namespace of the objects.
    pub namespace: String,
}

impl Default for NetworkObjects {
    fn default() -> Self {
        Self {
            group: GROUP.to_owned(),
            namespace: "kube-system".to_owned(),
        }
    }
}

impl NetworkObjects {
    /// True if the objects are Azure's.
    pub fn is_azure(&self) -> bool {
        self.group == AZURE_GROUP
    }

    /// Group, version, plural and kind of NodeNetworkConfigs.
    pub fn node_network_configs(&self) -> [&str; 4] {
        let version = if self.is_azure() {
            AZURE_VERSION
        } else {
            VERSION
        };
        [
            &self.group,
            version,
            "nodenetworkconfigs",
            "NodeNetworkConfig",
        ]
    }

    /// Group, version, plural and kind of ClusterSubnetStates.
    pub fn cluster_subnet_states(&self) -> [&str; 4] {
        [
            &self.group,
            VERSION,
            "clustersubnetstates",
            "ClusterSubnetState",
        ]
    }
}
