//! Memory, heap and task statistics of the process.

use std::fmt;

use prometheus_client::{
    collector::Collector, encoding::DescriptorEncoder, metrics::MetricType, registry::Registry,
};
use serde::Serialize;

/// Statistics of a counting allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeapStatistics {
    /// Bytes allocated now.
    pub live_bytes: usize,
    /// Most bytes allocated at once.
    pub peak_bytes: usize,
    /// Allocations since the start.
    pub allocations: usize,
}

/// Reads the process's allocator statistics; `None` without a counting allocator.
pub type HeapProbe = fn() -> Option<HeapStatistics>;

pub(super) fn uncounted() -> Option<HeapStatistics> {
    None
}

/// Body of `/debug/heap`: the figures for hunting a leak.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProcessInfo {
    heap: Option<HeapStatistics>,
    resident_bytes: Option<u64>,
    anonymous_bytes: Option<u64>,
    tasks: usize,
}

pub(super) fn info(heap: HeapProbe) -> ProcessInfo {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ProcessInfo {
        heap: heap(),
        resident_bytes: kibibytes(&status, "VmRSS:"),
        anonymous_bytes: kibibytes(&status, "RssAnon:"),
        tasks: tokio::runtime::Handle::try_current()
            .map(|handle| handle.metrics().num_alive_tasks())
            .unwrap_or_default(),
    }
}

fn kibibytes(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let number: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(number * 1024)
}

struct ProcessMetrics(HeapProbe);

impl fmt::Debug for ProcessMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessMetrics")
    }
}

pub(super) fn register(heap: HeapProbe, registry: &mut Registry) {
    registry.register_collector(Box::new(ProcessMetrics(heap)));
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let info = info(self.0);
        let mut gauge = |name: &str, help: &str, value: Option<u64>| {
            let Some(value) = value else { return Ok(()) };
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            encoder
                .encode_descriptor(name, help, None, MetricType::Gauge)?
                .encode_gauge(&value)
        };
        gauge(
            "process_resident_memory_bytes",
            "Resident memory size in bytes",
            info.resident_bytes,
        )?;
        let live = info.heap.map(|heap| heap.live_bytes as u64);
        gauge("weft_runtime_heap_live_bytes", "Bytes allocated now", live)?;
        gauge(
            "weft_runtime_tasks",
            "Number of live tokio tasks",
            Some(info.tasks as u64),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_process_knows_its_own_size() {
        let info = info(uncounted);
        assert!(info.resident_bytes.unwrap() > 1 << 20);
        assert!(info.anonymous_bytes.unwrap() <= info.resident_bytes.unwrap());
        assert_eq!(kibibytes("VmRSS:\t  12 kB\n", "VmRSS:"), Some(12288));
    }
}
