//! Metrics of controllers and informers, under the names that Kubernetes dashboards use.

use std::{
    fmt,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, TypedMetric, histogram::Histogram},
    registry::Registry,
};

use crate::{
    Cluster, ControllerHandle, ControllerState, WorkqueueMetrics, controller::ControllerStatistics,
};

/// Exposes queues, controllers and informers. Series live exactly as long as their subject: a
/// restart of a controller adds none, dropping it removes them.
#[derive(Clone)]
pub struct Metrics {
    workqueues: WorkqueueMetrics,
    watched: Arc<Mutex<Watched>>,
}

#[derive(Default)]
struct Watched {
    controllers: Vec<ObservedController>,
    clusters: Vec<Cluster>,
}

struct ObservedController {
    name: String,
    concurrency: usize,
    statistics: Weak<ControllerStatistics>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// Metrics registered with a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            workqueues: WorkqueueMetrics::register(registry),
            watched: Arc::default(),
        };
        registry.register_collector(Box::new(metrics.clone()));
        metrics
    }

    /// Registry of workqueues.
    pub fn workqueues(&self) -> &WorkqueueMetrics {
        &self.workqueues
    }

    /// Exposes the informers of a cluster until it leaves.
    pub fn observe_cluster(&self, cluster: &Cluster) {
        self.watched().clusters.push(cluster.clone());
    }

    pub(crate) fn observe_controller(&self, controller: &ControllerHandle) {
        self.watched().controllers.push(ObservedController {
            name: controller.name().to_owned(),
            concurrency: controller.concurrency(),
            statistics: Arc::downgrade(controller.statistics()),
        });
    }

    fn watched(&self) -> parking_lot::MutexGuard<'_, Watched> {
        self.watched.lock()
    }

    fn controllers(&self) -> Vec<(String, usize, Arc<ControllerStatistics>)> {
        let mut watched = self.watched();
        watched
            .controllers
            .retain(|controller| controller.statistics.strong_count() > 0);
        let live = watched.controllers.iter().filter_map(|controller| {
            let statistics = controller.statistics.upgrade()?;
            Some((controller.name.clone(), controller.concurrency, statistics))
        });
        live.collect()
    }
}

/// One family: a name, help, type, and a function that writes the series of one controller.
type ControllerFamily = (
    &'static str,
    &'static str,
    MetricType,
    fn(&ControllerStatistics, MetricEncoder<'_>) -> fmt::Result,
);

fn counter(mut encoder: MetricEncoder<'_>, value: u64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

const CONTROLLER_FAMILIES: [ControllerFamily; 8] = [
    (
        "controller_runtime_reconcile_errors",
        "Total number of reconciles that failed",
        MetricType::Counter,
        |s, e| counter(e, s.error.load(Relaxed)),
    ),
    (
        "controller_runtime_terminal_reconcile_errors",
        "Total number of reconciles that failed with a terminal error",
        MetricType::Counter,
        |s, e| counter(e, s.terminal_errors.load(Relaxed)),
    ),
    (
        "controller_runtime_reconcile_panics",
        "Total number of reconciles that panicked",
        MetricType::Counter,
        |s, e| counter(e, s.panics.load(Relaxed)),
    ),
    (
        "controller_runtime_reconcile_timeouts",
        "Total number of reconciles that timed out",
        MetricType::Counter,
        |s, e| counter(e, s.timeouts.load(Relaxed)),
    ),
    (
        "controller_runtime_reconcile_time_seconds",
        "Duration of a reconcile in seconds",
        Histogram::TYPE,
        |s, e| s.time.encode(e),
    ),
    (
        "controller_runtime_active_workers",
        "Number of workers that are reconciling",
        MetricType::Gauge,
        |s, mut e| e.encode_gauge(&s.active_workers.load(Relaxed)),
    ),
    (
        "weft_runtime_controller_starts",
        "Total number of starts of the controller",
        MetricType::Counter,
        |s, e| counter(e, s.starts.load(Relaxed)),
    ),
    (
        "weft_runtime_controller_transitions",
        "Total number of state changes of the controller",
        MetricType::Counter,
        |s, e| counter(e, s.transitions.load(Relaxed)),
    ),
];

impl Metrics {
    fn encode_controllers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let controllers = self.controllers();
        for (name, help, kind, encode) in CONTROLLER_FAMILIES {
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (controller, _, statistics) in &controllers {
                encode(
                    statistics,
                    family.encode_family(&[("controller", controller.as_str())])?,
                )?;
            }
        }
        let mut family = encoder.encode_descriptor(
            "controller_runtime_reconcile",
            "Total number of reconciles by result",
            None,
            MetricType::Counter,
        )?;
        for (controller, _, statistics) in &controllers {
            for (result, value) in [
                ("success", statistics.success.load(Relaxed)),
                ("error", statistics.error.load(Relaxed)),
                ("requeue", 0),
                ("requeue_after", statistics.requeue_after.load(Relaxed)),
            ] {
                let labels = [("controller", controller.as_str()), ("result", result)];
                counter(family.encode_family(&labels)?, value)?;
            }
        }
        let mut family = encoder.encode_descriptor(
            "controller_runtime_max_concurrent_reconciles",
            "Configured number of workers",
            None,
            MetricType::Gauge,
        )?;
        for (controller, concurrency, _) in &controllers {
            let workers = i64::try_from(*concurrency).unwrap_or(i64::MAX);
            family
                .encode_family(&[("controller", controller.as_str())])?
                .encode_gauge(&workers)?;
        }
        encode_states(&controllers, encoder)
    }

    fn encode_informers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let informers: Vec<_> = {
            let mut watched = self.watched();
            watched
                .clusters
                .retain(|cluster| !cluster.left().is_cancelled());
            watched
                .clusters
                .iter()
                .flat_map(|cluster| cluster.cache().informers())
                .collect()
        };
        let rows: Vec<_> = informers
            .iter()
            .map(|informer| (informer.key().clone(), informer.info(), informer.latency()))
            .collect();
        let mut gauge = |name: &str, help: &str, value: &dyn Fn(&crate::InformerInfo) -> i64| {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (key, info, _) in &rows {
                family
                    .encode_family(&informer_labels(key).as_slice())?
                    .encode_gauge(&value(info))?;
            }
            fmt::Result::Ok(())
        };
        let signed = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        gauge(
            "informer_queued_items",
            "Keys waiting in the fullest subscription",
            &|info| signed(info.backlog),
        )?;
        gauge(
            "informer_store_resource_version",
            "The 15 least significant digits of the newest version seen",
            &|info| {
                let version = info.resource_version.parse::<u128>().unwrap_or(0);
                i64::try_from(version % 1_000_000_000_000_000).unwrap_or(0)
            },
        )?;
        gauge(
            "weft_runtime_informer_objects",
            "Objects in the store",
            &|info| signed(info.objects),
        )?;
        gauge(
            "weft_runtime_informer_wire_bytes",
            "Size of the store's objects on the wire",
            &|info| i64::try_from(info.wire_bytes).unwrap_or(i64::MAX),
        )?;
        gauge(
            "weft_runtime_informer_consumers",
            "Handles that hold the informer",
            &|info| signed(info.consumers),
        )?;
        gauge(
            "weft_runtime_informer_undecodable",
            "Objects that exist but do not decode",
            &|info| signed(info.undecodable.len()),
        )?;
        gauge(
            "weft_runtime_informer_synced",
            "1 while the store follows the server",
            &|info| i64::from(info.state == "synced"),
        )?;
        let mut total = |name: &str, help: &str, value: &dyn Fn(&crate::InformerInfo) -> u64| {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (key, info, _) in &rows {
                counter(
                    family.encode_family(&informer_labels(key).as_slice())?,
                    value(info),
                )?;
            }
            fmt::Result::Ok(())
        };
        total(
            "weft_runtime_informer_lists",
            "Lists begun, streaming ones included",
            &|info| info.lists,
        )?;
        total("weft_runtime_informer_watches", "Watches begun", &|info| {
            info.watches
        })?;
        total(
            "weft_runtime_informer_events",
            "Events and bookmarks received",
            &|info| info.events,
        )?;
        total(
            "weft_runtime_informer_errors",
            "Failed lists and watches",
            &|info| info.errors,
        )?;
        let mut family = encoder.encode_descriptor(
            "informer_processing_latency_seconds",
            "Time from receiving an event to having notified every subscriber",
            None,
            Histogram::TYPE,
        )?;
        for (key, _, latency) in &rows {
            latency.encode(family.encode_family(&informer_labels(key).as_slice())?)?;
        }
        Ok(())
    }
}

fn encode_states(
    controllers: &[(String, usize, Arc<ControllerStatistics>)],
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(
        "weft_runtime_controller_state",
        "1 for the current state of the controller",
        None,
        MetricType::Gauge,
    )?;
    for (controller, _, statistics) in controllers {
        let current = statistics.state();
        for state in ControllerState::NAMES {
            let labels = [("controller", controller.as_str()), ("state", state)];
            family
                .encode_family(&labels)?
                .encode_gauge(&i64::from(current.name() == state))?;
        }
    }
    Ok(())
}

/// client-go's labels; `name` distinguishes informers of one kind with different types or scopes.
fn informer_labels(key: &crate::InformerKey) -> [(&'static str, String); 4] {
    let scope = [&key.namespace, &key.labels, &key.fields];
    let scope: Vec<&str> = scope
        .into_iter()
        .flatten()
        .map(weft_model::SharedStr::as_str)
        .collect();
    let projection = key.projection();
    let projection = projection.rsplit("::").next().unwrap_or(projection);
    let mut name = format!("{}/{projection}", key.cluster);
    if !scope.is_empty() {
        name = format!("{name}:{}", scope.join(";"));
    }
    [
        ("name", name),
        ("group", key.kind.group.to_string()),
        ("version", key.kind.version.to_string()),
        ("resource", key.kind.plural.to_string()),
    ]
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_controllers(&mut encoder)?;
        self.encode_informers(&mut encoder)
    }
}
