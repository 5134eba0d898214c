//! One Service with many endpoints, in slices of a hundred.

use weft_testkit::bench::{Report, Target};

use crate::{
    Effort, changes,
    cluster::Cluster,
    objects::{self, LARGE},
    process::Proxy,
    statistics::percentile,
    testbed::Testbed,
};

pub(crate) fn measure(effort: Effort, report: &mut Report) {
    let cluster = Cluster::new();
    let slices = effort.endpoints / 100;
    cluster.create([objects::service(LARGE)]);
    cluster.create((0..slices).map(|number| objects::large_slice(number, None)));
    let testbed = Testbed::new("large", cluster.address);
    let mut proxy = Proxy::weft(&testbed);
    proxy.first_sync();
    proxy.wait_until_quiet();
    let changes = changes::one_by_one(
        effort.changes.min(50),
        effort,
        |round, mark| objects::large_slice(round % slices, Some(mark)),
        &cluster,
        &testbed,
        &proxy,
    );
    let title = |what: &str| format!("one Service x {}: {what}", effort.endpoints);
    let words = title("one changed slice, event to commit, p50");
    report.figure(&words, "ms", changes.median(), Target::None);
    let words = title("one changed slice, event to commit, p99");
    report.figure(
        &words,
        "ms",
        percentile(&changes.latencies, 99),
        Target::None,
    );
    let words = title("one changed slice, processor time of the process");
    report.figure(&words, "ms", changes.processor_time, Target::None);
    proxy.stop();
}
