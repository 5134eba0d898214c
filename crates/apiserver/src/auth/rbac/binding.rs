//! A RoleBinding or ClusterRoleBinding in parsed form: its role and its subjects.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use serde_json::Value;

use crate::{
    meta::Meta as _,
    store::{Object, Stored, object_key},
};

/// The role a binding refers to.
#[derive(Debug)]
pub(in crate::auth) enum RoleReference {
    /// The role's key.
    Role(String),
    /// The role's name.
    ClusterRole(String),
}

impl RoleReference {
    /// `None` when `roleRef` is neither a Role nor a ClusterRole.
    pub(in crate::auth) fn read(binding: &Object, namespace: &str) -> Option<Self> {
        let text = |name: &str| binding.at(&["roleRef", name]).and_then(Value::as_str);
        let name = text("name").unwrap_or_default();
        match text("kind") {
            Some("Role") => Some(Self::Role(object_key(namespace, name))),
            Some("ClusterRole") => Some(Self::ClusterRole(name.to_owned())),
            _ => None,
        }
    }

    pub(in crate::auth) fn resource(&self) -> &'static str {
        match self {
            Self::Role(_) => "roles",
            Self::ClusterRole(_) => "clusterroles",
        }
    }
}

/// The identity of a subject. A ServiceAccount is the user `system:serviceaccount:…`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Identity {
    User(Arc<str>),
    Group(Arc<str>),
}

/// A subject as the reason for a grant shows it; of several the least is shown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shown {
    /// The position in the binding comes first.
    Subject(usize, Box<str>),
    /// A ServiceAccount without a namespace, which upstream does not show.
    Hidden,
}

/// A RoleBinding, or a ClusterRoleBinding when it has no namespace.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) name: Box<str>,
    pub(super) namespace: Arc<str>,
    role_kind: Box<str>,
    role_name: Box<str>,
    pub(super) role: Option<RoleReference>,
    /// Each identity once, even if the binding lists it several times.
    pub(super) subjects: HashMap<Identity, Shown>,
}

impl Binding {
    pub(super) fn read(stored: &Stored) -> Self {
        let object = stored.decode();
        let namespace: &str = &stored.namespace;
        let role = |name: &str| {
            let value = object.at(&["roleRef", name]).and_then(Value::as_str);
            value.unwrap_or_default().into()
        };
        let listed = object.get("subjects").and_then(Value::as_array);
        let mut subjects = HashMap::new();
        for (position, subject) in listed.into_iter().flatten().enumerate() {
            let Some((identity, shown)) = read_subject(subject, position, namespace) else {
                continue;
            };
            match subjects.entry(identity) {
                Entry::Occupied(mut known) if shown < *known.get() => drop(known.insert(shown)),
                Entry::Occupied(_) => {}
                Entry::Vacant(vacant) => drop(vacant.insert(shown)),
            }
        }
        subjects.shrink_to_fit();
        Self {
            name: (&*stored.name).into(),
            role_kind: role("kind"),
            role_name: role("name"),
            role: RoleReference::read(&object, namespace),
            namespace: namespace.into(),
            subjects,
        }
    }

    /// Upstream's message for a grant by this binding.
    pub(super) fn reason(&self, shown: &Shown) -> String {
        let (kind, name) = if self.namespace.is_empty() {
            ("ClusterRoleBinding", self.name.to_string())
        } else {
            ("RoleBinding", format!("{}/{}", self.name, self.namespace))
        };
        let subject = match shown {
            Shown::Subject(_, text) => text,
            Shown::Hidden => "",
        };
        format!(
            "RBAC: allowed by {kind} {name:?} of {} {:?} to {subject}",
            self.role_kind, self.role_name
        )
    }
}

fn read_subject(subject: &Value, position: usize, namespace: &str) -> Option<(Identity, Shown)> {
    let text = |name: &str| {
        let value = subject.get(name).and_then(Value::as_str);
        value.unwrap_or_default()
    };
    let name = text("name");
    let shown = |text: String| Shown::Subject(position, text.into());
    Some(match text("kind") {
        "User" => (Identity::User(name.into()), shown(format!("User {name:?}"))),
        "Group" => (
            Identity::Group(name.into()),
            shown(format!("Group {name:?}")),
        ),
        "ServiceAccount" => {
            let own = text("namespace");
            let (home, shown) = if own.is_empty() && !namespace.is_empty() {
                (namespace, Shown::Hidden)
            } else {
                (own, shown(format!("ServiceAccount \"{name}/{own}\"")))
            };
            let user = format!("system:serviceaccount:{home}:{name}");
            (Identity::User(user.into()), shown)
        }
        _ => return None,
    })
}
