//! Resource types: names, scope, and the rules that differ between kinds.
//!
//! A [`ResourceType`] is one kind in one version. Built-in ones come from the table in
//! [`builtin`], custom ones from CustomResourceDefinitions; handlers treat both alike.

pub(crate) mod builtin;
mod fields;
pub(crate) mod registry;

use std::sync::Arc;

pub(crate) use fields::{Field, FieldCondition, FieldRef, FieldTable};
pub(crate) use registry::Registry;

use crate::custom::CustomVersion;

/// Name of a kind's collection in the store: `plural.group`, the same for all its versions.
pub(crate) type StorageId = Arc<str>;

/// One kind in one served version.
#[derive(Debug)]
pub(crate) struct ResourceType {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) storage: StorageId,
    pub(crate) rules: Rules,
    pub(crate) subresources: Vec<Subresource>,
    pub(crate) fields: FieldTable,
    /// Schema, columns and scale paths of a custom resource; `None` for built-in kinds.
    pub(crate) custom: Option<Arc<CustomVersion>>,
    /// The first bytes of every encoded object of this type, up to the third member.
    pub(crate) prefix: String,
}

impl ResourceType {
    /// The `apiVersion`: `v1` or `apps/v1`.
    pub(crate) fn api_version(&self) -> String {
        group_version(&self.group, &self.version)
    }

    /// `configmaps` or `deployments.apps`, as errors name a resource.
    pub(crate) fn qualified_resource(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    /// `ConfigMap` or `Deployment.apps`.
    pub(crate) fn qualified_kind(&self) -> String {
        qualified(&self.kind, &self.group)
    }

    pub(crate) fn has(&self, subresource: Subresource) -> bool {
        self.subresources.contains(&subresource)
    }

    pub(crate) fn is(&self, group: &str, kind: &str) -> bool {
        self.custom.is_none() && self.group == group && self.kind == kind
    }

    pub(crate) fn is_custom(&self) -> bool {
        self.custom.is_some()
    }

    pub(crate) fn origin(&self) -> Origin {
        match self.custom {
            Some(_) => Origin::Custom,
            None => Origin::Builtin,
        }
    }
}

/// The source of a resource type; encodings and media types differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Builtin,
    Custom,
}

/// The first bytes of encoded objects: custom resources begin with apiVersion, the others with kind.
pub(crate) fn prefix(group: &str, version: &str, kind: &str, origin: Origin) -> String {
    let api_version = group_version(group, version);
    if origin == Origin::Custom {
        format!("{{\"apiVersion\":\"{api_version}\",\"kind\":\"{kind}\",")
    } else {
        format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",")
    }
}

/// `version` for the core group, `group/version` for the others.
pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{group}")
    }
}

/// Behaviour that differs between kinds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// PUT of a missing object creates it.
    pub(crate) create_on_update: bool,
    /// PUT without a resource version overwrites.
    pub(crate) unconditional_update: bool,
    /// DELETE returns the object instead of a Status.
    pub(crate) returns_deleted: bool,
    pub(crate) status: StatusRule,
    pub(crate) generation: GenerationRule,
    pub(crate) name: NameRule,
    pub(crate) verbs: Verbs,
}

/// The way `status` is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusRule {
    /// No status subresource: `status` is an ordinary field.
    Plain,
    /// Only through the subresource, which changes nothing else.
    Separate,
    /// Only through the subresource, which also changes labels and annotations.
    SeparateWithMetadata,
    /// Kept on create; afterwards only through the subresource, which also changes metadata.
    KeptOnCreate,
}

impl StatusRule {
    pub(crate) fn is_separate(self) -> bool {
        self != Self::Plain
    }
}

/// Changes that increment `metadata.generation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GenerationRule {
    /// None: the server does not touch it, a value of the client is stored.
    Untouched,
    /// Any change outside of metadata and status.
    Content,
    /// Any change outside of metadata and status, or of annotations.
    ContentAndAnnotations,
    /// Any change except of server-set metadata: labels count.
    ContentAndLabels,
}

/// Syntax of object names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameRule {
    Subdomain,
    Label,
    PathSegment,
    Address,
}

/// Verbs of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbs {
    All,
    /// All but deletecollection.
    NoDeleteCollection,
    /// Reviews: answered, never stored.
    CreateOnly,
}

impl Verbs {
    pub(crate) fn names(self) -> &'static [&'static str] {
        match self {
            Self::All => &[
                "create",
                "delete",
                "deletecollection",
                "get",
                "list",
                "patch",
                "update",
                "watch",
            ],
            Self::NoDeleteCollection => &[
                "create", "delete", "get", "list", "patch", "update", "watch",
            ],
            Self::CreateOnly => &["create"],
        }
    }
}

/// A subresource, the path segment after an object's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Subresource {
    Status,
    Scale,
    Finalize,
    Binding,
    Eviction,
    Token,
    EphemeralContainers,
    Proxy,
}

impl Subresource {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "status" => Self::Status,
            "scale" => Self::Scale,
            "finalize" => Self::Finalize,
            "binding" => Self::Binding,
            "eviction" => Self::Eviction,
            "token" => Self::Token,
            "ephemeralcontainers" => Self::EphemeralContainers,
            "proxy" => Self::Proxy,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Finalize => "finalize",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::Token => "token",
            Self::EphemeralContainers => "ephemeralcontainers",
            Self::Proxy => "proxy",
        }
    }

    pub(crate) fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::Status | Self::Scale | Self::EphemeralContainers => &["get", "patch", "update"],
            Self::Finalize => &["update"],
            Self::Binding | Self::Eviction | Self::Token => &["create"],
            Self::Proxy => &["get"],
        }
    }

    /// Group, version and kind of request and response; `None` when that is the object itself.
    pub(crate) fn kind(self) -> Option<(&'static str, &'static str, &'static str)> {
        match self {
            Self::Scale => Some(("autoscaling", "v1", "Scale")),
            Self::Binding => Some(("", "v1", "Binding")),
            Self::Eviction => Some(("policy", "v1", "Eviction")),
            Self::Token => Some(("authentication.k8s.io", "v1", "TokenRequest")),
            Self::Proxy => Some(("", "v1", "PodProxyOptions")),
            Self::Status | Self::Finalize | Self::EphemeralContainers => None,
        }
    }
}
