//! A node: kubelet's view of its pods, and the daemon with its store.

mod checks;
mod store;

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use weft_ipam::{
    Monitor, MonitorInput, MonitorSettings, NodeConfig, PodSummary, SpecWrite, Uid,
    pool::{
        AddRequest, Event, Identity, Journal, Key, PodIdentity, Pool, Record, Refusal, Reply,
        RequestId, Settings, Step,
    },
};
use weft_model::{IpFamily, Moment, SharedStr};

/// State of a pod as kubelet sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PodPhase {
    /// Not bound to this node.
    Absent,
    /// Its sandbox is being created: its ADD is under way.
    Asking,
    /// It runs and has these addresses.
    Running(Vec<IpAddr>),
    /// Its sandbox is being removed: its DEL is under way.
    Leaving,
    /// It is gone, whether the daemon knows or not.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pod {
    pub(crate) phase: PodPhase,
    /// Number of sandboxes it had.
    pub(crate) sandbox: u64,
    /// Time at which the DEL of the last one was first sent.
    left: Moment,
    /// True if its status reports its addresses, which it does with a delay.
    reported: bool,
    /// True if the daemon lost its record of the sandbox.
    pub(crate) unknown: bool,
}

/// A node with its daemon.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) node: String,
    pub(crate) pool: Pool,
    pub(crate) monitor: Monitor,
    pub(crate) seen: Option<NodeConfig>,
    pub(crate) pods: Vec<Pod>,
    /// Number of processes so far.
    pub(crate) process: u64,
    pub(crate) boot: u64,
    /// Records that survive a crash. Not kept if every step is durable at once, because the pool
    /// itself has the same content.
    log: Option<Vec<Record>>,
    /// Steps that are not durable yet.
    open: Vec<(Step, Option<SpecWrite>)>,
    /// True if the store cannot be written.
    pub(crate) broken: bool,
    /// True if a store was ever lost.
    pub(crate) lost: bool,
    /// Sandboxes whose DEL was answered, with the time until which an ADD is late.
    pub(crate) deleted: BTreeMap<Key, Moment>,
    /// A violation found while another action was carried out.
    pub(crate) flaw: Option<Violation>,
    settings: Settings,
    monitoring: MonitorSettings,
}

/// A violated rule.
pub(crate) type Violation = String;

impl Agent {
    pub(crate) fn new(
        node: &str,
        uid: Uid,
        pods: usize,
        cooldown: Duration,
        monitoring: MonitorSettings,
        logs: bool,
    ) -> Self {
        let settings = Settings {
            cooldown,
            ..Settings::new(uid)
        };
        let first = vec![Record::Identity(identity(0))];
        let journal = Journal::Kept(first.clone());
        let pool = Pool::restore(settings.clone(), identity(0), journal, Moment::START).pool;
        let absent = Pod {
            phase: PodPhase::Absent,
            sandbox: 0,
            left: Moment::START,
            reported: false,
            unknown: false,
        };
        Self {
            node: node.to_owned(),
            pool,
            monitor: Monitor::new(monitoring),
            seen: None,
            pods: vec![absent; pods],
            process: 0,
            boot: 0,
            log: logs.then_some(first),
            open: Vec::new(),
            broken: false,
            lost: false,
            deleted: BTreeMap::new(),
            flaw: None,
            settings,
            monitoring,
        }
    }

    pub(crate) fn key(&self, pod: usize) -> Key {
        let container = format!(
            "{}-{}-{}-{pod}",
            self.node, self.boot, self.pods[pod].sandbox
        );
        Key::new("podnet", &container, "eth0")
    }

    fn identity_of(&self, pod: usize) -> PodIdentity {
        PodIdentity {
            namespace: SharedStr::new("default"),
            name: SharedStr::new(&format!("p{pod}")),
            uid: Some(Uid::from(format!("{}-{pod}", self.node))),
        }
    }

    fn demand(&self) -> u32 {
        let bound = |pod: &&Pod| !matches!(pod.phase, PodPhase::Absent | PodPhase::Gone);
        u32::try_from(self.pods.iter().filter(bound).count()).unwrap()
    }

    /// True if a decision is not durable yet.
    pub(crate) fn has_open_steps(&self) -> bool {
        !self.open.is_empty()
    }

    /// Passes an event to the daemon, which then evaluates its pool's size, too.
    pub(crate) fn handle(&mut self, event: Event, exhausted: bool, now: Moment) {
        let step = self.pool.handle(event, now);
        self.take(step, None);
        self.evaluate(exhausted, now);
    }

    /// Keeps a decision until it is durable.
    fn take(&mut self, step: Step, write: Option<SpecWrite>) {
        self.check_origin(&step);
        if step != Step::default() || write.is_some() {
            self.open.push((step, write));
        }
    }

    pub(crate) fn evaluate(&mut self, exhausted: bool, now: Moment) {
        let Some(config) = self.seen.clone() else {
            return;
        };
        let input = MonitorInput {
            config: &config,
            pods: Some(self.demand()),
            synced: true,
            exhausted,
        };
        let offered = IpFamily::ALL.map(|family| self.pool.address_counts(family).releasing);
        let decision = self.monitor.evaluate(&mut self.pool, input, now);
        for (family, before) in IpFamily::ALL.into_iter().zip(offered) {
            if self.pool.address_counts(family).releasing > before {
                self.check_buffer(family, &config, exhausted);
            }
        }
        self.take(decision.step, decision.write);
    }

    /// The current config; `None` if it no longer exists.
    pub(crate) fn see(&mut self, config: Option<&NodeConfig>, exhausted: bool, now: Moment) {
        match (config, &mut self.seen) {
            (Some(config), seen) => *seen = Some(config.clone()),
            (None, Some(seen)) => seen.deleting = true,
            (None, None) => return,
        }
        self.observe(exhausted, now);
    }

    fn observe(&mut self, exhausted: bool, now: Moment) {
        if let Some(config) = self.seen.clone() {
            self.handle(Event::Observed(Box::new(config)), exhausted, now);
        }
        if self.pool.awaits_pods() {
            self.sweep(exhausted, now);
        }
    }

    /// The daemon learns which Node has its name now.
    pub(crate) fn learn(&mut self, uid: Uid, exhausted: bool, now: Moment) {
        self.settings.node = uid.clone();
        self.pool.set_node(uid);
        self.observe(exhausted, now);
    }

    /// True if the daemon knows which Node it serves.
    pub(crate) fn serves(&self, uid: &Uid) -> bool {
        self.settings.node == *uid
    }

    pub(crate) fn answer(
        &mut self,
        attempt: u64,
        accepted: Option<NodeConfig>,
        exhausted: bool,
        now: Moment,
    ) {
        let older = |seen: &NodeConfig, config: &NodeConfig| {
            seen.uid != config.uid || seen.deleting || config.version.is_older_than(&seen.version)
        };
        if let Some(config) = &accepted
            && !self.seen.as_ref().is_some_and(|seen| older(seen, config))
        {
            self.seen = Some(config.clone());
        }
        let step = self
            .monitor
            .answered(attempt, accepted, &mut self.pool, now);
        self.take(step, None);
        self.evaluate(exhausted, now);
    }

    /// Kubelet creates a sandbox.
    pub(crate) fn ask(&mut self, pod: usize, exhausted: bool, now: Moment) {
        let state = &mut self.pods[pod];
        state.sandbox += 1;
        (state.phase, state.reported, state.unknown) = (PodPhase::Asking, false, false);
        self.ask_again(pod, exhausted, now);
    }

    /// Kubelet repeats an ADD whose response was lost, or the ADD of a removed sandbox arrives
    /// late.
    pub(crate) fn ask_again(&mut self, pod: usize, exhausted: bool, now: Moment) {
        let request = AddRequest {
            id: RequestId(2 * id(pod, self.pods[pod].sandbox)),
            key: self.key(pod),
            pod: self.identity_of(pod),
            desired: Vec::new(),
            deadline: now + Duration::from_secs(25),
        };
        self.handle(Event::Add(request), exhausted, now);
    }

    /// Kubelet removes the sandbox.
    pub(crate) fn leave(&mut self, pod: usize, exhausted: bool, now: Moment) {
        if self.pods[pod].phase != PodPhase::Leaving {
            self.pods[pod].left = now;
        }
        self.pods[pod].phase = PodPhase::Leaving;
        let id = RequestId(2 * id(pod, self.pods[pod].sandbox) + 1);
        self.handle(Event::Delete(id, self.key(pod)), exhausted, now);
    }

    /// The pod and its sandbox are gone, and no DEL was ever sent.
    pub(crate) fn vanish(&mut self, pod: usize) {
        self.pods[pod].phase = PodPhase::Gone;
    }

    /// A minute or less has passed: kubelet has reported all addresses, and the daemon sweeps.
    pub(crate) fn pass(&mut self, exhausted: bool, now: Moment) {
        self.handle(Event::Tick, exhausted, now);
        for pod in &mut self.pods {
            pod.reported = true;
        }
        self.sweep(exhausted, now);
        self.deleted.retain(|_, until| *until > now);
    }

    pub(crate) fn sweep(&mut self, exhausted: bool, now: Moment) {
        let summary = |pod: usize| PodSummary {
            identity: self.identity_of(pod),
            addresses: match &self.pods[pod].phase {
                PodPhase::Running(addresses) if self.pods[pod].reported => addresses.clone(),
                _ => Vec::new(),
            },
            ..PodSummary::default()
        };
        let live = (0..self.pods.len())
            .filter(|pod| !matches!(self.pods[*pod].phase, PodPhase::Absent | PodPhase::Gone));
        let pods = live.map(summary).collect();
        self.handle(Event::Sweep(pods), exhausted, now);
    }

    fn reply(&mut self, id: RequestId, reply: Reply) -> Result<(), Violation> {
        let (pod, sandbox, delete) = pod_of(id);
        let key = self.key(pod);
        let now = self.pods[pod].clone();
        if now.sandbox != sandbox {
            return Ok(());
        }
        match (now.phase, reply, delete) {
            (PodPhase::Leaving, Reply::Released, true) => {
                self.pods[pod].phase = PodPhase::Gone;
                let late = self.pods[pod].left + self.settings.tombstone;
                self.deleted.insert(key.clone(), late);
                if self.pool.attachments().contains_key(&key) {
                    return Err(format!("I7: {key} was deleted and is there"));
                }
            }
            (PodPhase::Asking, Reply::Assigned(leases), false) => {
                let addresses = leases.iter().map(|lease| lease.address).collect();
                self.pods[pod].phase = PodPhase::Running(addresses);
            }
            (PodPhase::Running(held), Reply::Assigned(leases), false) => {
                let addresses: Vec<IpAddr> = leases.iter().map(|lease| lease.address).collect();
                if addresses != held {
                    return Err(format!("I6: {key} had {held:?} and gets {addresses:?}"));
                }
            }
            (PodPhase::Asking, Reply::Refused(refusal), false) => {
                let held = self.pool.attachments().contains_key(&key);
                if held && refusal != Refusal::FormerNode {
                    return Err(format!("I24: {key} was refused and holds something"));
                }
                // The sandbox is torn down; the next attempt has another one.
                self.pods[pod].phase = PodPhase::Absent;
            }
            _ => {}
        }
        Ok(())
    }

    /// Starts again for a new Node of the same name.
    pub(crate) fn rejoin(&mut self, uid: Uid, now: Moment) -> Result<(), Violation> {
        self.settings.node = uid;
        self.crash(now)
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = (usize, &Vec<IpAddr>)> {
        self.pods
            .iter()
            .enumerate()
            .filter_map(|(pod, state)| match &state.phase {
                PodPhase::Running(addresses) => Some((pod, addresses)),
                _ => None,
            })
    }
}

fn identity(boot: u64) -> Identity {
    Identity {
        machine: SharedStr::new("machine"),
        boot: SharedStr::new(&boot.to_string()),
    }
}

fn id(pod: usize, sandbox: u64) -> u64 {
    sandbox * 1000 + pod as u64
}

fn pod_of(id: RequestId) -> (usize, u64, bool) {
    let (number, delete) = (id.0 / 2, id.0 % 2 == 1);
    (
        usize::try_from(number % 1000).unwrap(),
        number / 1000,
        delete,
    )
}
