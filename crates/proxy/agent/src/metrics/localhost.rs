//! kube-proxy's metrics of NodePorts on loopback addresses in the nftables mode.

use std::{collections::BTreeMap, fmt};

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use weft_model::{IpFamily, Protocol};
use weft_nftables::loopback_rejections;

use super::FamilyLabel;

#[derive(Clone, Default)]
pub(super) struct LocalhostMetrics {
    pub(super) listeners: Family<FamilyLabel, Gauge>,
    pub(super) failures: Family<FamilyLabel, Counter>,
}

impl LocalhostMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let kube_proxy = registry.sub_registry_with_prefix("kubeproxy");
        kube_proxy.register(
            "nftables_localhost_nodeport_listeners",
            "Number of active localhost NodePort userspace proxy listeners",
            self.listeners.clone(),
        );
        kube_proxy.register(
            "nftables_localhost_nodeport_listener_creation_failures",
            "Number of localhost NodePort userspace proxy listener creation failures",
            self.failures.clone(),
        );
        registry.register_collector(Box::new(RejectionCollector::default()));
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RejectionLabels {
    ip_family: &'static str,
    protocol: &'static str,
}

/// Reads the kernel's counters for each scrape. These begin again with the table; the metric does
/// not.
#[derive(Debug, Default)]
struct RejectionCollector(Mutex<BTreeMap<(IpFamily, Protocol), Rejections>>);

#[derive(Debug, Default)]
struct Rejections {
    last: u64,
    total: u64,
}

impl Collector for RejectionCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut totals = self.0.lock();
        for family in IpFamily::ALL {
            let read = loopback_rejections(family).unwrap_or_else(|error| {
                tracing::warn!(%family, %error, "cannot read the counters of rejected packets");
                Vec::new()
            });
            for (protocol, packets) in read {
                let known = totals.entry((family, protocol)).or_default();
                known.total += packets.checked_sub(known.last).unwrap_or(packets);
                known.last = packets;
            }
        }
        let mut encoder = encoder.encode_descriptor(
            "kubeproxy_nftables_localhost_nodeport_rejected_packets",
            "Packets to localhost NodePorts that were rejected.",
            None,
            MetricType::Counter,
        )?;
        for ((family, protocol), known) in &*totals {
            let labels = RejectionLabels {
                ip_family: family.as_str(),
                protocol: match protocol {
                    Protocol::Tcp => "TCP",
                    Protocol::Udp => "UDP",
                    Protocol::Sctp => "SCTP",
                },
            };
            let encoder = encoder.encode_family(&labels)?;
            ConstCounter::new(known.total).encode(encoder)?;
        }
        Ok(())
    }
}
