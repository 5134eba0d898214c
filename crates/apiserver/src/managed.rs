//! `metadata.managedFields`: the managers of each field, updated by every write.

mod fieldset;
mod topology;

use serde_json::{Map, Value, json};

pub(crate) use fieldset::{FieldSet, PathElement, compare};
pub(crate) use topology::{Topology, Treatment};

use crate::{
    kind::{ResourceType, StatusRule, Subresource},
    meta::Meta as _,
    options::WriteOptions,
    rules::WriteScope,
    store::Object,
};

/// The `operation` of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Apply,
    Update,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// One entry of `managedFields`: the fields of one manager.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) manager: String,
    pub(crate) operation: Operation,
    pub(crate) api_version: String,
    pub(crate) subresource: String,
    time: String,
    pub(crate) set: FieldSet,
}

impl Entry {
    pub(crate) fn is_of(
        &self,
        manager: &str,
        operation: Operation,
        api_version: &str,
        sub: &str,
    ) -> bool {
        self.manager == manager
            && self.operation == operation
            && (operation == Operation::Apply || self.api_version == api_version)
            && self.subresource == sub
    }

    fn parse(value: &Value) -> Option<Self> {
        let text = |name: &str| {
            value
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        Some(Self {
            operation: match value.get("operation")?.as_str()? {
                "Apply" => Operation::Apply,
                _ => Operation::Update,
            },
            manager: text("manager"),
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: text("time"),
            set: FieldSet::from_json(value.get("fieldsV1")?),
        })
    }

    fn json(&self) -> Value {
        let mut entry = Map::new();
        entry.insert("manager".into(), self.manager.clone().into());
        entry.insert("operation".into(), self.operation.name().into());
        entry.insert("apiVersion".into(), self.api_version.clone().into());
        if !self.time.is_empty() {
            entry.insert("time".into(), self.time.clone().into());
        }
        entry.insert("fieldsType".into(), "FieldsV1".into());
        entry.insert("fieldsV1".into(), self.set.to_json());
        if !self.subresource.is_empty() {
            entry.insert("subresource".into(), self.subresource.clone().into());
        }
        entry.into()
    }
}

/// All managers of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Managers(pub(crate) Vec<Entry>);

impl Managers {
    pub(crate) fn of(object: &Object) -> Self {
        let entries = object
            .at(&["metadata", "managedFields"])
            .and_then(Value::as_array);
        Self(
            entries
                .into_iter()
                .flatten()
                .filter_map(Entry::parse)
                .collect(),
        )
    }

    /// The managers before a write: those of the body, else those of the stored object. A single
    /// empty entry in the body removes all.
    fn begin(old: Option<&Object>, object: &Object) -> Self {
        let said = object
            .at(&["metadata", "managedFields"])
            .and_then(Value::as_array);
        if said
            .is_some_and(|list| list.len() == 1 && list[0].as_object().is_some_and(Map::is_empty))
        {
            return Self::default();
        }
        match Self::of(object) {
            managers if managers.0.is_empty() => old.map(Self::of).unwrap_or_default(),
            managers => managers,
        }
    }

    pub(crate) fn write(mut self, object: &mut Object) {
        self.0.retain(|entry| !entry.set.is_empty());
        self.0.sort_by(|a, b| {
            (a.operation, &a.time, &a.manager).cmp(&(b.operation, &b.time, &b.manager))
        });
        let metadata = object.metadata_mut();
        if self.0.is_empty() {
            metadata.remove("managedFields");
        } else {
            let entries: Vec<Value> = self.0.iter().map(Entry::json).collect();
            metadata.insert("managedFields".into(), entries.into());
        }
    }

    /// Sets the fields of a manager; without a time the entry keeps its old one.
    pub(crate) fn set(
        &mut self,
        manager: &str,
        operation: Operation,
        api_version: &str,
        subresource: &str,
        time: Option<String>,
        set: FieldSet,
    ) {
        let found = self
            .0
            .iter_mut()
            .find(|e| e.is_of(manager, operation, api_version, subresource));
        match found {
            Some(entry) if entry.set == set && entry.api_version == api_version => {}
            Some(entry) => {
                entry.set = set;
                if let Some(time) = time {
                    entry.time = time;
                }
                api_version.clone_into(&mut entry.api_version);
            }
            None => self.0.push(Entry {
                manager: manager.to_owned(),
                operation,
                api_version: api_version.to_owned(),
                subresource: subresource.to_owned(),
                time: time.unwrap_or_default(),
                set,
            }),
        }
    }
}

/// Records the manager of the changed fields. [`crate::apply`] does this by itself.
pub(crate) fn record(
    scope: &WriteScope<'_>,
    old: Option<&Object>,
    object: &mut Object,
    options: &WriteOptions,
    operation: Operation,
    subresource: Option<Subresource>,
) {
    if operation == Operation::Apply {
        return;
    }
    let kind = scope.kind;
    let mut managers = Managers::begin(old, object);
    let topology = Topology::of(kind);
    let base = old.cloned().unwrap_or_else(|| blank(kind));
    let mut difference = fieldset::compare(&topology, &base, object);
    strip(kind, subresource, &mut difference.changed);
    strip(kind, subresource, &mut difference.removed);
    for entry in &mut managers.0 {
        entry.set.remove_all(&difference.removed);
        entry.set.remove_all(&difference.changed);
    }
    if !difference.changed.is_empty() {
        let manager = match scope.context {
            Some(context) => context.manager(options.manager.as_deref()),
            None => "kube-controller-manager".to_owned(),
        };
        let sub = subresource.map_or("", Subresource::name);
        let api_version = kind.api_version();
        let own = managers
            .0
            .iter()
            .find(|e| e.is_of(&manager, Operation::Update, &api_version, sub));
        let mut set = own.map(|entry| entry.set.clone()).unwrap_or_default();
        set.add_all(&difference.changed);
        let time = scope.api.clock.now_text();
        managers.set(
            &manager,
            Operation::Update,
            &api_version,
            sub,
            Some(time),
            set,
        );
    }
    managers.write(object);
}

/// An empty object of a kind, which a create is compared with.
pub(crate) fn blank(kind: &ResourceType) -> Object {
    let mut object = Object::new();
    crate::schema::reshape(kind, &mut object);
    object.insert("metadata".into(), json!({}));
    object
}

/// Removes fields that have no manager: identity, and what this path does not write.
pub(crate) fn strip(kind: &ResourceType, subresource: Option<Subresource>, set: &mut FieldSet) {
    let field = |name: &str| PathElement::Field(name.to_owned());
    for name in ["apiVersion", "kind"] {
        set.remove(&[field(name)]);
    }
    set.remove_exactly(&field("metadata"));
    for name in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        set.remove(&[field("metadata"), field(name)]);
    }
    if kind.is("", "Namespace") {
        set.remove(&[field("spec")]);
    }
    match subresource {
        Some(Subresource::Status) => {
            let metadata_too = matches!(
                kind.rules.status,
                StatusRule::SeparateWithMetadata | StatusRule::KeptOnCreate
            );
            set.retain(|step| match step {
                PathElement::Field(name) => {
                    name == "status" || (metadata_too && name == "metadata")
                }
                _ => false,
            });
        }
        _ if kind.rules.status.is_separate() => set.remove(&[field("status")]),
        _ => {}
    }
}

/// True when `managedFields` are equal.
pub(crate) fn same(old: &Object, new: &Object) -> bool {
    old.at(&["metadata", "managedFields"]) == new.at(&["metadata", "managedFields"])
}
