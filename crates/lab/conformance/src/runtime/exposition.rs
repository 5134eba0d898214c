//! Values from the Prometheus text format.

/// Sum of all series of a metric that have these labels.
pub(super) fn sum(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    text.lines()
        .filter_map(|line| value(line, name, labels))
        .sum()
}

fn value(line: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let (held, value) = match rest.strip_prefix('{') {
        Some(rest) => rest.split_once("} ")?,
        None => ("", rest.strip_prefix(' ')?),
    };
    let has = |(key, value): &(&str, &str)| {
        let pair = format!("{key}=\"{value}\"");
        held.split(',').any(|held| held == pair)
    };
    if labels.iter().all(has) {
        value.trim().parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these are exact")]
mod tests {
    use super::*;

    const TEXT: &str = "\
# TYPE apiserver_longrunning_requests gauge
apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"pods\",verb=\"WATCH\"} 2
apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"pods\",verb=\"CONNECT\"} 4
apiserver_longrunning_requests{component=\"apiserver\",group=\"x\",resource=\"pods\",verb=\"WATCH\"} 8
process_cpu_seconds_total 12.5
process_cpu_seconds_total_other 99
";

    #[test]
    fn series_are_chosen_by_labels() {
        let name = "apiserver_longrunning_requests";
        let pods = [("verb", "WATCH"), ("resource", "pods")];
        assert_eq!(sum(TEXT, name, &pods), 10.0);
        let core = [("verb", "WATCH"), ("resource", "pods"), ("group", "")];
        assert_eq!(sum(TEXT, name, &core), 2.0);
        assert_eq!(sum(TEXT, name, &[("resource", "nodes")]), 0.0);
    }

    #[test]
    fn a_metric_name_is_not_matched_by_its_prefix() {
        assert_eq!(sum(TEXT, "process_cpu_seconds_total", &[]), 12.5);
    }
}
