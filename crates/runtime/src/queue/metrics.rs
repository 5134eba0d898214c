//! Metrics of workqueues under client-go's names.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Registry,
};

/// Upper bounds in seconds: 10 ns to 10 s by tens, as Kubernetes' component-base has them.
const BOUNDS: [f64; 10] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];

/// Statistics of one queue at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueStatistics {
    pub(crate) depth: usize,
    pub(crate) adds: u64,
    pub(crate) retries: u64,
    pub(crate) queue_duration: Durations,
    pub(crate) work_duration: Durations,
    pub(crate) unfinished_seconds: f64,
    pub(crate) longest_running_seconds: f64,
}

/// A histogram without a lock of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Durations {
    counts: [u64; BOUNDS.len() + 1],
    sum: f64,
}

impl Durations {
    pub(crate) fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        self.counts[bucket] += 1;
        self.sum += seconds;
    }

    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.counts).collect();
        encoder.encode_histogram::<NoLabelSet>(self.sum, self.counts.iter().sum(), &buckets, None)
    }
}

type Observe = Box<dyn Fn() -> Option<QueueStatistics> + Send + Sync>;

/// Exposes queues by name. The series of a queue end with the queue.
#[derive(Clone, Default)]
pub struct WorkqueueMetrics {
    queues: Arc<Mutex<BTreeMap<String, Observe>>>,
}

impl fmt::Debug for WorkqueueMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkqueueMetrics")
    }
}

impl WorkqueueMetrics {
    /// Metrics registered with a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_collector(Box::new(metrics.clone()));
        metrics
    }

    pub(crate) fn observe(
        &self,
        name: &str,
        observe: impl Fn() -> Option<QueueStatistics> + Send + Sync + 'static,
    ) {
        let mut queues = self.queues.lock();
        queues.insert(name.to_owned(), Box::new(observe));
    }

    fn collect(&self) -> Vec<(String, QueueStatistics)> {
        let mut queues = self.queues.lock();
        let mut collected = Vec::new();
        queues.retain(|name, observe| {
            let Some(statistics) = observe() else {
                return false;
            };
            collected.push((name.clone(), statistics));
            true
        });
        collected
    }
}

impl Collector for WorkqueueMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let queues = self.collect();
        if queues.is_empty() {
            return Ok(());
        }
        let mut family = |name: &str,
                          help: &str,
                          kind: MetricType,
                          one: &dyn Fn(&QueueStatistics, MetricEncoder<'_>) -> fmt::Result|
         -> fmt::Result {
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (name, statistics) in &queues {
                one(
                    statistics,
                    metric.encode_family(&[("name", name.as_str())])?,
                )?;
            }
            Ok(())
        };
        family(
            "workqueue_adds",
            "Total number of adds handled by workqueue",
            MetricType::Counter,
            &|q, mut e| e.encode_counter::<NoLabelSet, _, u64>(&q.adds, None),
        )?;
        family(
            "workqueue_depth",
            "Current depth of workqueue",
            MetricType::Gauge,
            &|q, mut e| e.encode_gauge(&i64::try_from(q.depth).unwrap_or(i64::MAX)),
        )?;
        family(
            "workqueue_longest_running_processor_seconds",
            "Age in seconds of the oldest key being worked on",
            MetricType::Gauge,
            &|q, mut e| e.encode_gauge(&q.longest_running_seconds),
        )?;
        family(
            "workqueue_queue_duration_seconds",
            "Time in seconds that a key waits before it is worked on",
            MetricType::Histogram,
            &|q, e| q.queue_duration.encode(e),
        )?;
        family(
            "workqueue_retries",
            "Total number of delayed adds",
            MetricType::Counter,
            &|q, mut e| e.encode_counter::<NoLabelSet, _, u64>(&q.retries, None),
        )?;
        family(
            "workqueue_unfinished_work_seconds",
            "Sum of the ages of the keys being worked on: large values mean stuck workers",
            MetricType::Gauge,
            &|q, mut e| e.encode_gauge(&q.unfinished_seconds),
        )?;
        family(
            "workqueue_work_duration_seconds",
            "Time in seconds that working on a key takes",
            MetricType::Histogram,
            &|q, e| q.work_duration.encode(e),
        )
    }
}
