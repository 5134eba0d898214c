//! Controllers that clients rely on: garbage collection, namespace deletion, definitions.
//!
//! One task per server. Writes and removals queue work and wake it; it never polls.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use weft_model::SharedStr;

use crate::{
    api::Api,
    handler::{delete, write},
    kind::{ResourceType, StorageId},
    meta::Meta as _,
    options::{DeleteOptions, DryRun, Propagation},
    store::{Filter, Object, Store, Stored, object_key},
};

/// Work of the controllers, queued by writes and removals so that none has to scan the store.
#[derive(Debug, Default)]
pub(crate) struct ControllerQueue(Mutex<Queue>);

type ObjectRef = (StorageId, Arc<str>);

#[derive(Debug, Default)]
struct Queue {
    /// UIDs of deleted owners whose dependents are still to be checked.
    owners: Vec<SharedStr>,
    /// Objects whose owners may be deleted.
    candidates: Vec<ObjectRef>,
    /// Deleted owners with the finalizer `foregroundDeletion` or `orphan`.
    waiting: BTreeSet<ObjectRef>,
    /// Namespaces that are being deleted.
    terminating: BTreeSet<Arc<str>>,
}

impl ControllerQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock()
    }

    /// Queues the work that follows from a write; true when the task must be woken.
    pub(crate) fn written(&self, kind: &ResourceType, stored: &Stored) -> bool {
        let mut queue = self.lock();
        let reference = || (kind.storage.clone(), stored.key.clone());
        if !stored.owners.is_empty() {
            queue.candidates.push(reference());
        }
        let has = |text: &[u8]| {
            stored
                .bytes
                .windows(text.len())
                .any(|window| window == text)
        };
        let deleting = has(b"\"deletionTimestamp\"");
        if deleting && (has(b"\"foregroundDeletion\"") || has(b"\"orphan\"")) {
            queue.waiting.insert(reference());
        }
        if deleting && kind.is("", "Namespace") {
            queue.terminating.insert(stored.key.clone());
        }
        !stored.owners.is_empty() || deleting || kind.kind == "CustomResourceDefinition"
    }

    /// Queues the work that follows from a removal; true when the task must be woken.
    pub(crate) fn removed(&self, store: &Store, stored: &Stored) -> bool {
        let mut queue = self.lock();
        let owned = store.has_dependents(&stored.uid);
        if owned {
            queue.owners.push(stored.uid.clone());
        }
        owned || !queue.waiting.is_empty() || !queue.terminating.is_empty()
    }
}

/// Runs all controllers each time it is woken, until the server shuts down.
pub(crate) async fn run(api: Arc<Api>) {
    loop {
        tokio::select! {
            () = api.shutdown.cancelled() => return,
            () = api.wake_controllers.notified() => {}
        }
        let _guard = api.write_lock.shared().await;
        crate::write_lock::off_worker(|| {
            crate::custom::reconcile(&api);
            collect(&api);
            finish_foreground_deletions(&api);
            terminate_namespaces(&api);
        });
    }
}

/// Deletes all matching objects of a kind; finalizers still apply.
pub(crate) fn delete_all(api: &Arc<Api>, kind: &ResourceType, filter: &Filter) {
    let (items, _) = api.store.all(&kind.storage, filter);
    for stored in items {
        delete_one(api, kind, &stored.key, &DeleteOptions::default());
    }
}

fn delete_one(api: &Api, kind: &ResourceType, key: &str, options: &DeleteOptions) {
    let writer = api.store.write();
    let scope = write::scope(api, &writer, kind);
    if let Some(stored) = writer.get(&kind.storage, key)
        && let Err(error) = delete::delete_object(&scope, &stored, options)
    {
        tracing::debug!(key, ?error, "cannot delete object");
    }
}

/// Garbage collector: deletes objects whose owners are all deleted.
fn collect(api: &Arc<Api>) {
    let (owners, mut suspects) = {
        let mut queue = api.controller_queue.lock();
        (
            std::mem::take(&mut queue.owners),
            std::mem::take(&mut queue.candidates),
        )
    };
    for owner in &owners {
        let dependents = api.store.dependents(owner).into_iter();
        suspects.extend(dependents.map(|(storage, stored)| (storage, stored.key.clone())));
    }
    let served = api.registry.served();
    for (storage, key) in suspects {
        let Some(kind) = served.types().find(|kind| kind.storage == storage) else {
            continue;
        };
        let Some(stored) = api.store.get(&storage, &key) else {
            continue;
        };
        let object = stored.decode();
        let references = owner_references(&object);
        if !references.is_empty()
            && references
                .iter()
                .all(|owner| is_among(&owners, owner) || !owner_exists(api, &object, owner))
        {
            let background = DeleteOptions {
                propagation: Some(Propagation::Background),
                ..Default::default()
            };
            delete_one(api, kind, &key, &background);
        }
    }
}

fn owner_references(object: &Object) -> Vec<Value> {
    let owners = object
        .at(&["metadata", "ownerReferences"])
        .and_then(Value::as_array);
    owners.cloned().unwrap_or_default()
}

/// True when the owner was just deleted; its kind may no longer be served, so it is not looked up.
fn is_among(deleted: &[SharedStr], owner: &Value) -> bool {
    let uid = owner.get("uid").and_then(Value::as_str);
    uid.is_some_and(|uid| deleted.iter().any(|known| known.as_str() == uid))
}

fn owner_exists(api: &Api, dependent: &Object, owner: &Value) -> bool {
    let text = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or_default();
    let group = text("apiVersion")
        .split_once('/')
        .map_or("", |(group, _)| group);
    let served = api.registry.served();
    // The existence of an owner of an unknown kind cannot be checked: its dependents stay.
    let Some(kind) = served.of_kind(group, text("kind")) else {
        return true;
    };
    let namespace = if kind.namespaced {
        dependent.namespace()
    } else {
        ""
    };
    let stored = api
        .store
        .get(&kind.storage, &object_key(namespace, text("name")));
    stored.is_some_and(|stored| stored.uid == text("uid"))
}

/// Finishes deletions with `foregroundDeletion` or `orphan`: deletes or orphans the dependents,
/// then removes the finalizer.
fn finish_foreground_deletions(api: &Arc<Api>) {
    let served = api.registry.served();
    let waiting: Vec<ObjectRef> = api
        .controller_queue
        .lock()
        .waiting
        .iter()
        .cloned()
        .collect();
    for reference in waiting {
        let (storage, key) = &reference;
        let kind = served.types().find(|kind| kind.storage == *storage);
        let (Some(kind), Some(stored)) = (kind, api.store.get(storage, key)) else {
            api.controller_queue.lock().waiting.remove(&reference);
            continue;
        };
        let object = stored.decode();
        if object.finalizers().contains(&"orphan") {
            orphan_dependents(api, &stored);
            remove_finalizer(api, kind, &stored, "orphan");
        } else if object.finalizers().contains(&"foregroundDeletion")
            && delete_dependents(api, &stored)
        {
            remove_finalizer(api, kind, &stored, "foregroundDeletion");
        }
    }
}

/// Deletes the dependents of an owner; true when none with `blockOwnerDeletion` is left.
fn delete_dependents(api: &Arc<Api>, owner: &Stored) -> bool {
    let served = api.registry.served();
    let mut blocked = false;
    for (storage, stored) in api.store.dependents(&owner.uid) {
        let object = stored.decode();
        let blocks = owner_references(&object).iter().any(|reference| {
            reference.get("uid") == Some(&json!(owner.uid.as_str()))
                && reference.get("blockOwnerDeletion") == Some(&json!(true))
        });
        if let Some(kind) = served.types().find(|kind| kind.storage == storage)
            && !object.is_deleting()
        {
            let foreground = DeleteOptions {
                propagation: Some(Propagation::Foreground),
                ..Default::default()
            };
            delete_one(api, kind, &stored.key, &foreground);
            api.wake_controllers.notify_one();
        }
        blocked |= blocks && api.store.get(&storage, &stored.key).is_some();
    }
    !blocked
}

fn orphan_dependents(api: &Arc<Api>, owner: &Stored) {
    let served = api.registry.served();
    for (storage, stored) in api.store.dependents(&owner.uid) {
        let Some(kind) = served.types().find(|kind| kind.storage == storage) else {
            continue;
        };
        let writer = api.store.write();
        let scope = write::scope(api, &writer, kind);
        let Some(current) = writer.get(&storage, &stored.key) else {
            continue;
        };
        let mut object = current.decode();
        let left: Vec<Value> = owner_references(&object)
            .into_iter()
            .filter(|reference| reference.get("uid") != Some(&json!(owner.uid.as_str())))
            .collect();
        if left.is_empty() {
            object.metadata_mut().remove("ownerReferences");
        } else {
            object
                .metadata_mut()
                .insert("ownerReferences".into(), left.into());
        }
        write::store(&scope, object, DryRun::No);
    }
}

fn remove_finalizer(api: &Api, kind: &ResourceType, stored: &Stored, name: &str) {
    let writer = api.store.write();
    let scope = write::scope(api, &writer, kind);
    let Some(current) = writer.get(&kind.storage, &stored.key) else {
        return;
    };
    let mut object = current.decode();
    object.remove_finalizer(name);
    if write::is_gone(kind, &object) {
        write::finish_deletion(&scope, &current, object, DryRun::No);
    } else {
        write::store(&scope, object, DryRun::No);
    }
}

/// Deletes the content of terminating namespaces, then the empty namespaces.
fn terminate_namespaces(api: &Arc<Api>) {
    let served = api.registry.served();
    let Some(namespaces) = served.find("", "v1", "namespaces") else {
        return;
    };
    let terminating: Vec<Arc<str>> = api
        .controller_queue
        .lock()
        .terminating
        .iter()
        .cloned()
        .collect();
    for name in terminating {
        let Some(stored) = api.store.get(&namespaces.storage, &name) else {
            api.controller_queue.lock().terminating.remove(&name);
            continue;
        };
        let filter = Filter::in_namespace(Some(&stored.name));
        for storage in api.store.occupied(&stored.name) {
            if let Some(kind) = served.types().find(|kind| kind.storage == storage) {
                let (items, _) = api.store.all(&storage, &filter);
                for item in items {
                    // No kubelet ends the grace period of these Pods.
                    let now = DeleteOptions {
                        grace: Some(0),
                        ..Default::default()
                    };
                    delete_one(api, kind, &item.key, &now);
                }
            }
        }
        if api.store.occupied(&stored.name).is_empty() {
            remove_namespace(api, namespaces, &stored);
        }
    }
}

fn remove_namespace(api: &Api, kind: &ResourceType, stored: &Stored) {
    let writer = api.store.write();
    let scope = write::scope(api, &writer, kind);
    let Some(current) = writer.get(&kind.storage, &stored.key) else {
        return;
    };
    let object = current.decode();
    let finalizers = object.at(&["spec", "finalizers"]).and_then(Value::as_array);
    let only_ours = finalizers.is_none_or(|list| list.iter().all(|name| name == "kubernetes"));
    if only_ours && object.finalizers().is_empty() {
        write::finish_deletion(&scope, &current, object, DryRun::No);
    }
}
