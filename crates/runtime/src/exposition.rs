//! Metrics in the Prometheus text format.
//!
//! `prometheus-client` writes OpenMetrics. Dashboards and alerts for Kubernetes components were
//! written against Go's client, which writes the older Prometheus format: counters carry `_total`
//! in their headers too, and bucket bounds print as Go prints them (`1e-08`, `10`). A series whose
//! `le` differs by a character is another series, so this module writes what Go writes.

use std::fmt::Write;

use prometheus_client::{encoding::text, registry::Registry};

/// Content type of [`prometheus_text`].
pub const PROMETHEUS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything in a registry in the Prometheus text format, version 0.0.4.
pub fn prometheus_text(registry: &Registry) -> String {
    let mut open_metrics = String::new();
    // Writing to a string cannot fail; a collector that fails leaves the text it had written.
    if text::encode(&mut open_metrics, registry).is_err() {
        tracing::error!("a metrics collector failed");
    }
    from_open_metrics(&open_metrics)
}

fn from_open_metrics(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    let mut help: Option<(&str, &str)> = None;
    for line in text.lines() {
        let mut write = |line: std::fmt::Arguments<'_>| {
            let _infallible = output.write_fmt(line);
            output.push('\n');
        };
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else {
                continue;
            };
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                other => ("", other),
            };
            if let Some((_, text)) = help.take().filter(|(described, _)| *described == name) {
                write(format_args!("# HELP {name}{suffix} {text}"));
            }
            write(format_args!("# TYPE {name}{suffix} {kind}"));
        } else if !line.starts_with('#') {
            match bucket_bound(line) {
                Some((before, bound, after)) => {
                    write(format_args!("{before}{}{after}", go_float(bound)));
                }
                None => write(format_args!("{line}")),
            }
        }
    }
    output
}

/// Splits a bucket's line around the value of its `le` label.
fn bucket_bound(line: &str) -> Option<(&str, f64, &str)> {
    let start = line.find("le=\"").filter(|start| {
        line[..*start].ends_with(['{', ',']) && line[..*start].contains("_bucket{")
    })? + 4;
    let end = start + line[start..].find('"')?;
    let bound = &line[start..end];
    (bound != "+Inf").then_some(())?;
    Some((&line[..start], bound.parse().ok()?, &line[end..]))
}

/// A float as Go's `strconv.FormatFloat(value, 'g', -1, 64)` prints it.
fn go_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..21).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Workqueue, WorkqueueMetrics};

    #[test]
    fn floats_print_as_in_go() {
        for (value, text) in [
            (1e-8, "1e-08"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (0.005, "0.005"),
            (1.0, "1"),
            (10.0, "10"),
            (1.25, "1.25"),
            (2.5e22, "2.5e+22"),
        ] {
            assert_eq!(go_float(value), text);
        }
    }

    /// The text of client-go's workqueue metrics as component-base registers them (the names,
    /// label and buckets of Kubernetes 1.36), after one add, one get and one delayed add.
    #[tokio::test(start_paused = true)]
    async fn workqueue_metrics_have_the_names_labels_and_buckets_of_client_go() {
        let mut registry = Registry::default();
        let metrics = WorkqueueMetrics::register(&mut registry);
        let queue: Workqueue<u8> = Workqueue::builder("Routes").metrics(&metrics).build();
        queue.add(1);
        queue.add_after(2, Duration::from_secs(60));
        let lease = queue.next().await.unwrap();
        tokio::time::advance(Duration::from_secs(2)).await;
        queue.add(3);
        let text = prometheus_text(&registry);
        let series: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with("# HELP"))
            .collect();
        let buckets = [
            "1e-08", "1e-07", "1e-06", "1e-05", "0.0001", "0.001", "0.01", "0.1", "1", "10", "+Inf",
        ];
        let histogram = |name: &str, count: u8| {
            let mut lines = vec![format!("# TYPE {name} histogram")];
            lines.push(format!("{name}_sum{{name=\"Routes\"}} 0.0"));
            lines.push(format!("{name}_count{{name=\"Routes\"}} {count}"));
            lines.extend(
                buckets
                    .iter()
                    .map(|le| format!("{name}_bucket{{le=\"{le}\",name=\"Routes\"}} {count}")),
            );
            lines
        };
        let mut expected = vec![
            "# TYPE workqueue_adds_total counter".to_owned(),
            "workqueue_adds_total{name=\"Routes\"} 2".to_owned(),
            "# TYPE workqueue_depth gauge".to_owned(),
            "workqueue_depth{name=\"Routes\"} 1".to_owned(),
            "# TYPE workqueue_longest_running_processor_seconds gauge".to_owned(),
            "workqueue_longest_running_processor_seconds{name=\"Routes\"} 2.0".to_owned(),
        ];
        expected.extend(histogram("workqueue_queue_duration_seconds", 1));
        expected.extend([
            "# TYPE workqueue_retries_total counter".to_owned(),
            "workqueue_retries_total{name=\"Routes\"} 1".to_owned(),
            "# TYPE workqueue_unfinished_work_seconds gauge".to_owned(),
            "workqueue_unfinished_work_seconds{name=\"Routes\"} 2.0".to_owned(),
        ]);
        expected.extend(histogram("workqueue_work_duration_seconds", 0));
        assert_eq!(series, expected);
        drop(lease);
        drop(queue);
        assert!(
            !prometheus_text(&registry).contains("Routes"),
            "series outlive their queue"
        );
    }
}
