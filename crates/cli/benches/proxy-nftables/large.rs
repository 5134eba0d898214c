//! One Service with many endpoints, in slices of a hundred.

use std::{thread, time::Duration};

use weft_testkit::bench::{Report, Target, median};

use crate::{
    Effort,
    cluster::Cluster,
    objects::{self, LARGE},
    process::Proxy,
    statistics::{milliseconds, percentile},
    testbed::Testbed,
};

const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn measure(effort: Effort, report: &mut Report) {
    let cluster = Cluster::new();
    let slices = effort.endpoints / 100;
    cluster.create([objects::service(LARGE)]);
    cluster.create((0..slices).map(|number| objects::large_slice(number, None)));
    let testbed = Testbed::new("large", cluster.address);
    let mut proxy = Proxy::weft(&testbed);
    proxy.first_sync();
    proxy.wait_until_quiet();
    let before = proxy.processor_time();
    let count = effort.changes.min(50);
    let latencies: Vec<f64> = (0..count)
        .map(|round| {
            let mark = cluster.mark();
            testbed.timeline.expect(mark);
            let slice = objects::large_slice(round % slices, Some(mark));
            cluster.runtime.block_on(cluster.replace(slice));
            let took = testbed.timeline.wait(mark, PATIENCE);
            thread::sleep(effort.pause);
            milliseconds(took)
        })
        .collect();
    proxy.wait_until_quiet();
    let used = proxy.processor_time().saturating_sub(before);
    let title = |what: &str| format!("one Service x {}: {what}", effort.endpoints);
    let words = title("one changed slice, event to commit, p50");
    report.figure(&words, "ms", median(latencies.clone()), Target::None);
    let words = title("one changed slice, event to commit, p99");
    report.figure(&words, "ms", percentile(&latencies, 99), Target::None);
    let each = milliseconds(used / u32::try_from(count).unwrap());
    let words = title("one changed slice, processor time of the process");
    report.figure(&words, "ms", each, Target::None);
    proxy.stop();
}
