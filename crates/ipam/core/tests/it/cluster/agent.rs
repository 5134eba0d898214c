//! A node: kubelet's view of its pods, and the daemon with its store.

mod checks;
mod store;

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use weft_ipam::{
    Monitor, MonitorSettings, NodeConfig, Outlook, PodSketch, SpecWrite, Uid,
    pool::{
        AddRequest, Event, Identity, Journal, Key, PodIdentity, Pool, Record, Refusal, Reply,
        Settings, Step, Ticket,
    },
};
use weft_model::{IpFamily, Moment, SharedStr};

/// What kubelet thinks of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Life {
    /// Not bound to this node.
    Absent,
    /// A sandbox is being made: its ADD is under way.
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
    pub(crate) life: Life,
    /// How many sandboxes it had.
    pub(crate) sandbox: u64,
    /// When the DEL of the last one was sent first.
    left: Moment,
    /// Whether its status shows its addresses, which it does some time after it has them.
    told: bool,
    /// Whether the daemon lost what it knew of its sandbox.
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
    /// Processes so far.
    pub(crate) process: u64,
    pub(crate) boot: u64,
    /// What survives a crash. Where every step is made durable at once it is not kept, since the
    /// pool itself says it.
    log: Option<Vec<Record>>,
    /// What does not, yet.
    open: Vec<(Step, Option<SpecWrite>)>,
    /// Whether nothing can be written to the store.
    pub(crate) broken: bool,
    /// Whether a store was ever lost.
    pub(crate) lost: bool,
    /// Sandboxes whose DEL was answered, and until when an ADD of them is late.
    pub(crate) deleted: BTreeMap<Key, Moment>,
    /// What was found wrong while something else went on.
    pub(crate) flaw: Option<Complaint>,
    settings: Settings,
    monitoring: MonitorSettings,
}

/// What kubelet finds wrong.
pub(crate) type Complaint = String;

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
            life: Life::Absent,
            sandbox: 0,
            left: Moment::START,
            told: false,
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
        let bound = |pod: &&Pod| !matches!(pod.life, Life::Absent | Life::Gone);
        u32::try_from(self.pods.iter().filter(bound).count()).unwrap()
    }

    /// Whether something was decided that is not durable yet.
    pub(crate) fn has_open_steps(&self) -> bool {
        !self.open.is_empty()
    }

    /// Hands an event to the daemon, which then looks at its pool's size, too.
    pub(crate) fn handle(&mut self, event: Event, exhausted: bool, now: Moment) {
        let step = self.pool.handle(event, now);
        self.take(step, None);
        self.look(exhausted, now);
    }

    /// What is decided is kept until it is durable.
    fn take(&mut self, step: Step, write: Option<SpecWrite>) {
        self.check_origin(&step);
        if step != Step::default() || write.is_some() {
            self.open.push((step, write));
        }
    }

    pub(crate) fn look(&mut self, exhausted: bool, now: Moment) {
        let Some(config) = self.seen.clone() else {
            return;
        };
        let outlook = Outlook {
            config: &config,
            pods: Some(self.demand()),
            synced: true,
            exhausted,
        };
        let offered = IpFamily::ALL.map(|family| self.pool.census(family).releasing);
        let verdict = self.monitor.look(&mut self.pool, outlook, now);
        for (family, before) in IpFamily::ALL.into_iter().zip(offered) {
            if self.pool.census(family).releasing > before {
                self.check_buffer(family, &config, exhausted);
            }
        }
        self.take(verdict.step, verdict.write);
    }

    /// The config as it is now; `None` if there is none any more.
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

    /// The daemon hears of the Node that has its name now.
    pub(crate) fn learn(&mut self, uid: Uid, exhausted: bool, now: Moment) {
        self.settings.node = uid.clone();
        self.pool.set_node(uid);
        self.observe(exhausted, now);
    }

    /// Whether the daemon knows which Node it serves.
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
        self.look(exhausted, now);
    }

    /// Kubelet makes a sandbox.
    pub(crate) fn ask(&mut self, pod: usize, exhausted: bool, now: Moment) {
        let state = &mut self.pods[pod];
        state.sandbox += 1;
        (state.life, state.told, state.unknown) = (Life::Asking, false, false);
        self.ask_again(pod, exhausted, now);
    }

    /// Kubelet asks again, as after an answer that was lost on its way; or the ADD of a sandbox that
    /// is gone comes late.
    pub(crate) fn ask_again(&mut self, pod: usize, exhausted: bool, now: Moment) {
        let request = AddRequest {
            ticket: Ticket(2 * ticket(pod, self.pods[pod].sandbox)),
            key: self.key(pod),
            pod: self.identity_of(pod),
            desired: Vec::new(),
            deadline: now + Duration::from_secs(25),
        };
        self.handle(Event::Add(request), exhausted, now);
    }

    /// Kubelet removes the sandbox.
    pub(crate) fn leave(&mut self, pod: usize, exhausted: bool, now: Moment) {
        if self.pods[pod].life != Life::Leaving {
            self.pods[pod].left = now;
        }
        self.pods[pod].life = Life::Leaving;
        let ticket = Ticket(2 * ticket(pod, self.pods[pod].sandbox) + 1);
        self.handle(Event::Delete(ticket, self.key(pod)), exhausted, now);
    }

    /// The pod and its sandbox are gone, and no DEL was ever sent.
    pub(crate) fn vanish(&mut self, pod: usize) {
        self.pods[pod].life = Life::Gone;
    }

    /// A minute or less has passed: kubelet has told of all addresses, and the daemon looks at pods.
    pub(crate) fn pass(&mut self, exhausted: bool, now: Moment) {
        self.handle(Event::Tick, exhausted, now);
        for pod in &mut self.pods {
            pod.told = true;
        }
        self.sweep(exhausted, now);
        self.deleted.retain(|_, until| *until > now);
    }

    pub(crate) fn sweep(&mut self, exhausted: bool, now: Moment) {
        let sketch = |pod: usize| PodSketch {
            identity: self.identity_of(pod),
            addresses: match &self.pods[pod].life {
                Life::Running(addresses) if self.pods[pod].told => addresses.clone(),
                _ => Vec::new(),
            },
            ..PodSketch::default()
        };
        let live = (0..self.pods.len())
            .filter(|pod| !matches!(self.pods[*pod].life, Life::Absent | Life::Gone));
        let pods = live.map(sketch).collect();
        self.handle(Event::Sweep(pods), exhausted, now);
    }

    fn reply(&mut self, ticket: Ticket, reply: Reply) -> Result<(), Complaint> {
        let (pod, sandbox, delete) = pod_of(ticket);
        let key = self.key(pod);
        let now = self.pods[pod].clone();
        if now.sandbox != sandbox {
            return Ok(());
        }
        match (now.life, reply, delete) {
            (Life::Leaving, Reply::Released, true) => {
                self.pods[pod].life = Life::Gone;
                let late = self.pods[pod].left + self.settings.tombstone;
                self.deleted.insert(key.clone(), late);
                if self.pool.attachments().contains_key(&key) {
                    return Err(format!("I7: {key} was deleted and is there"));
                }
            }
            (Life::Asking, Reply::Assigned(leases), false) => {
                let addresses = leases.iter().map(|lease| lease.address).collect();
                self.pods[pod].life = Life::Running(addresses);
            }
            (Life::Running(held), Reply::Assigned(leases), false) => {
                let addresses: Vec<IpAddr> = leases.iter().map(|lease| lease.address).collect();
                if addresses != held {
                    return Err(format!("I6: {key} had {held:?} and gets {addresses:?}"));
                }
            }
            (Life::Asking, Reply::Refused(refusal), false) => {
                let held = self.pool.attachments().contains_key(&key);
                if held && refusal != Refusal::FormerNode {
                    return Err(format!("I24: {key} was refused and holds something"));
                }
                // The sandbox is torn down; the next attempt is another one.
                self.pods[pod].life = Life::Absent;
            }
            _ => {}
        }
        Ok(())
    }

    /// Starts anew for a new Node of the same name.
    pub(crate) fn rejoin(&mut self, uid: Uid, now: Moment) -> Result<(), Complaint> {
        self.settings.node = uid;
        self.crash(now)
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = (usize, &Vec<IpAddr>)> {
        self.pods
            .iter()
            .enumerate()
            .filter_map(|(pod, state)| match &state.life {
                Life::Running(addresses) => Some((pod, addresses)),
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

fn ticket(pod: usize, sandbox: u64) -> u64 {
    sandbox * 1000 + pod as u64
}

fn pod_of(ticket: Ticket) -> (usize, u64, bool) {
    let (number, delete) = (ticket.0 / 2, ticket.0 % 2 == 1);
    (
        usize::try_from(number % 1000).unwrap(),
        number / 1000,
        delete,
    )
}
