//! The address controllers of a process: the allocator of blocks and that of pod CIDRs.

use weft_ipam::allocator::{AllocatorSettings, ClusterCidr};
use weft_process::identity;
use weft_runtime::{Cluster, EventRecorder, Failure, Manager};

use crate::{
    AllocatorEvents, AllocatorMetrics, AllocatorParts, PodCidrParts, WallClock, controller,
    pod_cidr_controller,
};

/// Dependencies that the address controllers share.
pub struct AddressControllers {
    /// Access to pools, Nodes and NodeNetworkConfigs.
    pub cluster: Cluster,
    /// Metrics of both.
    pub metrics: AllocatorMetrics,
}

impl AddressControllers {
    /// Adds the allocator if it has settings, and the controller of pod CIDRs if it has ranges.
    pub fn add(
        self,
        manager: &Manager,
        settings: Option<AllocatorSettings>,
        ranges: Vec<ClusterCidr>,
    ) -> Result<(), Failure> {
        let client = self.cluster.client().clone();
        let events = AllocatorEvents {
            events: Some(EventRecorder::new(client, "weft_allocator", &identity())),
        };
        if let Some(settings) = settings {
            let parts = AllocatorParts {
                cluster: self.cluster.clone(),
                settings,
                namespace: CONFIG_NAMESPACE.to_owned(),
                metrics: self.metrics.clone(),
                events: events.clone(),
                clock: WallClock::system(),
            };
            manager.add(controller(parts, Some(manager.metrics())))?;
        }
        if !ranges.is_empty() {
            let parts = PodCidrParts {
                cluster: self.cluster,
                ranges,
                settings: settings.unwrap_or_default(),
                namespace: CONFIG_NAMESPACE.to_owned(),
                metrics: self.metrics,
                events,
                clock: WallClock::system(),
            };
            manager.add(pod_cidr_controller(parts, Some(manager.metrics())))?;
        }
        Ok(())
    }
}

/// Namespace of the NodeNetworkConfigs, as upstream's agents expect it.
const CONFIG_NAMESPACE: &str = "kube-system";
