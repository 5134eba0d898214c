//! A proxy without processes: a model, a backend and a simulated kernel.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::{Duration, Instant},
};

use serde_json::Value;
use weft_iptables::{Fingerprint, Iptables, Kernel, KernelError, Options, RawHash, RestoreScope};
use weft_model::{IpFamily, ObjectKey};
use weft_proxy::{
    Backend as _, Desired, LocalDetector, LoopbackNodePorts, Model, NodeFacts, NodePortTail,
    Quarantine, Scope, Settings, SyncError, SyncReport, objects::Object,
};
use weft_ruleset::{ChainName, ComparisonOptions, Ruleset, Table, compare};
use weft_testkit::cluster::{Edit, NODE};

/// A kernel in memory that can be made to fail.
pub(crate) struct Simulated {
    pub(crate) rules: Ruleset,
    /// Writes of others.
    pub(crate) generation: u64,
    pub(crate) failures: usize,
    pub(crate) inputs: Vec<String>,
    /// Number of readings of all text.
    pub(crate) saves: usize,
    /// Chains that were read as text one by one.
    pub(crate) listed: Vec<ChainName>,
    /// Makes the raw hashes of this kernel its own; `None` if it has none.
    pub(crate) salt: Option<u64>,
    /// A foreign write that happens after this many more steps of this kernel.
    pub(crate) intrusion: Option<(usize, String)>,
    /// Rules that contain one of these are refused.
    pub(crate) poison: BTreeSet<String>,
    pub(crate) refusals: Refusals,
}

/// The way in which a kernel reports a refused rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusals {
    /// Its line, and no other: as the programs do for what they cannot parse.
    Line,
    /// All refused lines of its table, as iptables-nft does for what the kernel refuses.
    Lines,
    /// The end of its table, as iptables-legacy does.
    Commit,
    /// No line at all.
    Silent,
}

impl Simulated {
    pub(crate) fn new(family: IpFamily) -> Self {
        Self {
            rules: Ruleset::new(family),
            generation: 0,
            failures: 0,
            inputs: Vec::new(),
            saves: 0,
            listed: Vec::new(),
            salt: Some(fastrand::u64(..)),
            intrusion: None,
            poison: BTreeSet::new(),
            refusals: Refusals::Line,
        }
    }

    /// Refuses an input as the programs do: the tables before the one at fault are written.
    fn refuse(&mut self, input: &str) -> Result<(), KernelError> {
        let is_refused = |line: &str| {
            line.starts_with("-A") | line.starts_with("-I")
                && self.poison.iter().any(|words| line.contains(words))
        };
        let Some(place) = input.lines().position(is_refused) else {
            return Ok(());
        };
        let is_end = |(number, line): (usize, &str)| (line == "COMMIT").then_some(number);
        let ends: Vec<usize> = input.lines().enumerate().filter_map(is_end).collect();
        let end = ends.iter().find(|end| **end > place).copied();
        let lines = match self.refusals {
            Refusals::Line => vec![place + 1],
            Refusals::Lines => {
                let lines = (1..).zip(input.lines()).take(end.unwrap_or(place) + 1);
                let refused = lines.skip(place).filter(|(_, line)| is_refused(line));
                refused.map(|(number, _)| number).collect()
            }
            Refusals::Commit => end.map(|end| end + 1).into_iter().collect(),
            Refusals::Silent => Vec::new(),
        };
        let before = ends.iter().rfind(|end| **end < place);
        let written: Vec<&str> = input
            .lines()
            .take(before.map_or(0, |end| end + 1))
            .collect();
        self.rules
            .restore(&format!("{}\n", written.join("\n")))
            .unwrap();
        Err(KernelError::Refused {
            lines,
            cause: "poison".into(),
        })
    }

    /// Writes as another process.
    pub(crate) fn disturb(&mut self, input: &str) {
        self.rules.restore(input).unwrap();
        self.generation += 1;
    }

    fn step(&mut self) {
        match &mut self.intrusion {
            Some((0, input)) => {
                let input = std::mem::take(input);
                self.intrusion = None;
                // It may name a chain that is not there any more.
                self.generation += u64::from(self.rules.restore(&input).is_ok());
            }
            Some((steps, _)) => *steps -= 1,
            None => {}
        }
    }

    fn raw_hash(&self, table: Table, chain: ChainName, salt: u64) -> RawHash {
        let rules = self.rules.rules(table, chain);
        if rules.is_empty() {
            return RawHash::EMPTY;
        }
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        for rule in rules {
            rule.to_string().hash(&mut hasher);
        }
        RawHash(hasher.finish())
    }
}

impl Kernel for Simulated {
    fn save(&mut self, line: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        self.saves += 1;
        self.step();
        self.rules.to_string().lines().for_each(line);
        Ok(())
    }

    fn restore(&mut self, input: &str) -> Result<(), KernelError> {
        self.step();
        self.inputs.push(input.to_owned());
        if self.failures > 0 {
            self.failures -= 1;
            return Err(KernelError::Failed("made to fail".into()));
        }
        self.refuse(input)?;
        self.rules
            .restore(input)
            .map_err(|error| KernelError::Refused {
                lines: vec![error.line],
                cause: format!("{error}\n{input}").into(),
            })
    }

    fn chain_rules(&mut self, table: Table, chain: ChainName) -> Result<Vec<String>, KernelError> {
        self.step();
        self.listed.push(chain);
        if self.rules.chain(table, chain).is_none() {
            return Err(KernelError::Failed(format!("no chain {chain}").into()));
        }
        let rules = self.rules.rules(table, chain).iter();
        Ok(rules.map(ToString::to_string).collect())
    }

    fn raw_chains(
        &mut self,
        which: Option<&[(Table, ChainName)]>,
        each: &mut dyn FnMut(Table, ChainName, RawHash),
    ) -> Result<bool, KernelError> {
        let Some(salt) = self.salt else {
            return Ok(false);
        };
        for table in Table::ALL {
            let names: Vec<ChainName> = self.rules.chains(table).map(|(name, _)| name).collect();
            for chain in names {
                let named = chain.as_str().starts_with("KUBE-") || table.has_built_in(chain);
                if which.map_or(named, |which| which.contains(&(table, chain))) {
                    self.step();
                    each(table, chain, self.raw_hash(table, chain, salt));
                }
            }
        }
        Ok(true)
    }

    fn fingerprint(&mut self) -> Option<Fingerprint> {
        self.step();
        Some(Fingerprint {
            values: vec![self.generation],
            exact: true,
        })
    }

    fn take_cpu_time(&mut self) -> Duration {
        Duration::ZERO
    }
}

pub(crate) const OPTIONS: Options = Options {
    random_fully: true,
    drop_invalid: true,
    nfacct: true,
    restore: RestoreScope::Changes,
};

/// Settings as the default configuration has them.
pub(crate) fn settings(family: IpFamily) -> Settings {
    let (pods, node_ip) = match family {
        IpFamily::V4 => ("10.244.0.0/16", "127.0.0.1"),
        IpFamily::V6 => ("fd00:10:244::/48", "::1"),
    };
    Settings {
        family,
        masquerade_all: false,
        masquerade_bit: 14,
        local_detector: Some(LocalDetector::Network(pods.parse().unwrap())),
        node_ip: node_ip.parse().unwrap(),
        node_port_tail: NodePortTail::AnyLocal,
        localhost_node_ports: family == IpFamily::V4,
        external_ips: true,
        loopback: LoopbackNodePorts::Untouched,
        service_networks: Vec::new(),
    }
}

/// A kernel whose rules a test can read.
pub(crate) trait Visible: Kernel {
    fn rules(&mut self, family: IpFamily) -> Ruleset;
}

impl Visible for Simulated {
    fn rules(&mut self, _: IpFamily) -> Ruleset {
        self.rules.clone()
    }
}

/// One family's proxy.
pub(crate) struct World<K = Simulated> {
    pub(crate) model: Model,
    pub(crate) desired: Desired,
    pub(crate) settings: Settings,
    pub(crate) options: Options,
    pub(crate) backend: Iptables<K>,
    pub(crate) changed: BTreeSet<ObjectKey>,
    pub(crate) quarantine: Quarantine,
    /// The current time, set by the test.
    pub(crate) now: Instant,
}

impl World {
    pub(crate) fn new(family: IpFamily, options: Options) -> Self {
        Self::on(Simulated::new(family), family, options)
    }
}

impl<K: Visible> World<K> {
    pub(crate) fn on(kernel: K, family: IpFamily, options: Options) -> Self {
        let node = NodeFacts {
            name: NODE.into(),
            zone: None,
        };
        Self {
            model: Model::new(family, node),
            desired: Desired::new(),
            settings: settings(family),
            options,
            backend: Iptables::new(kernel, options),
            changed: BTreeSet::new(),
            quarantine: Quarantine::default(),
            now: Instant::now(),
        }
    }

    /// Syncs with refused Services left out of what is desired, as the loop does.
    pub(crate) fn guarded_sync(&mut self, full: bool) -> Result<SyncReport, SyncError> {
        for (key, service) in self.model.take_changes() {
            self.quarantine
                .change(&mut self.desired, &key, service.as_ref());
            self.changed.insert(key);
        }
        let scope = if full {
            Scope::Full
        } else {
            Scope::Changed(&self.changed)
        };
        let report = self.quarantine.sync(
            &mut self.backend,
            &mut self.desired,
            &self.settings,
            scope,
            self.now,
        )?;
        self.changed.clear();
        Ok(report)
    }

    /// The names of the Services that are left out.
    pub(crate) fn held(&self) -> Vec<String> {
        let held = self.quarantine.held();
        held.map(|(key, _)| key.name.to_string()).collect()
    }

    /// Takes in an object that must be right.
    pub(crate) fn put(&mut self, object: &Value) {
        let problems = self.model.set(&Object::decode(object).unwrap().unwrap());
        assert!(problems.is_empty(), "{problems:?}");
    }

    pub(crate) fn edit(&mut self, edit: &Edit) {
        match edit {
            Edit::Put(_, object) => {
                let object = Object::decode(object).unwrap().unwrap();
                self.model.set(&object);
            }
            Edit::Delete(name) => {
                let key = ObjectKey::namespaced(&name.namespace, &name.name);
                match name.kind {
                    "Service" => self.model.remove_service(&key),
                    _ => self.model.remove_slice(&key),
                }
            }
        }
    }

    /// Moves the model's news over to what is desired.
    pub(crate) fn derive(&mut self) {
        for (key, service) in self.model.take_changes() {
            match service {
                Some(service) => self.desired.insert(key.clone(), service),
                None => self.desired.remove(&key),
            };
            self.changed.insert(key);
        }
    }

    pub(crate) fn sync(&mut self) -> SyncReport {
        self.try_sync().unwrap()
    }

    /// As the loop does it: what changed is kept until a sync worked.
    pub(crate) fn try_sync(&mut self) -> Result<SyncReport, SyncError> {
        self.derive();
        let scope = Scope::Changed(&self.changed);
        let report = self.backend.sync(&self.desired, &self.settings, scope)?;
        self.changed.clear();
        Ok(report)
    }

    pub(crate) fn full_sync(&mut self) -> SyncReport {
        self.derive();
        self.changed.clear();
        self.backend
            .sync(&self.desired, &self.settings, Scope::Full)
            .unwrap()
    }

    /// The process ends and starts again with these options, over this kernel.
    pub(crate) fn restart(&mut self, kernel: K, options: Options) {
        self.options = options;
        self.backend = Iptables::new(kernel, options);
    }

    pub(crate) fn rules(&mut self) -> Ruleset {
        self.backend.kernel().rules(self.settings.family)
    }

    /// Fails unless the kernel holds what a fresh start would write.
    pub(crate) fn assert_as_fresh(&mut self, when: &str) {
        let options = ComparisonOptions {
            ignore_endpoint_comments: true,
            ..ComparisonOptions::default()
        };
        let differences = compare(&self.fresh(), &self.rules(), options);
        let words: Vec<String> = differences.iter().map(ToString::to_string).collect();
        assert!(words.is_empty(), "{when}:\n{}", words.join("\n"));
    }

    /// The rules of a proxy that starts now on an empty kernel.
    pub(crate) fn fresh(&self) -> Ruleset {
        let family = self.settings.family;
        let mut kernel = Simulated::new(family);
        kernel.salt = None;
        let mut fresh = Iptables::new(kernel, self.options);
        fresh
            .sync(&self.desired, &self.settings, Scope::Full)
            .unwrap();
        fresh.kernel().rules(family)
    }
}
