//! A proxy process: its metrics, its usage of processor and memory, and its end.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use rustix::process::{Pid, Signal, kill_process};
use weft_testkit::usage::{Usage, anonymous_megabytes};

use crate::{
    objects::NODE,
    testbed::{CLUSTER_CIDR, Testbed},
};

const PATIENCE: Duration = Duration::from_secs(600);
/// A proxy that used no processor time for this long is idle.
const QUIET: Duration = Duration::from_millis(300);

pub(crate) struct Proxy<'a> {
    child: Child,
    testbed: &'a Testbed,
    started: SystemTime,
}

/// Unix times in seconds, as the proxy's metrics have them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstSync {
    /// Caches were synced.
    pub(crate) queued: f64,
    pub(crate) done: f64,
}

impl<'a> Proxy<'a> {
    pub(crate) fn weft(testbed: &'a Testbed) -> Self {
        Self::start(testbed, Path::new(env!("CARGO_BIN_EXE_weft")), &["proxy"])
    }

    pub(crate) fn start(testbed: &'a Testbed, program: &Path, first: &[&str]) -> Self {
        let started = SystemTime::now();
        let child = testbed
            .namespace
            .command(program.to_str().unwrap())
            .args(first)
            .arg(format!("--master=http://127.0.0.1:{}", testbed.port))
            .arg(format!("--hostname-override={NODE}"))
            .arg(format!("--cluster-cidr={CLUSTER_CIDR}"))
            .args(["--proxy-mode=nftables", "--iptables-min-sync-period=0s"])
            .arg("--conntrack-max-per-core=0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            testbed,
            started,
        }
    }

    /// Waits for the first sync of IPv4, which `kube-proxy` and `weft` report alike.
    pub(crate) fn first_sync(&mut self) -> FirstSync {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let page = self.metrics().unwrap_or_default();
            let time = |name: &str| {
                let name = format!("kubeproxy_sync_proxy_rules_{name}_timestamp_seconds");
                value(&page, &name, "IPv4").filter(|time| *time > 0.0)
            };
            if let (Some(queued), Some(done)) = (time("last_queued"), time("last"))
                && done >= queued
            {
                return FirstSync { queued, done };
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the proxy ended: {ended:?}");
            assert!(Instant::now() < deadline, "the proxy did not sync");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Unix time of its start in seconds.
    pub(crate) fn started(&self) -> f64 {
        unix(self.started)
    }

    /// A sample of its metrics; zero if it is not there.
    pub(crate) fn metric(&self, name: &str, label: &str) -> f64 {
        value(&self.metrics().unwrap_or_default(), name, label).unwrap_or(0.0)
    }

    fn metrics(&self) -> Option<String> {
        self.testbed.namespace.run(|| {
            let mut socket = TcpStream::connect("127.0.0.1:10249").ok()?;
            let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            socket.write_all(request.as_bytes()).ok()?;
            let mut text = String::new();
            socket.read_to_string(&mut text).ok()?;
            Some(text)
        })
    }

    /// Of the proxy and of its children that have ended.
    pub(crate) fn processor_time(&self) -> Duration {
        let usage = Usage::of(self.child.id()).unwrap();
        usage.own + usage.ended_children
    }

    pub(crate) fn anonymous_megabytes(&self) -> f64 {
        anonymous_megabytes(self.child.id()).unwrap()
    }

    pub(crate) fn wait_until_quiet(&self) {
        let (mut last, mut since) = (self.processor_time(), Instant::now());
        while since.elapsed() < QUIET {
            thread::sleep(QUIET / 10);
            let now = self.processor_time();
            // Timers of both proxies use a little all the time.
            if now.saturating_sub(last) > Duration::from_millis(2) {
                since = Instant::now();
            }
            last = now;
        }
    }

    /// Ends it with SIGTERM.
    pub(crate) fn stop(mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Proxy<'_> {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn unix(time: SystemTime) -> f64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs_f64()
}

/// The value of a series. kube-proxy's older metrics have no label for the family.
fn value(page: &str, name: &str, label: &str) -> Option<f64> {
    let mut lines = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let has_labels = rest.starts_with('{');
        (has_labels && rest.contains(label) || rest.starts_with(' ')).then_some(rest)
    });
    lines.next()?.rsplit(' ').next()?.parse().ok()
}
