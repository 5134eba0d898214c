//! `weft proxy --proxy-mode=nftables` as a process next to the embedded API server: latency and
//! processor time of changes, starts, restarts, memory, and connections through Services while all of
//! that happens. kube-proxy's nftables mode is measured next to it where `make peers` built it.
//!
//! Everything happens in network namespaces of its own. Needs root.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on should panic"
)]

use std::{env, process::Command, time::Duration};

use weft_testkit::bench::{Report, is_quick};

mod changes;
mod cluster;
mod connections;
mod kernel;
mod large;
mod objects;
mod ping;
mod process;
mod relay;
mod start;
mod statistics;
mod testbed;
mod timeline;
mod trial;

use cluster::Cluster;

const INSIDE: &str = "WEFT_BENCH_INSIDE";

/// Amount of measurements.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Numbers of Services, ascending.
    sizes: &'static [usize],
    /// Changes of one slice, one after the other.
    changes: usize,
    /// Changes of kube-proxy, of which one takes seconds.
    peer_changes: usize,
    /// Time from one change to the next, in which the processor goes to other work.
    pause: Duration,
    /// Changes in quick succession: for how long, and how many each second.
    storm: Duration,
    rate: u32,
    /// Connections of each proxy.
    connections: usize,
    /// Time of a probe that nothing disturbs.
    calm: Duration,
    /// Endpoints of the largest Service.
    endpoints: usize,
}

impl Effort {
    fn chosen() -> Self {
        if is_quick() {
            return Self {
                sizes: &[20, 40],
                changes: 3,
                peer_changes: 0,
                pause: Duration::from_millis(5),
                storm: Duration::from_millis(200),
                rate: 100,
                connections: 50,
                calm: Duration::from_millis(200),
                endpoints: 100,
            };
        }
        Self {
            sizes: &[1_000, 10_000, 50_000],
            changes: 200,
            peer_changes: 3,
            pause: Duration::from_millis(20),
            storm: Duration::from_secs(5),
            rate: 1_000,
            connections: 4_000,
            calm: Duration::from_secs(5),
            endpoints: 10_000,
        }
    }
}

/// The most Services with which kube-proxy is compared: with more its first sync takes minutes.
const COMPARED: usize = 10_000;

fn main() {
    if env::var_os(INSIDE).is_none() {
        run_inside();
        return;
    }
    let effort = Effort::chosen();
    let mut report = Report::new();
    let mut cluster = Cluster::new();
    let mut outcomes = Vec::new();
    for &size in effort.sizes {
        cluster.load(size);
        outcomes.push(trial::measure(size, effort, &mut cluster, &mut report));
    }
    if let [smallest, .., largest] = &outcomes[..] {
        trial::compare_sizes(smallest, largest, &mut report);
    }
    large::measure(effort, &mut report);
    report.finish().unwrap();
}

/// Runs this program again in namespaces whose processes end with it.
fn run_inside() {
    let script = "mount -t tmpfs tmpfs /run && ip link set lo up && exec \"$0\"";
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let status = command
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child=KILL"])
        .args(["--mount-proc", "sh", "-c", script])
        .arg(env::current_exe().unwrap())
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}
