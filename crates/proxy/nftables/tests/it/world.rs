//! A proxy without processes: a model, a backend and a kernel.

use std::{collections::BTreeSet, time::Instant};

use serde_json::Value;
use weft_model::{IpFamily, ObjectKey};
use weft_nftables::{HostKernel, Kernel, Nftables, Watch};
use weft_proxy::{
    Backend as _, Desired, LocalDetector, LoopbackNodePorts, Model, NodeFacts, NodePortTail,
    Quarantine, Scope, Settings, SyncError, SyncReport, objects::Object,
};
use weft_testkit::cluster::{Edit, NODE};

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
        localhost_node_ports: false,
        external_ips: true,
        loopback: LoopbackNodePorts::Untouched,
        service_networks: Vec::new(),
    }
}

/// One family's proxy.
pub(crate) struct World<K = HostKernel> {
    pub(crate) model: Model,
    pub(crate) desired: Desired,
    pub(crate) settings: Settings,
    pub(crate) backend: Nftables<K>,
    pub(crate) changed: BTreeSet<ObjectKey>,
    pub(crate) quarantine: Quarantine,
    pub(crate) now: Instant,
}

impl World {
    /// Over the kernel of the calling thread's network namespace.
    pub(crate) fn real(family: IpFamily) -> Self {
        Self::on(HostKernel::new(family, Watch::new()), family)
    }

    /// The first sync of a new process, of what another one serves.
    pub(crate) fn take_over<K: Kernel>(mut self, other: &World<K>) -> SyncReport {
        self.settings = other.settings.clone();
        self.desired = other.desired.clone();
        let family = self.settings.family;
        self.restart(HostKernel::new(family, Watch::new()))
    }
}

impl<K: Kernel> World<K> {
    pub(crate) fn on(kernel: K, family: IpFamily) -> Self {
        let node = NodeFacts {
            name: NODE.into(),
            zone: None,
        };
        Self {
            model: Model::new(family, node),
            desired: Desired::new(),
            settings: settings(family),
            backend: Nftables::new(kernel),
            changed: BTreeSet::new(),
            quarantine: Quarantine::default(),
            now: Instant::now(),
        }
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

    /// Syncs with refused Services left out of what is desired, as the loop does.
    pub(crate) fn guarded_sync(&mut self) -> Result<SyncReport, SyncError> {
        for (key, service) in self.model.take_changes() {
            self.quarantine
                .change(&mut self.desired, &key, service.as_ref());
            self.changed.insert(key);
        }
        let report = self.quarantine.sync(
            &mut self.backend,
            &mut self.desired,
            &self.settings,
            Scope::Changed(&self.changed),
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

    /// The process ends and starts again over this kernel.
    pub(crate) fn restart(&mut self, kernel: K) -> SyncReport {
        self.backend = Nftables::new(kernel);
        self.derive();
        self.changed.clear();
        let scope = Scope::Full;
        self.backend
            .sync(&self.desired, &self.settings, scope)
            .unwrap()
    }
}

/// The number of elements that a sync wrote.
pub(crate) fn written(report: &SyncReport) -> usize {
    report.elements.map_or(0, |count| count.written)
}
