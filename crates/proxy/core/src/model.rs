//! The model of one address family: takes Kubernetes objects in and gives changed Services out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use weft_model::{IpFamily, ObjectKey, SharedStr};

use crate::{
    Frontend, NodeFacts, Service, Slice,
    frontend::{InvalidValue, frontends},
    objects::{ServiceSpec, ServiceStatus, SliceView},
    slices::Slices,
};

/// Treatment of a value that cannot be used as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// The rules are written without it.
    LeftOut,
    /// The nearest value that can be used is in the rules.
    Clamped,
}

/// An invalid value in an object. The rest of the object is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `Service` or `EndpointSlice`.
    pub kind: &'static str,
    /// Namespace and name of the object.
    pub object: ObjectKey,
    /// Treatment of the value.
    pub effect: Effect,
    /// Human-readable description: the field, its value, and the reason.
    pub what: String,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeftOut => "left out",
            Self::Clamped => "clamped",
        })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind, self.object, self.what)
    }
}

/// The Services of one family, and those that changed since the last
/// [`take_changes`](Self::take_changes).
#[derive(Debug)]
pub struct Model {
    family: IpFamily,
    node: NodeFacts,
    entries: HashMap<ObjectKey, Entry>,
    /// The Service of each slice, in the slice's namespace. An update may move a slice to another
    /// Service.
    slices: HashMap<ObjectKey, SharedStr>,
    dirty: BTreeSet<ObjectKey>,
    revision: u64,
}

/// The state of one Service name. Service and slices may arrive in either order.
#[derive(Debug, Default)]
struct Entry {
    /// Shared with `derived`.
    frontends: Box<[Arc<Frontend>]>,
    slices: Slices,
    derived: Option<Arc<Service>>,
}

impl Model {
    /// A model without Services.
    pub fn new(family: IpFamily, node: NodeFacts) -> Self {
        Self {
            family,
            node,
            entries: HashMap::new(),
            slices: HashMap::new(),
            dirty: BTreeSet::new(),
            revision: 0,
        }
    }

    /// The node that endpoints are selected for.
    pub fn node(&self) -> &NodeFacts {
        &self.node
    }

    /// Adds or updates a Service. Returns its invalid values.
    pub fn set_service(
        &mut self,
        key: &ObjectKey,
        spec: &ServiceSpec,
        status: &ServiceStatus,
    ) -> Vec<Problem> {
        let mut invalid = Vec::new();
        let mut frontends = frontends(spec, status, self.family, &mut invalid);
        let mut problems: Vec<Problem> = invalid
            .into_iter()
            .map(|invalid| match invalid {
                InvalidValue::LeftOut(what) => Problem::service(key, Effect::LeftOut, what),
                InvalidValue::Clamped(what) => Problem::service(key, Effect::Clamped, what),
            })
            .collect();
        frontends.retain(|frontend| match check_name(key, &frontend.name) {
            Ok(()) => true,
            Err(error) => {
                problems.push(Problem::service(key, Effect::LeftOut, error.to_string()));
                false
            }
        });
        self.set_frontends(key, frontends);
        problems
    }

    /// Removes a Service. Its slices stay: a Service of the same name may follow.
    pub fn remove_service(&mut self, key: &ObjectKey) {
        self.set_frontends(key, Vec::new());
    }

    /// Adds or updates a slice. Returns its invalid values.
    pub fn set_slice(&mut self, key: &ObjectKey, view: SliceView<'_>) -> Vec<Problem> {
        let mut invalid = Vec::new();
        let slice = Slice::derive(view, &self.node.name, &mut invalid)
            .filter(|slice| slice.family == self.family && !view.service.is_empty());
        let Some(slice) = slice else {
            self.remove_slice(key);
            return Vec::new();
        };
        if self
            .slices
            .get(key)
            .is_none_or(|known| **known != *view.service)
        {
            self.remove_slice(key);
            // The Service's own copy of its name, if the Service is known.
            let service = service_of(key, SharedStr::new(view.service));
            let known = self.entries.get_key_value(&service);
            let name = known.map_or(service.name, |(known, _)| known.name.clone());
            self.slices.insert(key.clone(), name);
        }
        let Some(name) = self.slices.get(key) else {
            return Vec::new();
        };
        let service = service_of(key, name.clone());
        let entry = match self.entries.get_mut(&service) {
            Some(entry) => entry,
            None => self.entries.entry(service.clone()).or_default(),
        };
        if entry.slices.set(&key.name, slice) {
            self.touch(service);
        }
        let problem = |what| Problem {
            kind: "EndpointSlice",
            object: key.clone(),
            effect: Effect::LeftOut,
            what,
        };
        invalid.into_iter().map(problem).collect()
    }

    /// Removes a slice; an unknown one is ignored.
    pub fn remove_slice(&mut self, key: &ObjectKey) {
        let Some(service) = self.slices.remove(key) else {
            return;
        };
        let service = service_of(key, service);
        if let Some(entry) = self.entries.get_mut(&service)
            && entry.slices.remove(&key.name)
        {
            self.touch(service);
        }
    }

    /// Sets the node's zone. Only Services whose endpoints carry hints can change because of it.
    pub fn set_zone(&mut self, zone: Option<SharedStr>) {
        if self.node.zone == zone {
            return;
        }
        self.node.zone = zone;
        self.dirty.extend(self.entries.keys().cloned());
        self.revision += 1;
    }

    /// A counter that grows with each change of the model.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Number of Services that may have changed since the last
    /// [`take_changes`](Self::take_changes). Some may turn out to be unchanged.
    pub fn news(&self) -> usize {
        self.dirty.len()
    }

    /// The Services that differ from the last call: `None` for those that are gone.
    pub fn take_changes(&mut self) -> BTreeMap<ObjectKey, Option<Arc<Service>>> {
        let mut changes = BTreeMap::new();
        for key in std::mem::take(&mut self.dirty) {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            let derived = (!entry.frontends.is_empty())
                .then(|| Service::derive(&key, &entry.frontends, &entry.slices, &self.node));
            if entry.derived.as_deref() != derived.as_ref() {
                entry.derived = derived.map(Arc::new);
                changes.insert(key.clone(), entry.derived.clone());
            }
            if entry.frontends.is_empty() && entry.slices.is_empty() {
                self.entries.remove(&key);
            }
        }
        changes
    }

    fn touch(&mut self, service: ObjectKey) {
        self.dirty.insert(service);
        self.revision += 1;
    }

    fn set_frontends(&mut self, key: &ObjectKey, frontends: Vec<Frontend>) {
        let known = self.entries.get(key);
        let known = known.map_or(&[][..], |entry| &entry.frontends);
        if known.iter().map(|known| &**known).eq(&frontends) {
            return;
        }
        let frontends = frontends.into_iter().map(Arc::new).collect();
        self.entries.entry(key.clone()).or_default().frontends = frontends;
        self.touch(key.clone());
    }
}

impl Problem {
    fn service(key: &ObjectKey, effect: Effect, what: String) -> Self {
        Self {
            kind: "Service",
            object: key.clone(),
            effect,
            what,
        }
    }
}

/// The Service of this name in the namespace of a slice.
fn service_of(slice: &ObjectKey, name: SharedStr) -> ObjectKey {
    ObjectKey {
        namespace: slice.namespace.clone(),
        name,
    }
}

/// Limit for namespace, Service and port name together, in bytes: a rule's comment holds 255
/// characters, of which our own words take up to 47.
const NAME_LIMIT: usize = 200;

/// A Service port whose names cannot be written into rules.
#[derive(Debug, thiserror::Error)]
enum InvalidName {
    #[error("the name of port {0:?} has characters that Kubernetes does not allow")]
    Characters(String),
    #[error("the name of port {0:?} is too long")]
    TooLong(String),
}

/// Checks that names can be written into rules. The API server accepts no others; this guards
/// against names that would be read as something else there.
fn check_name(key: &ObjectKey, port: &str) -> Result<(), InvalidName> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    let namespace = key.namespace.as_deref().unwrap_or_default();
    let words = [namespace, &*key.name, port];
    if !words.iter().all(|word| word.bytes().all(fine)) || namespace.is_empty() {
        return Err(InvalidName::Characters(port.to_owned()));
    }
    if words.iter().map(|word| word.len()).sum::<usize>() + 2 > NAME_LIMIT {
        return Err(InvalidName::TooLong(port.to_owned()));
    }
    Ok(())
}
