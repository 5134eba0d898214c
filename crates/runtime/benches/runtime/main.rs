//! Benchmark of the runtime against kube 5's `reflector` and `Controller` on the same stream.
//!
//! "kube, full" decodes `k8s_openapi` Pods, as a kube user does by default. "kube, slim" decodes
//! the same slim type as ours. Everything runs on one thread, against a server in the same process
//! that sends prepared bytes, so it measures decoding, storing and notifying.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on fails")]
#![expect(clippy::cast_precision_loss, reason = "figures are approximate")]

mod pods;
mod server;
mod subjects;

use std::{
    fs,
    time::{Duration, Instant},
};

use weft_runtime::Workqueue;
use weft_testkit::bench::{Report, Target, alternate, is_quick};

use crate::{
    pods::pod_json,
    server::Server,
    subjects::{Kube, KubeSlim, Ours, Subject},
};

#[global_allocator]
static ALLOCATOR: weft_heap::Counting = weft_heap::Counting;

fn main() -> std::io::Result<()> {
    let mut report = Report::new();
    let (pods, events, rounds) = if is_quick() {
        (300, 300, 1)
    } else {
        (50_000, 20_000, 9)
    };
    eprintln!("one Pod is {} B on the wire", pod_json(7, 1).len());
    heap_per_pod(&mut report, pods);
    peak_while_listing(&mut report, pods);
    throughput(&mut report, events, rounds);
    open_watches(&mut report);
    cycles(&mut report, if is_quick() { 20 } else { 1000 });
    workqueue(&mut report, if is_quick() { 10_000 } else { 2_000_000 });
    report.finish()
}

/// Runs one measurement on a runtime of its own: when it returns, every task of it is gone, and so
/// is what they held.
fn alone<T>(measurement: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(measurement)
}

/// Live heap that filling a cache with `count` Pods leaves behind, divided by their number.
fn live_per_pod<S: Subject>(server: &Server, count: usize) -> f64 {
    alone(async {
        let before = weft_heap::live();
        let subject = S::fill(server).await;
        assert_eq!(subject.len(), count);
        (weft_heap::live() - before) as f64 / count as f64
    })
}

fn heap_per_pod(report: &mut Report, count: usize) {
    let server = Server::with_pods(count);
    let ours = live_per_pod::<Ours>(&server, count);
    let full = live_per_pod::<Kube>(&server, count);
    let slim = live_per_pod::<KubeSlim>(&server, count);
    let target = Target::RatioAtMost(0.05);
    report.comparison(
        "live heap per Pod: ours slim, kube full",
        "B",
        ours,
        full,
        target,
    );
    let target = Target::RatioAtMost(1.0);
    report.comparison(
        "live heap per Pod: ours slim, kube slim",
        "B",
        ours,
        slim,
        target,
    );
}

/// The highest live heap while listing, and while listing again over a full store, relative to the
/// steady state.
fn peak_while_listing(report: &mut Report, count: usize) {
    let server = Server::with_pods(count);
    let (first, second) = alone(async {
        let before = weft_heap::live();
        weft_heap::reset_peak();
        let subject = Ours::fill(&server).await;
        let first_peak = weft_heap::peak() - before;
        let steady = (weft_heap::live() - before) as f64;
        weft_heap::reset_peak();
        let lists = server.lists();
        server.expire_watches();
        while server.lists() == lists || !subject.is_synced() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let second_peak = weft_heap::peak() - before;
        assert_eq!(subject.len(), count);
        (first_peak as f64 / steady, second_peak as f64 / steady)
    });
    for (what, peak) in [("listing", first), ("relisting", second)] {
        let name = format!("peak heap while {what} {count} Pods, to steady state");
        report.figure(&name, "×", peak, Target::AtMost(1.3));
    }
}

/// Objects for each second of processor time, over a list of a thousand Pods and `events` changes of
/// them.
fn rate<S: Subject>(server: &Server, events: usize) -> f64 {
    let objects = (events + 1000) as f64;
    let before = processor_seconds();
    alone(S::follow(server));
    objects / (processor_seconds() - before)
}

/// Processor time of this thread, on which everything here runs. Unlike the clock it does not
/// advance while another process has the processor.
fn processor_seconds() -> f64 {
    let schedule = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds: f64 = schedule.split(' ').next().unwrap().parse().unwrap();
    nanoseconds / 1e9
}

fn throughput(report: &mut Report, events: usize, rounds: usize) {
    let server = Server::with_pods(1000).with_events(events);
    let (ours, full) = alternate(
        rounds,
        || rate::<Ours>(&server, events),
        || rate::<Kube>(&server, events),
    );
    let target = Target::RatioAtLeast(4.0);
    report.comparison(
        "decode and apply: ours slim, kube full",
        "/s",
        ours,
        full,
        target,
    );
    let (ours, slim) = alternate(
        rounds,
        || rate::<Ours>(&server, events),
        || rate::<KubeSlim>(&server, events),
    );
    let target = Target::RatioAtLeast(1.0);
    report.comparison(
        "decode and apply: ours slim, kube slim",
        "/s",
        ours,
        slim,
        target,
    );
}

fn open_watches(report: &mut Report) {
    let server = Server::with_pods(10);
    let ours = alone(subjects::our_controllers(&server, 10));
    let kube = alone(subjects::kube_controllers(&server, 10));
    let (ours, kube) = (ours as f64, kube as f64);
    report.comparison(
        "open watches of 10 controllers of one kind",
        "",
        ours,
        kube,
        Target::AtMost(1.0),
    );
}

fn cycles(report: &mut Report, count: usize) {
    let server = Server::with_pods(200);
    let (heap, tasks) = alone(subjects::cycle_controller(&server, count));
    let name = format!("live heap after {count} starts and stops, to after 10");
    report.figure(&name, "×", heap, Target::AtMost(1.01));
    let name = format!("tasks after {count} starts and stops, to after 10");
    report.figure(&name, "×", tasks, Target::AtMost(1.01));
}

fn workqueue(report: &mut Report, count: u32) {
    let queue: Workqueue<u32> = Workqueue::builder("bench").build();
    let seconds = alone(async {
        let start = Instant::now();
        for key in 0..count {
            queue.add(key % 1000);
            queue.next().await.unwrap().finish();
        }
        start.elapsed().as_secs_f64()
    });
    let rate = f64::from(count) / seconds;
    report.figure(
        "workqueue add + get + done",
        "/s",
        rate,
        Target::AtLeast(1e6),
    );
}
