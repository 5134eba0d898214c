//! One trial: the sequence of measurements of one arm at one size.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use tokio::runtime::Runtime;
use weft_testkit::lab::Namespace;

use crate::proxy::{
    arm::{Arm, Proxies},
    bare_watcher::BareWatcher,
    cluster::Cluster,
    figures::{Change, Figures, FirstSync, Kind},
    lower_bound,
    objects::{NODE, Service, Side},
    ping::Ping,
    probe::{self, Answer},
    process::Proxy,
    testbed::{self, CLUSTER_CIDR, Programs},
};

/// Services that have to answer before a first sync counts as complete.
pub(crate) const SAMPLE: u32 = 20;

/// Time after which a change counts as lost and the comparison fails.
const CHANGE_LIMIT: Duration = Duration::from_secs(120);

/// First number of the Services that are added, beyond those that are there from the start.
pub(crate) const ADDED: u32 = 61_000;

/// A proxy whose first sync takes longer than this is not started again: it would take as long once
/// more.
pub(crate) const RESTART_LIMIT: Duration = Duration::from_secs(60);

/// Rounds of changes that are made even if the time budget is used up.
const ROUNDS: u32 = 3;

/// Programs, cluster and options that all trials share.
pub(crate) struct Setting {
    pub(crate) runtime: Runtime,
    pub(crate) cluster: Cluster,
    pub(crate) watcher: BareWatcher,
    pub(crate) programs: Programs,
    pub(crate) proxies: Proxies,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) effort: Effort,
}

/// Amount of measurements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Changes of each kind in one pass.
    pub(crate) changes: u32,
    /// Time in a pass after which no further round of a kind is started.
    pub(crate) budget: Duration,
    /// Time limit of a full sync.
    pub(crate) patience: Duration,
    /// Number of timed connections.
    pub(crate) connections: u32,
}

/// One arm at one size, with a namespace that outlives the proxy's restarts.
pub(crate) struct Trial {
    pub(crate) arm: Arm,
    size: u32,
    namespace: Arc<Namespace>,
    pub(crate) figures: Figures,
    added: u32,
}

impl Trial {
    pub(crate) fn new(arm: Arm, size: u32, setting: &Setting) -> anyhow::Result<Self> {
        let namespace = testbed::create(&format!("{}-{size}", arm.label()))?;
        let runtime = setting.runtime.handle();
        super::relay::start(runtime, &namespace, setting.cluster.port)?;
        Ok(Self {
            arm,
            size,
            namespace,
            figures: Figures::default(),
            added: 0,
        })
    }

    /// First start with an empty kernel, changes, connections and the lower bound.
    pub(crate) fn first_pass(&mut self, setting: &Setting) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut proxy = self.start(self.arm, setting)?;
        let given_up = !self.serves_everywhere(&mut proxy, setting)?;
        let took = began.elapsed();
        if !given_up {
            proxy.wait_until_quiet(setting.effort.patience)?;
        }
        let first = FirstSync {
            took,
            processor_time: proxy.processor_time()?,
            given_up,
        };
        self.figures.first_sync = Some(first);
        let prefix = if given_up { "more than " } else { "" };
        self.log(&format!("first sync {prefix}{:.2} s", took.as_secs_f64()));
        if given_up {
            return Ok(());
        }
        let passes = if first.is_slow() { 2 } else { 1 };
        self.changes(passes, &mut proxy, setting)?;
        self.connect(setting)?;
        self.end(proxy)?;
        self.measure_lower_bound(setting);
        Ok(())
    }

    /// Measures with the rules that the proxy has left, after it has ended.
    fn measure_lower_bound(&mut self, setting: &Setting) {
        if !self.arm.calls_iptables() {
            return;
        }
        let restore = setting.programs.restore(self.arm.variant());
        match self.namespace.run(|| lower_bound::measure(&restore)) {
            Ok(lower_bound) => {
                let took = lower_bound.took;
                self.log(&format!("the smallest change takes {took:.1} ms"));
                self.figures.lower_bound = Some(lower_bound);
            }
            // The other figures are valid without it.
            Err(error) => self.log(&format!("cannot measure the smallest change: {error:#}")),
        }
    }

    /// Waits until Services from the whole list answer; false if that takes too long.
    fn serves_everywhere(&self, proxy: &mut Proxy, setting: &Setting) -> anyhow::Result<bool> {
        let began = Instant::now();
        for part in 0..SAMPLE {
            let service = Service((self.size - 1) * part / (SAMPLE - 1));
            let patience = setting.effort.patience.saturating_sub(began.elapsed());
            let serves = Answer::From(Side::A);
            if self.wait(service, serves, patience, proxy)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Restart over the rules that the first pass left, and changes.
    pub(crate) fn second_pass(&mut self, setting: &Setting) -> anyhow::Result<()> {
        if self.figures.first_sync.is_none_or(FirstSync::is_slow) {
            return Ok(());
        }
        let Some(mut proxy) = self.restart(setting)? else {
            return Ok(());
        };
        self.changes(1, &mut proxy, setting)?;
        self.end(proxy)
    }

    /// Starts the proxy again during a thousand new connections per second. A slice is changed before:
    /// once connections follow that change, the full sync has happened.
    fn restart(&mut self, setting: &Setting) -> anyhow::Result<Option<Proxy>> {
        let (changed, pinged) = (Service(self.size / 2), Service(self.size - 1));
        setting.change(changed, Side::B)?;
        let ping = Ping::start(&self.namespace, pinged.address());
        let began = Instant::now();
        let mut proxy = self.start(self.arm, setting)?;
        let patience = setting.effort.patience;
        let seen = self.wait(changed, Answer::From(Side::B), patience, &mut proxy)?;
        if seen.is_some() {
            proxy.wait_until_quiet(patience)?;
        }
        let gaps = ping.finish()?;
        setting.change(changed, Side::A)?;
        let Some(seen) = seen else {
            self.log(&format!("not in sync {patience:?} after a restart"));
            return Ok(None);
        };
        let restart = seen.saturating_duration_since(began);
        self.log(&format!(
            "in sync {:.2} s after a restart; {} new connections, {} lost, longest gap {:.1} ms",
            restart.as_secs_f64(),
            gaps.answered,
            gaps.lost,
            gaps.longest.as_secs_f64() * 1000.0
        ));
        self.figures.restart = Some(restart);
        self.figures.gap = Some(gaps.longest);
        self.expect(changed, Answer::From(Side::A), &mut proxy)?;
        proxy.wait_until_quiet(patience)?;
        Ok(Some(proxy))
    }

    /// Measures changes of all kinds, as many as `passes` passes have.
    fn changes(&mut self, passes: u32, proxy: &mut Proxy, setting: &Setting) -> anyhow::Result<()> {
        let changes = passes * setting.effort.changes;
        let budget = passes * setting.effort.budget;
        let began = Instant::now();
        for round in 0..changes.div_ceil(2) {
            // Another Service each time, spread over the list.
            let service = Service(self.size / changes * round + self.size / 4);
            for side in [Side::B, Side::A] {
                let write = || setting.change(service, side);
                let answer = Answer::From(side);
                self.measure(Kind::Changed, service, answer, proxy, setting, write)?;
            }
            if began.elapsed() > budget && round + 1 >= ROUNDS {
                break;
            }
        }
        let began = Instant::now();
        for round in 0..changes {
            let service = Service(ADDED + self.added);
            self.added += 1;
            let add = || setting.runtime.block_on(setting.cluster.add(service));
            let answer = Answer::From(Side::A);
            self.measure(Kind::Added, service, answer, proxy, setting, add)?;
            let remove = || setting.runtime.block_on(setting.cluster.remove(service));
            self.measure(Kind::Removed, service, Answer::None, proxy, setting, remove)?;
            let remove = setting.cluster.remove_slice(service);
            setting.runtime.block_on(remove)?;
            proxy.wait_until_quiet(CHANGE_LIMIT)?;
            if began.elapsed() > budget && round + 1 >= ROUNDS {
                break;
            }
        }
        Ok(())
    }

    /// Measures the time from a write until connections follow it, and the processor time until the
    /// proxy is idle. Connections start before the write, because a proxy may receive the change
    /// before the writer has its response.
    fn measure(
        &mut self,
        kind: Kind,
        service: Service,
        expected: Answer,
        proxy: &mut Proxy,
        setting: &Setting,
        write: impl FnOnce() -> anyhow::Result<Instant>,
    ) -> anyhow::Result<()> {
        let before = proxy.processor_time()?;
        let (sent, seen) = thread::scope(|scope| {
            let seen = scope.spawn(|| self.expect(service, expected, proxy));
            (write(), seen.join())
        });
        let seen = seen.map_err(|_| anyhow!("the probe thread panicked"))?;
        let seen = seen.with_context(|| format!("{}: {}", self.arm.name(), kind.name()))?;
        proxy.wait_until_quiet(CHANGE_LIMIT)?;
        let sent = sent?;
        let watched = match kind {
            Kind::Changed => setting.watcher.latency(&service.slice_name(), sent),
            Kind::Added | Kind::Removed => None,
        };
        self.figures.changes.push(Change {
            kind,
            latency: seen.saturating_duration_since(sent),
            watched,
            processor_time: proxy.processor_time()?.saturating_sub(before),
        });
        Ok(())
    }

    /// Times new connections to random Services, one after the other.
    fn connect(&mut self, setting: &Setting) -> anyhow::Result<()> {
        let mut random = fastrand::Rng::with_seed(u64::from(self.size));
        let services: Vec<Service> = (0..setting.effort.connections)
            .map(|_| Service(random.u32(0..self.size)))
            .collect();
        let times = self.namespace.run(|| {
            let times = services.iter().map(|s| probe::connection_time(s.address()));
            times.collect::<Option<Vec<Duration>>>()
        });
        self.figures.connections = times
            .with_context(|| format!("{}: a synced Service did not answer", self.arm.name()))?;
        Ok(())
    }

    fn end(&mut self, proxy: Proxy) -> anyhow::Result<()> {
        self.figures.memory.push(proxy.anonymous_megabytes()?);
        let count = self.figures.changes.len();
        let memory = self.figures.memory.last().copied().unwrap_or_default();
        self.log(&format!("{count} changes, RssAnon {memory:.1} MB"));
        proxy.stop()
    }

    fn start(&self, arm: Arm, setting: &Setting) -> anyhow::Result<Proxy> {
        let mut path = OsString::from("PATH=");
        path.push(setting.programs.path(arm.variant())?);
        let mut command = self.namespace.command("env");
        command
            .arg(path)
            .args(arm.command_line(&setting.proxies))
            .arg(flag("kubeconfig", &setting.kubeconfig))
            .arg(format!("--hostname-override={NODE}"))
            .arg(format!("--cluster-cidr={CLUSTER_CIDR}"))
            // kube-proxy accepts these flags in nftables mode too.
            .args([
                "--iptables-min-sync-period=0s",
                "--conntrack-max-per-core=0",
            ]);
        Proxy::start(&mut command, setting.programs.log(arm.label()))
    }

    /// Waits for an answer of a Service; None if it takes longer than `limit`.
    fn wait(
        &self,
        service: Service,
        expected: Answer,
        limit: Duration,
        proxy: &mut Proxy,
    ) -> anyhow::Result<Option<Instant>> {
        let began = Instant::now();
        while began.elapsed() < limit {
            let chunk = Duration::from_secs(2).min(limit.saturating_sub(began.elapsed()));
            let until = Instant::now() + chunk;
            let wait = || probe::wait_for(service.address(), expected, began, until);
            if let Some(seen) = self.namespace.run(wait) {
                return Ok(Some(seen));
            }
            proxy.check()?;
        }
        Ok(None)
    }

    fn expect(
        &self,
        service: Service,
        expected: Answer,
        proxy: &mut Proxy,
    ) -> anyhow::Result<Instant> {
        match self.wait(service, expected, CHANGE_LIMIT, proxy)? {
            Some(seen) => Ok(seen),
            None => bail!(
                "no {expected:?} after {CHANGE_LIMIT:?}; end of the proxy's log:\n{}",
                proxy.log_tail()
            ),
        }
    }

    fn log(&self, message: &str) {
        eprintln!(
            "[proxy] {} Services, {}: {message}",
            self.size,
            self.arm.name()
        );
    }
}

impl Setting {
    fn change(&self, service: Service, side: Side) -> anyhow::Result<Instant> {
        self.runtime.block_on(self.cluster.change(service, side))
    }
}

fn flag(name: &str, value: &Path) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value);
    flag
}
