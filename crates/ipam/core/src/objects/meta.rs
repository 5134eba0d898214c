//! Object metadata: the fields that are used here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weft_model::{SharedStr, null_is_default};

use super::FINALIZER;

/// The fields of `metadata` that are used here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Name of the object.
    pub name: SharedStr,
    /// Namespace; none for a cluster-scoped kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<SharedStr>,
    /// `metadata.uid`; empty if unset.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub uid: SharedStr,
    /// `metadata.resourceVersion`; empty if unset.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub resource_version: SharedStr,
    /// Incremented with every change of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Creation time in RFC 3339: texts of the same form sort like the times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<SharedStr>,
    /// Set once deletion was requested, in RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<SharedStr>,
    /// Labels of the object.
    #[serde(
        deserialize_with = "null_is_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<SharedStr, SharedStr>,
    /// Finalizers that delay the deletion.
    #[serde(
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub finalizers: Vec<SharedStr>,
    /// Owners of the object.
    #[serde(
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub owner_references: Vec<OwnerReference>,
}

impl Meta {
    /// True if [`FINALIZER`](super::FINALIZER) is set.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|name| &**name == FINALIZER)
    }

    /// UID of the Node that controls the object, if one does.
    pub fn controlling_node(&self) -> Option<&SharedStr> {
        let mut owners = self.owner_references.iter();
        let owner = owners.find(|owner| owner.controller && &*owner.kind == "Node");
        owner.map(|owner| &owner.uid)
    }
}

/// An entry of `ownerReferences`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// `group/version` of the owner.
    pub api_version: SharedStr,
    /// Kind of the owner.
    pub kind: SharedStr,
    /// Name of the owner.
    pub name: SharedStr,
    /// UID of the owner.
    pub uid: SharedStr,
    /// True for the managing controller.
    pub controller: bool,
}

/// Serde predicate: true if the number need not be written.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands out references"
)]
pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}
