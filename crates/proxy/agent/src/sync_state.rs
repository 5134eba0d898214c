//! State of the syncs of one family, handed from its loop to a blocking thread and back.

use std::{collections::BTreeSet, sync::Arc};

use weft_host::NetlinkError;
use weft_model::{IpFamily, ObjectKey};
use weft_proxy::{
    Backend, Desired, LoopbackNodePorts, Quarantine, Scope, Service, Settings, SyncError,
    SyncReport,
    conntrack::{self, FlowEnds, Reconciler},
    schedule::SyncKind,
};

use crate::{
    localhost::{self, LocalhostTargets},
    service_health::LocalEndpoints,
};

/// The conntrack entries of UDP flows.
pub trait Flows: Send {
    /// Deletes stale flows. Returns their number.
    fn delete_stale(
        &mut self,
        family: IpFamily,
        is_stale: &dyn Fn(FlowEnds) -> bool,
    ) -> Result<u64, NetlinkError>;
}

/// State that moves between the loop and the threads that may block.
pub(crate) struct SyncState {
    pub(crate) family: IpFamily,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) flows: Box<dyn Flows>,
    /// The Services that should be in the kernel: all but the quarantined ones.
    pub(crate) desired: Desired,
    pub(crate) quarantine: Quarantine,
    /// The health checks for load balancers, of all desired Services.
    pub(crate) health_checks: LocalEndpoints,
    /// The NodePorts to serve on the loopback address, of all desired Services.
    pub(crate) localhost: LocalhostTargets,
    pub(crate) settings: Settings,
    /// Services that changed since the last successful sync.
    pub(crate) pending: BTreeSet<ObjectKey>,
    /// Former values of UDP Services that changed or were deleted since stale flows were last
    /// deleted. Kept until that succeeds, also if a sync fails.
    pub(crate) former: Vec<Arc<Service>>,
    pub(crate) flows_due: bool,
}

impl SyncState {
    pub(crate) fn change(&mut self, key: ObjectKey, service: Option<&Arc<Service>>) {
        let former = self.quarantine.change(&mut self.desired, &key, service);
        // A quarantined Service is not served before it is accepted.
        let service = service.filter(|_| self.desired.contains_key(&key));
        self.replaced(former, service);
        self.pending.insert(key);
    }

    /// Follows a change of the desired value of a Service, in health checks, NodePorts on localhost
    /// and stale flows.
    fn replaced(&mut self, former: Option<Arc<Service>>, service: Option<&Arc<Service>>) {
        if let Some(check) = former.as_deref().and_then(health_check) {
            self.health_checks.remove(&check);
        }
        if let Some((service, check)) = service.and_then(|s| Some((s, health_check(s)?))) {
            self.health_checks.insert(check, service.local_ready);
        }
        if self.settings.loopback == LoopbackNodePorts::TcpServed {
            self.move_localhost_ports(former.as_deref(), service.map(|service| &**service));
        }
        if conntrack::is_concerned(former.as_deref(), service.map(|service| &**service)) {
            self.flows_due = true;
            if let Some(former) = former {
                // One former value for each set of addresses is enough.
                self.former
                    .retain(|known| !conntrack::have_same_addresses(known, &former));
                self.former.push(former);
            }
        }
    }

    fn move_localhost_ports(&mut self, former: Option<&Service>, service: Option<&Service>) {
        if let Some(former) = former {
            for (port, _) in localhost::targets(former) {
                let is_own = |(owner, _): &(ObjectKey, _)| *owner == former.key;
                if self.localhost.get(&port).is_some_and(is_own) {
                    self.localhost.remove(&port);
                }
            }
        }
        if let Some(service) = service {
            for (port, target) in localhost::targets(service) {
                let place = self.localhost.entry(port);
                place.or_insert_with(|| (service.key.clone(), target));
            }
        }
    }

    pub(crate) fn sync(
        &mut self,
        kind: SyncKind,
        now: std::time::Instant,
    ) -> Result<SyncReport, SyncError> {
        let scope = match kind {
            SyncKind::Full => Scope::Full,
            SyncKind::Partial => Scope::Changed(&self.pending),
        };
        let report = self.quarantine.sync(
            &mut *self.backend,
            &mut self.desired,
            &self.settings,
            scope,
            now,
        )?;
        self.pending.clear();
        Ok(report)
    }

    /// Takes the Services that the last sync found to be refused. All quarantined ones are treated
    /// as deleted: their health checks are closed, and their flows are stale.
    pub(crate) fn take_quarantine_changes(&mut self) -> Vec<ObjectKey> {
        let changes = self.quarantine.take_changes();
        let held = self.quarantine.held();
        let refused: Vec<Arc<Service>> = held
            .filter(|(key, _)| changes.held.contains(key))
            .map(|(_, held)| held.service.clone())
            .collect();
        for service in refused {
            self.replaced(Some(service), None);
        }
        for key in &changes.accepted {
            let service = self.desired.get(key).cloned();
            self.replaced(None, service.as_ref());
        }
        changes.refused
    }

    pub(crate) fn delete_stale_flows(&mut self) -> Result<u64, NetlinkError> {
        let former = self.former.iter().map(|service| &**service);
        let reconciler = Reconciler::new(&self.desired, former);
        let count = self
            .flows
            .delete_stale(self.family, &|flow| reconciler.is_stale(flow))?;
        self.former.clear();
        self.flows_due = false;
        Ok(count)
    }
}

fn health_check(service: &Service) -> Option<(ObjectKey, u16)> {
    Some((service.key.clone(), service.health_check_node_port()?))
}
