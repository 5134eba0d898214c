//! Controller of CustomResourceDefinitions: accepts names, serves kinds, cleans up instances.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::definition;
use crate::{
    api::Api,
    handler::write,
    kind::{ResourceType, StorageId},
    meta::{Meta as _, object_mut},
    options::DryRun,
    store::{Filter, Object, Stored},
};

/// Finalizer that keeps a definition until its instances are deleted.
pub(crate) const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Time that watches of a removed kind stay open.
const WATCHES_LINGER: Duration = Duration::from_secs(1);

const GROUP: &str = "apiextensions.k8s.io";

/// Reconciles each definition: accepts its names, establishes it, or cleans it up.
pub(crate) fn reconcile(api: &Arc<Api>) {
    let served = api.registry.served();
    let Some(kind) = served.of_kind(GROUP, "CustomResourceDefinition").cloned() else {
        return;
    };
    let (definitions, _) = api.store.all(&kind.storage, &Filter::default());
    for stored in definitions {
        let object = stored.decode();
        if object.is_deleting() {
            if object.finalizers().contains(&CLEANUP_FINALIZER) {
                clean_up(api, &kind, &stored);
            }
        } else if condition(&object, "Established").is_none() {
            establish(api, &kind, &stored);
        }
    }
}

pub(super) fn condition<'a>(object: &'a Object, wanted: &str) -> Option<&'a str> {
    let conditions = object.at(&["status", "conditions"])?.as_array()?;
    let found = conditions
        .iter()
        .find(|known| known.get("type") == Some(&json!(wanted)))?;
    found.get("status")?.as_str()
}

fn set_condition(
    api: &Api,
    object: &mut Object,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
) {
    let condition = json!({
        "type": kind, "status": status, "lastTransitionTime": api.clock.now_text(),
        "reason": reason, "message": message,
    });
    let status = object_mut(object, "status");
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Value::Array(conditions) = conditions else {
        return;
    };
    match conditions
        .iter_mut()
        .find(|known| known.get("type") == Some(&json!(kind)))
    {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}

/// Accepts the names if they are free and serves the kind, in two updates as upstream makes them.
fn establish(api: &Arc<Api>, kind: &Arc<ResourceType>, stored: &Stored) {
    let writer = api.store.write();
    let scope = write::scope(api, &writer, kind);
    let Some(current) = writer.get(&kind.storage, &stored.key) else {
        return;
    };
    let mut object = current.decode();
    if let Some((reason, message)) = name_conflict(api, &object) {
        set_condition(api, &mut object, "NamesAccepted", "False", reason, &message);
        let text = "not all names are accepted";
        set_condition(
            api,
            &mut object,
            "Established",
            "False",
            "NotAccepted",
            text,
        );
        write::store(&scope, object, DryRun::No);
        return;
    }
    let names = object.at(&["spec", "names"]).cloned().unwrap_or_default();
    object_mut(&mut object, "status").insert("acceptedNames".into(), names);
    let text = "no conflicts found";
    set_condition(
        api,
        &mut object,
        "NamesAccepted",
        "True",
        "NoConflicts",
        text,
    );
    write::store(&scope, object.clone(), DryRun::No);
    let text = "the initial names have been accepted";
    set_condition(
        api,
        &mut object,
        "Established",
        "True",
        "InitialNamesAccepted",
        text,
    );
    write::store(&scope, object, DryRun::No);
}

/// Reason and message of a name that another served kind of the group already has.
fn name_conflict(api: &Api, object: &Object) -> Option<(&'static str, String)> {
    let spec = |path: &[&str]| object.at(path).and_then(Value::as_str).unwrap_or_default();
    let (group, plural) = (spec(&["spec", "group"]), spec(&["spec", "names", "plural"]));
    let storage: StorageId = format!("{plural}.{group}").into();
    let served = api.registry.served();
    for other in served
        .types()
        .filter(|kind| kind.group == group && kind.storage != storage)
    {
        let in_use = |name: &str| format!("{name:?} is already in use");
        let (kind, list) = (
            spec(&["spec", "names", "kind"]),
            spec(&["spec", "names", "listKind"]),
        );
        if other.list_kind == list {
            return Some(("ListKindConflict", in_use(list)));
        }
        if other.kind == kind {
            return Some(("KindConflict", in_use(kind)));
        }
        if other.plural == plural {
            return Some(("PluralConflict", in_use(plural)));
        }
    }
    None
}

/// Cache of compiled definitions by UID, so that a change of one definition does not recompile the
/// patterns and rules of the others.
#[derive(Debug, Default)]
pub(crate) struct Definitions(Mutex<HashMap<String, Compiled>>);

#[derive(Debug)]
struct Compiled {
    /// Resource version of the definition.
    version: u64,
    /// `metadata.generation`: the kinds are recompiled when it changes.
    generation: Option<i64>,
    is_established: bool,
    kinds: Vec<Arc<ResourceType>>,
}

impl Compiled {
    fn new(stored: &Stored, known: Option<Self>) -> Self {
        let known = match known {
            Some(known) if known.version == stored.version => return known,
            known => known,
        };
        let object = stored.decode();
        let generation = object
            .at(&["metadata", "generation"])
            .and_then(Value::as_i64);
        let kinds = match known {
            Some(known) if generation.is_some() && known.generation == generation => known.kinds,
            _ => definition::resource_types(&object),
        };
        Self {
            version: stored.version,
            generation,
            is_established: condition(&object, "Established") == Some("True"),
            kinds,
        }
    }
}

impl Definitions {
    /// Compiles new and changed definitions, drops deleted ones, and returns the kinds of the
    /// established ones.
    fn established(&self, stored: &[Arc<Stored>]) -> Vec<Arc<ResourceType>> {
        let mut known = self.0.lock();
        let mut fresh = HashMap::with_capacity(stored.len());
        let mut kinds = Vec::new();
        for definition in stored {
            let uid = definition.uid.to_string();
            let compiled = Compiled::new(definition, known.remove(&uid));
            if compiled.is_established {
                kinds.extend(compiled.kinds.iter().cloned());
            }
            fresh.insert(uid, compiled);
        }
        *known = fresh;
        kinds
    }
}

/// Serves the kinds of all established definitions. Watches of kinds whose versions changed are
/// closed.
pub(crate) fn serve_established(api: &Api) {
    let storage: StorageId = format!("customresourcedefinitions.{GROUP}").into();
    let (definitions, _) = api.store.all(&storage, &Filter::default());
    let before = api.registry.served();
    let types = api.definitions.established(&definitions);
    let new: HashMap<(&str, &str), &Arc<ResourceType>> = types
        .iter()
        .map(|new| ((&*new.storage, new.version.as_str()), new))
        .collect();
    let stored: HashSet<&str> = types.iter().map(|new| &*new.storage).collect();
    let mut rebuilt: Vec<StorageId> = Vec::new();
    for old in before.types().filter(|kind| kind.is_custom()) {
        let now = new.get(&(&*old.storage, old.version.as_str()));
        let same = now.is_some_and(|new| Arc::ptr_eq(new, old) || same_version(new, old));
        if !same && stored.contains(&*old.storage) {
            rebuilt.push(old.storage.clone());
        }
    }
    api.registry.set_custom(types);
    for storage in rebuilt {
        api.store.close_watches(&storage);
    }
}

fn same_version(new: &ResourceType, old: &ResourceType) -> bool {
    match (&new.custom, &old.custom) {
        (Some(new_custom), Some(old_custom)) => {
            new_custom.schema == old_custom.schema
                && new_custom.storage_api_version == old_custom.storage_api_version
                && new.subresources == old.subresources
        }
        _ => false,
    }
}

/// Deletes the instances, then the definition, and closes the watches after [`WATCHES_LINGER`].
fn clean_up(api: &Arc<Api>, kind: &Arc<ResourceType>, stored: &Stored) {
    let object = stored.decode();
    let spec = |path: &[&str]| object.at(path).and_then(Value::as_str).unwrap_or_default();
    let storage: StorageId = format!(
        "{}.{}",
        spec(&["spec", "names", "plural"]),
        spec(&["spec", "group"])
    )
    .into();
    if condition(&object, "Terminating").is_none() {
        let writer = api.store.write();
        let scope = write::scope(api, &writer, kind);
        let Some(current) = writer.get(&kind.storage, &stored.key) else {
            return;
        };
        let mut object = current.decode();
        let text = "CustomResource deletion is in progress";
        let reason = "InstanceDeletionInProgress";
        set_condition(api, &mut object, "Terminating", "True", reason, text);
        write::store(&scope, object, DryRun::No);
    }
    let served = api.registry.served();
    if let Some(instance) = served.types().find(|kind| kind.storage == storage) {
        crate::controllers::delete_all(api, instance, &Filter::default());
    }
    if !api.store.all(&storage, &Filter::default()).0.is_empty() {
        return;
    }
    let writer = api.store.write();
    let scope = write::scope(api, &writer, kind);
    let Some(current) = writer.get(&kind.storage, &stored.key) else {
        return;
    };
    let mut last = current.decode();
    last.remove_finalizer(CLEANUP_FINALIZER);
    if last.finalizers().is_empty() {
        write::finish_deletion(&scope, &current, last, DryRun::No);
    } else {
        write::store(&scope, last, DryRun::No);
    }
    drop(writer);
    let api = api.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = tokio::time::sleep(WATCHES_LINGER) => api.store.close_watches(&storage),
            () = api.shutdown.cancelled() => {}
        }
    });
}
