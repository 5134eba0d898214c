//! Keeps track of what was written, and writes what differs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use weft_host::nftables::{Ownership, Value};
use weft_model::{IpFamily, ObjectKey, error_text};
use weft_proxy::{
    AuditReport, Backend, ChainCount, Desired, Deviation, ElementCount, ReadBudget, Repair,
    RepairedPart, RuleOwner, Scope, Service, ServicePort, Settings, SyncError, SyncReport,
};

use crate::{
    collection::Collection,
    entry::{Entry, check, fronts, port_name},
    fixed::{fixed_entries, node_port_addresses, service_networks, without_elements},
    front::Front,
    kernel::{Kernel, Structure},
    observed::{Depth, Observed},
    options::TableOptions,
    program::{Program, TABLE, TABLE_COMMENT},
    repair::{create, repair},
    state::{State, difference},
    transaction::{Step, Transaction},
    writer::{CHUNK, Failure, Unused, Writer},
};

/// Programs Services as elements of nftables maps, for one family.
#[derive(Debug)]
pub struct Nftables<K> {
    kernel: K,
    options: TableOptions,
    /// The known state of the kernel. `None` before the first sync and after a failure.
    known: Option<Known>,
    /// Depth of the next full read: the kernel may have refused something that should not
    /// have been there.
    depth: Depth,
    /// The unused chains that a full sync removes.
    unused: Unused,
}

#[derive(Debug)]
struct Known {
    state: State,
    branches: Branches,
    /// The kernel's count of foreign changes from before the table was last read.
    foreign: Option<u64>,
}

/// Chains that come and go, as far as they exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct Branches {
    /// Numbers of endpoints.
    pub(crate) picks: BTreeSet<u32>,
    /// Affinity timeouts.
    pub(crate) timeouts: BTreeSet<u32>,
}

/// Totals of the commits of one sync.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    pub(crate) bytes: usize,
    pub(crate) elements: usize,
    pub(crate) chains: usize,
    pub(crate) removed_chains: usize,
    /// The failure to remove unused chains.
    pub(crate) cleanup_failure: Option<String>,
}

impl<K: Kernel> Nftables<K> {
    /// A backend that knows nothing of the kernel's state yet.
    pub fn new(kernel: K) -> Self {
        Self::with_options(kernel, TableOptions::default())
    }

    /// A backend whose table has options.
    pub fn with_options(kernel: K, options: TableOptions) -> Self {
        Self {
            kernel,
            options,
            known: None,
            depth: Depth::Reachable,
            unused: Unused::All,
        }
    }

    /// Has full syncs leave as many unused chains as a running proxy keeps.
    pub(crate) fn leave_spare_chains(&mut self) {
        self.unused = Unused::BeyondSpare;
    }

    /// The kernel it writes to.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    fn full(&mut self, desired: &Desired, settings: &Settings) -> Result<SyncReport, SyncError> {
        self.known = None;
        for service in desired.unordered() {
            refuse_unwritable(service)?;
        }
        let services = in_order(desired.unordered().cloned());
        let (written, _) = self.reconcile(services, settings)?;
        Ok(SyncReport {
            full: true,
            ..self.report(written)
        })
    }

    /// Reads the table and writes what differs. Also returns what differed.
    fn reconcile(
        &mut self,
        services: Vec<Arc<Service>>,
        settings: &Settings,
    ) -> Result<(Written, Vec<Repair>), SyncError> {
        // Read first: what another process writes while the table is read must count as a change.
        let foreign = self.kernel.foreign_changes();
        let family = settings.family;
        let program = Program::of(settings, self.options);
        let mut findings = Vec::new();
        let mut transaction = Transaction::new(family);
        let structure = self.kernel.structure().map_err(SyncError::unreadable)?;
        if structure.as_ref().is_some_and(|found| !is_ours(found)) {
            return Err(SyncError::unreadable(ForeignTable(family)));
        }
        let mut observed = match structure {
            Some(structure)
                if has_sets(&structure, &program)
                    && structure.ownership == self.options.ownership =>
            {
                if structure.ownership == Ownership::Owned {
                    // From an earlier process or connection.
                    transaction.create_table(Ownership::Owned);
                }
                let depth = std::mem::replace(&mut self.depth, Depth::Reachable);
                let observed = Observed::read(&mut self.kernel, structure, family, depth);
                let observed = observed.map_err(SyncError::unreadable)?;
                findings.extend(repair(&mut transaction, &observed, &program, family));
                observed
            }
            structure => {
                if structure.is_some() {
                    transaction.delete_table();
                }
                findings.push(Repair {
                    table: TABLE,
                    part: RepairedPart::Table,
                    deviation: Deviation::Differs,
                });
                create(&mut transaction, &program);
                Observed::default()
            }
        };
        let mut writer = Writer {
            branches: Branches {
                picks: std::mem::take(&mut observed.picks),
                timeouts: std::mem::take(&mut observed.timeouts),
            },
            kernel: &mut self.kernel,
            state: State::new(settings.clone()),
            transaction,
            written: Written::default(),
            undo: Vec::new(),
        };
        let written = write_all(&mut writer, &mut observed, services, self.unused);
        let Writer {
            state,
            branches,
            written: total,
            ..
        } = writer;
        if let Err(Failure { error, .. }) = written {
            self.known = None;
            self.depth = Depth::Everything;
            return Err(error);
        }
        if total.elements > 0 {
            findings.push(Repair {
                table: TABLE,
                part: RepairedPart::Elements(total.elements),
                deviation: Deviation::Differs,
            });
        }
        self.known = Some(Known {
            state,
            branches,
            foreign: foreign.filter(|_| total.cleanup_failure.is_none()),
        });
        Ok((total, findings))
    }

    /// Writes everything again as it was, to a kernel that has no table of ours.
    fn rewrite(&mut self, known: Known) -> Result<(Written, Vec<Repair>), SyncError> {
        let Known {
            mut state, foreign, ..
        } = known;
        let mut transaction = Transaction::new(state.settings.family);
        create(
            &mut transaction,
            &Program::of(&state.settings, self.options),
        );
        state.forget_kept_hairpins();
        let mut writer = Writer {
            branches: Branches::default(),
            kernel: &mut self.kernel,
            state,
            transaction,
            written: Written::default(),
            undo: Vec::new(),
        };
        if let Err(Failure { error, .. }) = write_again(&mut writer) {
            self.depth = Depth::Everything;
            return Err(error);
        }
        let Writer {
            state,
            branches,
            written,
            ..
        } = writer;
        self.known = Some(Known {
            state,
            branches,
            foreign,
        });
        let repairs = [
            RepairedPart::Table,
            RepairedPart::Elements(written.elements),
        ];
        let repairs = repairs.map(|part| Repair {
            table: TABLE,
            part,
            deviation: Deviation::Differs,
        });
        Ok((written, repairs.into()))
    }

    fn partial(
        &mut self,
        desired: &Desired,
        settings: &Settings,
        changed: &BTreeSet<ObjectKey>,
    ) -> Result<SyncReport, SyncError> {
        let Some(known) = self.known.take() else {
            return Err(SyncError::Unread);
        };
        let Known {
            state,
            branches,
            foreign,
        } = known;
        let family = state.settings.family;
        let mut writer = Writer {
            kernel: &mut self.kernel,
            state,
            branches,
            transaction: Transaction::new(family),
            written: Written::default(),
            undo: Vec::new(),
        };
        let written = write_settings(&mut writer, settings)
            .and_then(|()| write_changed(&mut writer, desired, changed));
        let Writer {
            state,
            branches,
            written: total,
            ..
        } = writer;
        let known = Known {
            state,
            branches,
            // Chains that cannot be removed are in use by another process: the next audit looks.
            foreign: foreign.filter(|_| total.cleanup_failure.is_none()),
        };
        match written {
            Ok(()) => {
                self.known = Some(known);
                Ok(self.report(total))
            }
            Err(Failure { error, is_known }) => {
                if is_known {
                    self.known = Some(known);
                } else {
                    self.depth = Depth::Everything;
                }
                Err(error)
            }
        }
    }

    fn sync_once(
        &mut self,
        desired: &Desired,
        settings: &Settings,
        scope: Scope<'_>,
    ) -> Result<SyncReport, SyncError> {
        let known = self.known.as_ref().map(|known| &known.state.settings);
        let is_known = known.is_some_and(|known| {
            known == settings || without_elements(known) == without_elements(settings)
        });
        let Scope::Changed(changed) = scope else {
            return self.full(desired, settings);
        };
        if !is_known {
            return self.full(desired, settings);
        }
        match self.partial(desired, settings, changed) {
            Ok(report) => Ok(report),
            // Everything is known but for whether the rest will be accepted.
            Err(refused) if self.known.is_some() => Err(refused),
            Err(failure) => failure.resolved_by(self.full(desired, settings)),
        }
    }

    /// The report of a partial sync.
    fn report(&self, written: Written) -> SyncReport {
        let state = self.known.as_ref().map(|known| &known.state);
        SyncReport {
            bytes: written.bytes,
            chains: ChainCount {
                written: written.chains,
                removed: written.removed_chains,
            },
            elements: Some(ElementCount {
                total: state.map_or(0, |state| state.element_count),
                written: written.elements,
                contested: state.map_or(0, State::contested),
            }),
            cleanup_failure: written.cleanup_failure,
            without_local_endpoints: state
                .map(|state| state.without_local_endpoints)
                .unwrap_or_default(),
            ..SyncReport::default()
        }
    }
}

impl<K: Kernel> Backend for Nftables<K> {
    fn sync(
        &mut self,
        desired: &Desired,
        settings: &Settings,
        scope: Scope<'_>,
    ) -> Result<SyncReport, SyncError> {
        loop {
            let limit = self.kernel.byte_limit();
            match self.sync_once(desired, settings, scope) {
                // It takes less at once than it said. Ends: the limit falls each time.
                Err(error) if self.kernel.byte_limit() < limit => {
                    tracing::warn!(
                        error = error_text(&error),
                        limit,
                        "nftables commit was too large"
                    );
                }
                outcome => return outcome,
            }
        }
    }

    fn audit(&mut self, budget: ReadBudget) -> Result<AuditReport, SyncError> {
        let Some(known) = &self.known else {
            return Ok(AuditReport::Postponed);
        };
        let foreign = self.kernel.foreign_changes();
        if foreign.is_some() && foreign == known.foreign {
            return Ok(AuditReport::Unchanged);
        }
        if budget == ReadBudget::Spent {
            return Ok(AuditReport::Postponed);
        }
        let structure = self.kernel.structure().map_err(SyncError::unreadable)?;
        if structure.is_none()
            && let Some(known) = self.known.take()
        {
            let known = Known { foreign, ..known };
            let (_, repaired) = self.rewrite(known)?;
            return Ok(AuditReport::Read {
                repaired,
                children: Duration::ZERO,
            });
        }
        let Some(known) = &self.known else {
            return Ok(AuditReport::Postponed);
        };
        let applied = known.state.services.values();
        let services = in_order(applied.map(|applied| applied.service.clone()));
        let settings = known.state.settings.clone();
        let (_, repaired) = self.reconcile(services, &settings)?;
        Ok(AuditReport::Read {
            repaired,
            children: Duration::ZERO,
        })
    }
}

/// Writes all Services, and deletes what belongs to none.
fn write_all(
    writer: &mut Writer<'_>,
    observed: &mut Observed,
    services: Vec<Arc<Service>>,
    unused: Unused,
) -> Result<(), Failure> {
    let settings = writer.state.settings.clone();
    let addresses = node_port_addresses(&settings).map(Step::Add);
    let addresses = addresses.filter_map(|step| observed.compare(step));
    writer.add(None, addresses.collect())?;
    keep_fronts(&mut writer.state, observed, &services);
    let urgent = services.iter().take_while(|s| is_urgent(s)).count();
    for (index, service) in services.into_iter().enumerate() {
        let applied = writer
            .state
            .number(&service, &|port| Some(observed.numbering(port, &settings)));
        let delta = writer.state.swap(&service.key, Some(applied));
        report_refused_fronts(&service.key, &delta.refused_fronts);
        let steps = observed.compare_all(delta.steps, settings.family);
        writer.add(Some(&service.key), steps)?;
        if index + 1 == urgent {
            writer.commit()?;
        }
    }
    writer.commit()?;
    let networks = service_networks(&settings).map(Step::Add);
    let networks = networks.filter_map(|step| observed.compare(step));
    let mut networks: Vec<Step> = networks.collect();
    // In the same transaction: networks that overlap cannot be there together.
    networks.extend(observed.take(Collection::ServiceNetworks));
    writer.add(None, networks)?;
    // A process that ended a moment ago may have left packets between their two hooks.
    let mut leftovers = observed.take_unused_hairpins();
    leftovers.retain(|key| !writer.state.take_over_hairpin(*key));
    let delete = |key: Value| Step::Delete(Collection::Hairpin, key.into());
    let mut leftovers: Vec<Step> = leftovers.into_iter().map(delete).collect();
    leftovers.extend(observed.leftovers(settings.family));
    writer.add(None, leftovers)?;
    writer.commit()?;
    writer.remove_unused(unused)
}

/// Has a front that several Services name stay with the one that the kernel has it for.
///
/// The API server gives a ClusterIP or NodePort to one Service only: without external addresses there
/// is nothing to look for.
fn keep_fronts(state: &mut State, observed: &Observed, services: &[Arc<Service>]) {
    let ports = || services.iter().flat_map(|service| &service.ports);
    let named: HashSet<IpAddr> = ports()
        .flat_map(|port| {
            let external = port.frontend.external_ips.iter();
            external.chain(&port.frontend.load_balancer_ips).copied()
        })
        .collect();
    if observed.elements.is_empty() || named.is_empty() {
        return;
    }
    let is_candidate = |port: &ServicePort| {
        let frontend = &port.frontend;
        !frontend.external_ips.is_empty()
            || !frontend.load_balancer_ips.is_empty()
            || named.contains(&frontend.cluster_ip)
    };
    let services = services
        .iter()
        .filter(|service| service.ports.iter().any(is_candidate));
    let mut first: HashMap<Front, &Arc<Service>> = HashMap::new();
    let mut contested: BTreeMap<Front, Vec<&Arc<Service>>> = BTreeMap::new();
    for service in services {
        for (_, front) in fronts(service, &state.settings) {
            let owner = *first.entry(front).or_insert(service);
            if owner.key != service.key {
                let contenders = contested.entry(front).or_insert_with(|| vec![owner]);
                contenders.push(service);
            }
        }
    }
    for (front, contenders) in contested {
        let Some(name) = observed.service_name(&front) else {
            continue;
        };
        let has_it = |service: &&&Arc<Service>| {
            let mut ports = service.ports.iter();
            ports.any(|port| port_name(service, port) == *name)
        };
        if let Some(keeper) = contenders.iter().find(has_it) {
            state.claim(front, keeper.key.clone());
        }
    }
}

/// Writes all Services as they were written last, the most important first.
fn write_again(writer: &mut Writer<'_>) -> Result<(), Failure> {
    let add = |entries: Vec<Entry>| entries.into_iter().map(Step::Add).collect();
    let settings = writer.state.settings.clone();
    writer.add(None, add(node_port_addresses(&settings).collect()))?;
    let services = writer.state.services.iter();
    let (urgent, rest): (Vec<_>, Vec<_>) = services
        .map(|(key, applied)| (is_urgent(&applied.service), key.clone()))
        .partition(|(urgent, _)| *urgent);
    for keys in [urgent, rest] {
        for (_, key) in keys {
            let Some(applied) = writer.state.services.get(&key) else {
                continue;
            };
            let entries = writer.state.entries(&key, applied);
            writer.add(Some(&key), add(entries.own))?;
        }
        writer.commit()?;
    }
    let shared: Vec<Entry> = writer.state.shared_entries().collect();
    for part in shared.chunks(CHUNK) {
        writer.add(None, add(part.to_vec()))?;
    }
    writer.add(None, add(service_networks(&settings).collect()))?;
    writer.commit()
}

/// Writes elements that follow from settings, where these changed.
fn write_settings(writer: &mut Writer<'_>, settings: &Settings) -> Result<(), Failure> {
    if writer.state.settings == *settings {
        return Ok(());
    }
    let former = std::mem::replace(&mut writer.state.settings, settings.clone());
    let steps = difference(fixed_entries(&former), fixed_entries(settings));
    // Apart from Services: what is taken back after a failure is theirs.
    let written = writer.add(None, steps).and_then(|()| writer.commit());
    written.map_err(|failure| Failure {
        is_known: false,
        ..failure
    })
}

/// Writes these Services, and those that get fronts which these gave up.
fn write_changed(
    writer: &mut Writer<'_>,
    desired: &Desired,
    changed: &BTreeSet<ObjectKey>,
) -> Result<(), Failure> {
    // Services that go first: another may name their fronts.
    let (gone, rest): (Vec<_>, Vec<_>) = changed.iter().partition(|key| !desired.contains_key(key));
    let mut queue: VecDeque<ObjectKey> = gone.into_iter().chain(rest).cloned().collect();
    while let Some(key) = queue.pop_front() {
        let new = desired.get(&key);
        if let Some(Err(error)) = new.map(|service| refuse_unwritable(service)) {
            // What came before it is written all the same.
            writer.commit()?;
            let is_known = true;
            return Err(Failure { error, is_known });
        }
        let applied = new.map(|service| writer.state.renumber(service));
        let before = writer.state.services.get(&key).cloned();
        let delta = writer.state.swap(&key, applied);
        writer.undo.push((key.clone(), before));
        report_refused_fronts(&key, &delta.refused_fronts);
        queue.extend(delta.heirs);
        writer.add(Some(&key), delta.steps)?;
    }
    writer.commit()?;
    writer.remove_unused(Unused::BeyondSpare)
}

fn report_refused_fronts(key: &ObjectKey, fronts: &[(Front, ObjectKey)]) {
    for (front, owner) in fronts {
        tracing::warn!(service = %key, %front, %owner, "front belongs to another Service");
    }
}

/// The error for a Service that cannot be written whatever the kernel says.
fn refuse_unwritable(service: &Service) -> Result<(), SyncError> {
    check(service).map_err(|error| {
        let owner = RuleOwner::Service(service.key.clone());
        SyncError::refused(error, None, owner, "")
    })
}

/// Without DNS and the API server nothing else works.
fn is_urgent(service: &Service) -> bool {
    const DNS_PORT: u16 = 53;
    service.key == ObjectKey::namespaced("default", "kubernetes")
        || (service.key.namespace.as_deref() == Some("kube-system")
            && service
                .ports
                .iter()
                .any(|port| port.frontend.port == DNS_PORT))
}

/// The most important first, the others by name.
fn in_order(services: impl Iterator<Item = Arc<Service>>) -> Vec<Arc<Service>> {
    let mut services: Vec<Arc<Service>> = services.collect();
    services.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let (mut first, rest): (Vec<_>, Vec<_>) = services.into_iter().partition(|s| is_urgent(s));
    first.extend(rest);
    first
}

/// True if we created the table, in this version of the program or another.
fn is_ours(structure: &Structure) -> bool {
    structure.comment.as_deref() == Some(TABLE_COMMENT)
}

fn has_sets(structure: &Structure, program: &Program) -> bool {
    let is_there = |set| structure.sets.contains(set);
    // Sets that another program added do no harm.
    program.sets.iter().all(is_there)
}

/// A table of our name without our comment.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the nftables table {TABLE} of {0}: another program created it")]
struct ForeignTable(IpFamily);
