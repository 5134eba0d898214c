//! Index of parsed roles and bindings by the identities that bindings name.
//!
//! Refreshed from the store's change log: a change costs as much as the changed object, and a
//! decision as much as the bindings of the user, independent of the size of the cluster.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::{RwLock, RwLockReadGuard};

use super::{
    GROUP,
    binding::{Binding, Identity, RoleReference, Shown},
    cluster_roles::{ClusterRoles, Role},
};
use crate::{
    auth::User,
    kind::StorageId,
    store::{DeltaContent, Store, Stored},
};

/// The indexed collections.
#[derive(Debug, Clone, Copy)]
enum Part {
    ClusterRoleBindings,
    RoleBindings,
    ClusterRoles,
    Roles,
}

const PARTS: [Part; 4] = [
    Part::ClusterRoleBindings,
    Part::RoleBindings,
    Part::ClusterRoles,
    Part::Roles,
];

/// The index of one server; every read refreshes it to the store's newest version.
#[derive(Debug)]
pub(in crate::auth) struct Index {
    storages: [StorageId; 4],
    content: RwLock<Content>,
}

impl Default for Index {
    fn default() -> Self {
        let plurals = [
            "clusterrolebindings",
            "rolebindings",
            "clusterroles",
            "roles",
        ];
        Self {
            storages: plurals.map(|plural| format!("{plural}.{GROUP}").into()),
            content: RwLock::default(),
        }
    }
}

impl Index {
    pub(in crate::auth) fn read(&self, store: &Store) -> RwLockReadGuard<'_, Content> {
        let newest = store.newest(&self.storages);
        let content = self.content.read();
        if content.is_current(&newest) {
            return content;
        }
        drop(content);
        let mut content = self.content.write();
        content.refresh(store, &self.storages);
        // Between the two locks another thread may only make the index newer.
        drop(content);
        self.content.read()
    }
}

/// A binding that names an identity. Sorted so that the bindings of one identity in one namespace
/// are adjacent, by name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mention {
    /// Empty for a ClusterRoleBinding.
    namespace: Arc<str>,
    identity: Identity,
    /// The key of the binding.
    binding: Arc<str>,
}

#[derive(Debug, Default)]
pub(in crate::auth) struct Content {
    /// The newest change seen of each part.
    seen: [Option<u64>; 4],
    /// The stored object that each entry was parsed from. Injected objects may repeat versions and
    /// UIDs, so entries are compared by the object itself.
    sources: [HashMap<Arc<str>, Arc<Stored>>; 4],
    /// ClusterRoleBindings by name, RoleBindings by namespace and name.
    bindings: HashMap<(BindingScope, Arc<str>), Binding>,
    mentions: BTreeSet<Mention>,
    cluster_roles: ClusterRoles,
    /// By namespace and name.
    roles: HashMap<Arc<str>, [Arc<Role>; 1]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum BindingScope {
    Cluster,
    Namespace,
}

/// A binding of the user with its role and the roles that one aggregates.
pub(super) struct Grant<'a> {
    binding: &'a Binding,
    shown: &'a Shown,
    roles: &'a [Arc<Role>],
}

impl<'a> Grant<'a> {
    pub(super) fn rules(&self) -> impl Iterator<Item = &'a serde_json::Value> + use<'a> {
        self.roles.iter().flat_map(|role| &role.rules)
    }

    pub(super) fn reason(&self) -> String {
        self.binding.reason(self.shown)
    }
}

impl Content {
    fn is_current(&self, newest: &[u64; 4]) -> bool {
        let mut parts = self.seen.iter().zip(newest);
        parts.all(|(seen, newest)| seen.is_some_and(|seen| seen >= *newest))
    }

    fn refresh(&mut self, store: &Store, storages: &[StorageId; 4]) {
        for part in PARTS {
            let position = part as usize;
            let delta = store.delta_since(&storages[position], self.seen[position]);
            match delta.content {
                DeltaContent::Changes(changes) => {
                    for change in changes {
                        let side = change.new.as_ref().or(change.old.as_ref());
                        if let Some(key) = side.map(|object| object.key.clone()) {
                            self.set(part, &key, change.new.as_ref());
                        }
                    }
                }
                DeltaContent::All(objects) => self.replace(part, &objects),
            }
            self.seen[position] = Some(delta.newest);
        }
    }

    fn replace(&mut self, part: Part, objects: &[Arc<Stored>]) {
        let present: BTreeMap<&Arc<str>, &Arc<Stored>> =
            objects.iter().map(|object| (&object.key, object)).collect();
        let known = self.sources[part as usize].keys();
        let gone: Vec<Arc<str>> = known
            .filter(|key| !present.contains_key(*key))
            .cloned()
            .collect();
        for key in &gone {
            self.set(part, key, None);
        }
        for (key, object) in present {
            self.set(part, key, Some(object));
        }
    }

    /// Updates the entry of one key; `None` removes it.
    fn set(&mut self, part: Part, key: &Arc<str>, stored: Option<&Arc<Stored>>) {
        let sources = &mut self.sources[part as usize];
        let old = match stored {
            Some(stored) => sources.insert(key.clone(), stored.clone()),
            None => sources.remove(key),
        };
        if let (Some(old), Some(stored)) = (&old, stored)
            && Arc::ptr_eq(old, stored)
        {
            return;
        }
        match part {
            Part::ClusterRoleBindings => self.set_binding(BindingScope::Cluster, key, stored),
            Part::RoleBindings => self.set_binding(BindingScope::Namespace, key, stored),
            Part::ClusterRoles => {
                let role = stored.map(|stored| Role::read(stored));
                self.cluster_roles.set(key, role);
            }
            Part::Roles => match stored {
                Some(stored) => {
                    let role = [Arc::new(Role::read(stored))];
                    self.roles.insert(key.clone(), role);
                }
                None => drop(self.roles.remove(key)),
            },
        }
    }

    fn set_binding(&mut self, scope: BindingScope, key: &Arc<str>, stored: Option<&Arc<Stored>>) {
        let place = (scope, key.clone());
        let mention = |binding: &Binding, identity: &Identity| Mention {
            namespace: binding.namespace.clone(),
            identity: identity.clone(),
            binding: key.clone(),
        };
        if let Some(old) = self.bindings.remove(&place) {
            for identity in old.subjects.keys() {
                self.mentions.remove(&mention(&old, identity));
            }
        }
        if let Some(stored) = stored {
            let new = Binding::read(stored);
            let mentions = new.subjects.keys().map(|identity| mention(&new, identity));
            self.mentions.extend(mentions);
            self.bindings.insert(place, new);
        }
    }

    /// The bindings of a user: ClusterRoleBindings first, then RoleBindings of the namespace.
    pub(super) fn grants<'a>(
        &'a self,
        user: &User,
        namespace: &'a str,
    ) -> impl Iterator<Item = Grant<'a>> + use<'a> {
        let groups = user
            .groups
            .iter()
            .map(|group| Identity::Group((&**group).into()));
        let name = Identity::User((&*user.name).into());
        let identities: Vec<Identity> = groups.chain([name]).collect();
        let scopes = [
            Some((BindingScope::Cluster, "")),
            (!namespace.is_empty()).then_some((BindingScope::Namespace, namespace)),
        ];
        scopes
            .into_iter()
            .flatten()
            .flat_map(move |(scope, namespace)| {
                // By the key of the binding, with the subject to show.
                let mut named: BTreeMap<&Arc<str>, (&Binding, &Shown)> = BTreeMap::new();
                for identity in &identities {
                    let first = Mention {
                        namespace: namespace.into(),
                        identity: identity.clone(),
                        binding: "".into(),
                    };
                    let mentions = self.mentions.range(&first..).take_while(|mention| {
                        *mention.namespace == *namespace && mention.identity == *identity
                    });
                    for Mention { binding: key, .. } in mentions {
                        let binding = self.bindings.get(&(scope, key.clone()));
                        let Some(binding) = binding else { continue };
                        let Some(shown) = binding.subjects.get(identity) else {
                            continue;
                        };
                        let known = named.entry(key).or_insert((binding, shown));
                        known.1 = known.1.min(shown);
                    }
                }
                named.into_values().map(|(binding, shown)| Grant {
                    binding,
                    shown,
                    roles: binding
                        .role
                        .as_ref()
                        .and_then(|role| self.roles(role))
                        .unwrap_or_default(),
                })
            })
    }

    /// The role and those it aggregates; `None` when the role does not exist.
    pub(super) fn roles(&self, reference: &RoleReference) -> Option<&[Arc<Role>]> {
        match reference {
            RoleReference::Role(key) => self.roles.get(&**key).map(|role| &role[..]),
            RoleReference::ClusterRole(name) => self.cluster_roles.find(name),
        }
    }
}
