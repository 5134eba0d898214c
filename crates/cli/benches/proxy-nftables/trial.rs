//! All measurements at one number of Services, and the limits of the figures.

use std::{path::Path, thread};

use weft_testkit::{
    bench::{Report, Target, is_quick, median},
    peer,
};

use crate::{
    COMPARED, Effort,
    changes::{self, Changes},
    cluster::Cluster,
    connections,
    objects::DNS,
    ping::Ping,
    process::Proxy,
    start::{self, Gap},
    statistics::{milliseconds, percentile},
    testbed::Testbed,
};

/// Names figures, and judges those of a size for which there is a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judge {
    size: usize,
}

impl Judge {
    pub(crate) fn title(self, what: &str) -> String {
        format!("{} Services x 5: {what}", self.size)
    }

    /// A limit of the largest size.
    fn largest(self, target: Target) -> Target {
        if self.size == 50_000 {
            target
        } else {
            Target::None
        }
    }

    /// The most that is allowed at some sizes.
    pub(crate) fn at(self, limits: [(usize, f64); 2]) -> Target {
        let mut limits = limits.into_iter();
        let limit = limits.find(|(size, _)| *size == self.size);
        limit.map_or(Target::None, |(_, limit)| Target::AtMost(limit))
    }
}

/// A limit of every size. A quick run has none.
pub(crate) fn judged(target: Target) -> Target {
    if is_quick() { Target::None } else { target }
}

/// The figures that are compared between sizes.
pub(crate) struct Outcome {
    size: usize,
    processor_time: f64,
    connection: f64,
}

pub(crate) fn measure(
    size: usize,
    effort: Effort,
    cluster: &mut Cluster,
    report: &mut Report,
) -> Outcome {
    let judge = Judge { size };
    let testbed = Testbed::new(&format!("weft-{size}"), cluster.address);
    let (proxy, first_gap) = start::first(&testbed, judge, report);
    proxy.wait_until_quiet();
    let calm = calm(effort, &testbed);
    let ours = changes::one_by_one(
        effort.changes,
        effort,
        changes::of_other_services(size),
        cluster,
        &testbed,
        &proxy,
    );

    let ping = Ping::start(&testbed.namespace, DNS.into());
    let storm = changes::storm(effort, size, cluster, &testbed);
    let storm_gap = Gap(milliseconds(ping.finish().longest));
    proxy.wait_until_quiet();
    let limits = judge.at([(10_000, 40.0), (50_000, 150.0)]);
    let words = judge.title("RssAnon after all changes");
    report.figure(&words, "MB", proxy.anonymous_megabytes(), limits);
    proxy.stop();

    let (proxy, restart_gap) = start::again(&testbed, judge, report);
    proxy.stop();
    let bare = changes::bare(effort.changes, size, cluster, &testbed);
    report_changes(judge, &ours, &bare, report);
    let rate = effort.rate;
    let words = judge.title(&format!(
        "{rate} changed slices a second, event to commit, p99"
    ));
    let target = judged(Target::AtMost(10.0));
    report.figure(&words, "ms", percentile(&storm, 99), target);
    let gaps = [
        ("first sync", first_gap),
        ("a restart", restart_gap),
        ("a storm of changes", storm_gap),
    ];
    report_gaps(judge, gaps, calm, report);

    let peer = (effort.peer_changes > 0 && size <= COMPARED).then(|| peer("kube-proxy"));
    let times = match peer.flatten() {
        Some(program) => {
            let peer = Testbed::new(&format!("kube-{size}"), cluster.address);
            let theirs = measure_peer(&program, effort, size, cluster, &peer);
            compare_changes(judge, &ours, &theirs, report);
            let namespaces = [&*testbed.namespace, &*peer.namespace];
            let times = connections::measure(&namespaces, effort.connections, size);
            compare_connections(judge, &times, report);
            times
        }
        None => connections::measure(&[&testbed.namespace], effort.connections, size),
    };
    for percent in [50, 99] {
        let words = judge.title(&format!(
            "new connection through a random Service, p{percent}"
        ));
        report.figure(&words, "ms", percentile(&times[0], percent), Target::None);
    }
    Outcome {
        size,
        processor_time: ours.processor_time,
        connection: median(times[0].clone()),
    }
}

/// The longest gap of a probe while nothing changes.
fn calm(effort: Effort, testbed: &Testbed) -> Gap {
    let ping = Ping::start(&testbed.namespace, DNS.into());
    thread::sleep(effort.calm);
    Gap(milliseconds(ping.finish().longest))
}

fn measure_peer(
    program: &Path,
    effort: Effort,
    size: usize,
    cluster: &Cluster,
    testbed: &Testbed,
) -> Changes {
    let mut proxy = Proxy::start(testbed, program, &[]);
    proxy.first_sync();
    proxy.wait_until_quiet();
    let changes = changes::one_by_one(
        effort.peer_changes,
        effort,
        changes::of_other_services(size),
        cluster,
        testbed,
        &proxy,
    );
    // Its rules stay.
    proxy.stop();
    changes
}

fn report_changes(judge: Judge, ours: &Changes, bare: &[f64], report: &mut Report) {
    let target = judge.largest(Target::AtMost(0.5));
    let words = judge.title("one changed slice, event to commit, p50");
    report.figure(&words, "ms", ours.median(), target);
    report.comparison(
        &judge.title("one changed slice, event to commit, p50, next to the bare netlink write"),
        "ms",
        ours.median(),
        median(bare.to_vec()),
        Target::None,
    );
    let target = judge.largest(Target::AtMost(3.0));
    let words = judge.title("one changed slice, event to commit, p99");
    report.figure(&words, "ms", percentile(&ours.latencies, 99), target);
    let target = judged(Target::AtMost(0.2));
    let words = judge.title("one changed slice, processor time of the process");
    report.figure(&words, "ms", ours.processor_time, target);
}

fn report_gaps(judge: Judge, gaps: [(&str, Gap); 3], calm: Gap, report: &mut Report) {
    for (phase, gap) in gaps {
        let words = format!("longest gap of a 1 kHz probe during {phase}");
        report.comparison(
            &judge.title(&format!("{words}, next to the same without")),
            "ms",
            gap.0,
            calm.0,
            Target::None,
        );
        report.figure(
            &judge.title(&format!("{words}, beyond that without")),
            "ms",
            gap.0 - calm.0,
            judged(Target::AtMost(2.0)),
        );
    }
}

fn compare_changes(judge: Judge, ours: &Changes, theirs: &Changes, report: &mut Report) {
    let at_most = |ratio: f64| {
        if judge.size == COMPARED {
            Target::RatioAtMost(ratio)
        } else {
            Target::None
        }
    };
    report.comparison(
        &judge.title("one changed slice, event to commit, p50, compared with kube-proxy"),
        "ms",
        ours.median(),
        theirs.median(),
        at_most(1.0 / 300.0),
    );
    report.comparison(
        &judge.title("one changed slice, processor time, compared with kube-proxy"),
        "ms",
        ours.processor_time,
        theirs.processor_time,
        at_most(1.0 / 1_000.0),
    );
}

fn compare_connections(judge: Judge, times: &[Vec<f64>], report: &mut Report) {
    let [ours, theirs] = times else {
        return;
    };
    for (percent, limit) in [(50, 1.05), (99, 1.2)] {
        report.comparison(
            &judge.title(&format!(
                "new connection through a random Service, p{percent}, in turns with kube-proxy"
            )),
            "ms",
            percentile(ours, percent),
            percentile(theirs, percent),
            judged(Target::RatioAtMost(limit)),
        );
    }
}

/// The growth of figures from the fewest to the most Services.
pub(crate) fn compare_sizes(smallest: &Outcome, largest: &Outcome, report: &mut Report) {
    let limit = |ratio: f64| judged(Target::RatioAtMost(ratio));
    let title = |what: &str| format!("{what}, {} Services to {}", largest.size, smallest.size);
    report.comparison(
        &title("one changed slice, processor time of the process"),
        "ms",
        largest.processor_time,
        smallest.processor_time,
        limit(1.2),
    );
    report.comparison(
        &title("new connection through a random Service, p50"),
        "ms",
        largest.connection,
        smallest.connection,
        limit(1.2),
    );
}
