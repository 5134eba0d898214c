//! Simulation of a burst of pods on a node, with the pool sized by pods or by requests.
//!
//! The model of kubelet: sandboxes start one after the other, `start_interval` apart. An ADD that
//! fails tears the sandbox down, and the pod is retried after ten to fifteen seconds (kubelet's
//! `backOffPeriod` of 10 s with jitter up to half of it) with a new container id. The allocator
//! answers a request after `allocator_latency`, in blocks of 16. Sized by pods, an ADD waits; sized
//! by requests, it fails at once, as it does upstream, and the pool is evaluated each second and
//! whenever addresses arrive.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    fmt,
    time::Duration,
};

use weft_model::{Moment, Random, SharedStr};

use crate::{
    Debounce, Entry, Monitor, MonitorInput, MonitorSettings, NetworkContainer, NodeConfig,
    NodeSpec, NodeStatus, ScalingMode, Uid,
    pool::{
        AddRequest, Event, Identity, Journal, Key, PodIdentity, Pool, Record, Reply, RequestId,
        Settings, Step,
    },
    scaling::ScalerParameters,
};

/// Parameters of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Number of pods at the start.
    pub before: u32,
    /// Number of pods at the end.
    pub after: u32,
    /// Time over which the new pods are bound; zero for all at once.
    pub spread: Duration,
    /// Time from a request to its addresses.
    pub allocator_latency: Duration,
    /// Time between the starts of two sandboxes.
    pub start_interval: Duration,
    /// Seed for the jitter of retries.
    pub seed: u64,
}

impl Burst {
    /// All pods at once, an allocator latency of one second, fifty sandboxes a second.
    pub fn new(before: u32, after: u32) -> Self {
        Self {
            before,
            after,
            spread: Duration::ZERO,
            allocator_latency: Duration::from_secs(1),
            start_interval: Duration::from_millis(20),
            seed: 1,
        }
    }
}

/// Result of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BurstReport {
    /// Number of writes of the NodeNetworkConfig's spec.
    pub updates: u32,
    /// Number of ADDs that failed.
    pub failed_adds: u32,
    /// Time until every pod had its address; `None` if one never got it.
    pub served: Option<Duration>,
}

impl fmt::Display for BurstReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let served = self.served.map_or(f64::NAN, |served| served.as_secs_f64());
        let Self {
            updates,
            failed_adds,
            ..
        } = self;
        write!(
            f,
            "{updates} updates, {failed_adds} failed ADDs, all served after {served:.2} s"
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimEvent {
    Bound,
    Start(u32),
    Granted(u32),
    Look,
}

/// Runs a simulation.
pub fn simulate(burst: Burst, mode: ScalingMode) -> BurstReport {
    let mut run = Run::new(burst, mode);
    while let Some(Reverse((now, _, event))) = run.queue.pop() {
        run.handle(event, now);
        if run.served == burst.after || now > Moment::seconds(3600) {
            break;
        }
    }
    run.report
}

struct Run {
    burst: Burst,
    mode: ScalingMode,
    pool: Pool,
    monitor: Monitor,
    gathering: Debounce,
    config: NodeConfig,
    queue: BinaryHeap<Reverse<(Moment, u64, SimEvent)>>,
    order: u64,
    pods: u32,
    served: u32,
    /// Time at which the next sandbox can start.
    free: Moment,
    tickets: HashMap<RequestId, u32>,
    random: Random,
    report: BurstReport,
}

impl Run {
    fn new(burst: Burst, mode: ScalingMode) -> Self {
        let identity = Identity {
            machine: SharedStr::new("machine"),
            boot: SharedStr::new("boot"),
        };
        let journal = Journal::Kept(vec![Record::Identity(identity.clone())]);
        let settings = Settings::new(Uid::from("node"));
        let mut run = Self {
            burst,
            mode,
            pool: Pool::restore(settings, identity, journal, Moment::START).pool,
            monitor: Monitor::new(MonitorSettings {
                mode,
                ..MonitorSettings::default()
            }),
            gathering: Debounce::default(),
            config: config(),
            queue: BinaryHeap::new(),
            order: 0,
            pods: burst.before,
            served: 0,
            free: Moment::START,
            tickets: HashMap::new(),
            random: Random::new(burst.seed),
            report: BurstReport::default(),
        };
        run.grant(16, Moment::START);
        for pod in 0..burst.before {
            run.start(pod, Moment::START);
        }
        let fresh = burst.after.saturating_sub(burst.before);
        for index in 0..fresh {
            let share = burst
                .spread
                .mul_f64(f64::from(index) / f64::from(fresh.max(1)));
            run.push(Moment::START + share, SimEvent::Bound);
        }
        if mode == ScalingMode::Requests {
            run.push(Moment::seconds(1), SimEvent::Look);
        }
        run
    }

    fn push(&mut self, at: Moment, event: SimEvent) {
        self.order += 1;
        self.queue.push(Reverse((at, self.order, event)));
    }

    fn handle(&mut self, event: SimEvent, now: Moment) {
        match event {
            SimEvent::Bound => {
                let pod = self.pods;
                self.pods += 1;
                self.line_up(pod, now);
                self.gathering.changed(now);
                if let Some(due) = self.gathering.wake() {
                    self.push(due, SimEvent::Look);
                }
            }
            SimEvent::Start(pod) => self.start(pod, now),
            SimEvent::Granted(count) => {
                self.grant(count, now);
                self.evaluate(now);
            }
            SimEvent::Look if self.mode == ScalingMode::Requests => {
                self.evaluate(now);
                self.push(now + Duration::from_secs(1), SimEvent::Look);
            }
            SimEvent::Look => {
                if self.gathering.take(now) {
                    self.evaluate(now);
                }
            }
        }
    }

    /// Schedules the start of the pod's sandbox.
    fn line_up(&mut self, pod: u32, earliest: Moment) {
        let turn = self.free.max(earliest);
        self.free = turn + self.burst.start_interval;
        self.push(turn, SimEvent::Start(pod));
    }

    fn start(&mut self, pod: u32, now: Moment) {
        self.order += 1;
        let id = RequestId(self.order);
        self.tickets.insert(id, pod);
        let patience = match self.mode {
            ScalingMode::Pods => Duration::from_secs(25),
            ScalingMode::Requests => Duration::ZERO,
        };
        let request = AddRequest {
            id,
            key: Key::new("podnet", &format!("sandbox-{}", self.order), "eth0"),
            pod: PodIdentity::default(),
            desired: Vec::new(),
            deadline: now + patience,
        };
        let step = self.pool.handle(Event::Add(request), now);
        self.answer(step, now);
        let step = self.pool.handle(Event::Tick, now);
        self.answer(step, now);
    }

    fn answer(&mut self, step: Step, now: Moment) {
        for (id, reply) in step.replies {
            let Some(pod) = self.tickets.remove(&id) else {
                continue;
            };
            match reply {
                Reply::Assigned(_) => {
                    self.served += 1;
                    if self.served == self.burst.after {
                        self.report.served = Some(now.since_start());
                    }
                }
                Reply::Released | Reply::Refused(_) => {
                    self.report.failed_adds += 1;
                    let least = Duration::from_secs(10);
                    let wait = self.random.between(least, least + least / 2);
                    self.line_up(pod, now + wait);
                }
            }
        }
    }

    fn evaluate(&mut self, now: Moment) {
        let input = MonitorInput {
            config: &self.config,
            pods: Some(self.pods),
            synced: true,
            exhausted: false,
        };
        let decision = self.monitor.evaluate(&mut self.pool, input, now);
        self.answer(decision.step, now);
        let Some(write) = decision.write else {
            return;
        };
        self.report.updates += 1;
        self.config.spec = write.spec;
        self.config.version = (u64::from(self.report.updates) * 1000).into();
        let accepted = Some(self.config.clone());
        let step = self
            .monitor
            .answered(write.attempt, accepted, &mut self.pool, now);
        self.answer(step, now);
        let wanted = u32::try_from(self.config.spec.requested).unwrap_or_default();
        self.push(
            now + self.burst.allocator_latency,
            SimEvent::Granted(wanted),
        );
    }

    /// The allocator's answer: at least `count` addresses, in blocks.
    fn grant(&mut self, count: u32, now: Moment) {
        let entries = &mut self.config.status.containers[0].entries;
        for block in u32::try_from(entries.len()).unwrap_or_default()..count.div_ceil(16) {
            entries.push(Entry {
                name: format!("block-{block}").into(),
                ip: SharedStr::new(&format!("10.1.{}.{}/28", 1 + block / 16, block % 16 * 16)),
            });
        }
        self.order += 1;
        self.config.version = (u64::from(self.report.updates) * 1000 + 1).into();
        let step = self
            .pool
            .handle(Event::Observed(Box::new(self.config.clone())), now);
        self.answer(step, now);
    }
}

fn config() -> NodeConfig {
    NodeConfig {
        name: "node".into(),
        uid: "config".into(),
        owner: Some("node".into()),
        version: 1.into(),
        deleting: false,
        finalized: true,
        spec: NodeSpec {
            requested: 16,
            ..NodeSpec::default()
        },
        status: NodeStatus {
            scaler: Some(ScalerParameters {
                batch_size: Some(16),
                request_threshold_percent: Some(50),
                release_threshold_percent: Some(150),
                max_ip_count: Some(250),
            }),
            containers: vec![NetworkContainer {
                id: "pods".into(),
                version: 1,
                dynamic: true,
                subnet: SharedStr::new("pods"),
                subnets: Vec::new(),
                gateways: Vec::new(),
                entries: Vec::new(),
                result: None,
            }],
            phase: None,
        },
    }
}
