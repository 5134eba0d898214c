//! Connections of Services as metrics, for as many Services as a monitoring system can take.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    net::SocketAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter},
    registry::Registry,
};
use weft_model::{IpFamily, error_text};
use weft_nftables::{Connections, CounterState, HostKernel, Watch, connections};

/// Maximum number of Service ports of a family with a series of their own; the others share one.
const SERIES: usize = 100;
/// The label of Service ports without a series of their own.
const OTHERS: &str = "others";

/// Reads the counters of a family; `None` if it has none now.
pub trait ConnectionSource: Send + Sync + 'static {
    /// Connections since each element was written.
    fn read(&self, family: IpFamily) -> Option<Connections>;
}

/// The counters of this host's kernel.
#[derive(Debug, Default)]
pub struct HostConnections;

impl ConnectionSource for HostConnections {
    fn read(&self, family: IpFamily) -> Option<Connections> {
        let mut kernel = HostKernel::new(family, Watch::new());
        match connections(&mut kernel, family) {
            Ok(CounterState::On(connections)) => Some(connections),
            Ok(CounterState::NoTable | CounterState::Off) => None,
            Err(error) => {
                tracing::warn!(%family, error = error_text(&error), "cannot read the counters of connections");
                None
            }
        }
    }
}

/// Registers the metric, which is read for each scrape.
pub fn register(registry: &mut Registry, source: Arc<dyn ConnectionSource>) {
    registry.register_collector(Box::new(ConnectionCollector {
        source,
        totals: Mutex::default(),
    }));
}

struct ConnectionCollector {
    source: Arc<dyn ConnectionSource>,
    totals: Mutex<BTreeMap<IpFamily, Totals>>,
}

/// Totals of one family. The counter of an element begins at zero when it is replaced; totals do not.
#[derive(Debug, Default)]
struct Totals {
    last: HashMap<(Arc<str>, SocketAddr), u64>,
    series: BTreeMap<Arc<str>, u64>,
    others: u64,
}

impl Totals {
    fn update(&mut self, now: Connections) {
        let mut new: BTreeMap<Arc<str>, u64> = BTreeMap::new();
        for ((service, endpoint), count) in &now {
            let former = self.last.get(&(service.clone(), *endpoint)).copied();
            let since = count.checked_sub(former.unwrap_or(0)).unwrap_or(*count);
            *new.entry(service.clone()).or_default() += since;
        }
        let there: BTreeSet<&Arc<str>> = new.keys().collect();
        self.series.retain(|service, _| there.contains(service));
        let mut new: Vec<(Arc<str>, u64)> = new.into_iter().collect();
        // A series that is free goes to the busiest Service port without one, which then keeps it.
        new.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (service, count) in new {
            let is_known = self.series.contains_key(&service);
            if is_known || (self.series.len() < SERIES && count > 0) {
                *self.series.entry(service).or_default() += count;
            } else {
                self.others += count;
            }
        }
        self.last = now.into_iter().collect();
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ServiceLabels {
    service: String,
    ip_family: &'static str,
}

impl fmt::Debug for ConnectionCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionCollector")
    }
}

impl Collector for ConnectionCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut totals = self.totals.lock();
        let mut encoder = encoder.encode_descriptor(
            "weft_proxy_service_connections",
            "Connections of up to 100 Service ports of a family, and of all others.",
            None,
            MetricType::Counter,
        )?;
        for family in IpFamily::ALL {
            let of_family = totals.entry(family).or_default();
            if let Some(now) = self.source.read(family) {
                of_family.update(now);
            }
            let others = (OTHERS, of_family.others);
            let series = of_family
                .series
                .iter()
                .map(|(name, count)| (&**name, *count));
            for (service, count) in series.chain([others]).filter(|(_, count)| *count > 0) {
                let labels = ServiceLabels {
                    service: service.to_owned(),
                    ip_family: family.as_str(),
                };
                let encoder = encoder.encode_family(&labels)?;
                ConstCounter::new(count).encode(encoder)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 80))
    }

    struct Scripted(Mutex<Vec<Connections>>);

    impl ConnectionSource for Scripted {
        fn read(&self, family: IpFamily) -> Option<Connections> {
            let mut rest = self.0.lock();
            (family == IpFamily::V4 && !rest.is_empty()).then(|| rest.remove(0))
        }
    }

    fn lines(registry: &Registry) -> Vec<String> {
        let text = weft_runtime::prometheus_text(registry);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn totals_do_not_fall_when_elements_are_replaced_or_endpoints_go() {
        let of = |counts: &[(&str, u8, u64)]| -> Connections {
            let counts = counts.iter();
            counts
                .map(|(name, number, count)| (((*name).into(), endpoint(*number)), *count))
                .collect()
        };
        let script = vec![
            of(&[("a/b:c", 1, 5), ("a/b:c", 2, 5), ("d/e:", 1, 0)]),
            of(&[("a/b:c", 1, 7), ("a/b:c", 2, 1)]),
            of(&[("a/b:c", 2, 4)]),
        ];
        let mut registry = Registry::default();
        register(&mut registry, Arc::new(Scripted(Mutex::new(script))));
        for total in [10, 13, 16, 16] {
            let name = "weft_proxy_service_connections_total";
            let expected = format!("{name}{{service=\"a/b:c\",ip_family=\"IPv4\"}} {total}");
            assert_eq!(lines(&registry), [expected]);
        }
    }

    #[test]
    fn however_many_services_there_are_the_number_of_series_is_bounded() {
        let many = |factor: u64| -> Connections {
            let services = 0..500_u64;
            services
                .map(|n| ((format!("s/{n}:").into(), endpoint(1)), n * factor))
                .collect()
        };
        let mut registry = Registry::default();
        let script = vec![many(1), many(2)];
        register(&mut registry, Arc::new(Scripted(Mutex::new(script))));
        for factor in [1, 2] {
            let lines = lines(&registry);
            assert_eq!(lines.len(), SERIES + 1);
            let busiest = format!("service=\"s/499:\",ip_family=\"IPv4\"}} {}", 499 * factor);
            assert!(
                lines.iter().any(|line| line.contains(&busiest)),
                "{lines:?}"
            );
            let rest: u64 = (0..400).sum();
            let others = format!("service=\"others\",ip_family=\"IPv4\"}} {}", rest * factor);
            assert!(lines.iter().any(|line| line.contains(&others)), "{lines:?}");
        }
    }
}
