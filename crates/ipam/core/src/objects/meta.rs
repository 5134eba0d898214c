use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weft_model::{SharedStr, null_is_default};

use super::FINALIZER;

/// `metadata`, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// The name.
    pub name: SharedStr,
    /// The namespace, unless the kind has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<SharedStr>,
    /// The identity.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub uid: SharedStr,
    /// The state.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub resource_version: SharedStr,
    /// Counts changes of the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// When it was made, in RFC 3339: texts of the same form are ordered as the times are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<SharedStr>,
    /// Since when it is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<SharedStr>,
    /// Labels.
    #[serde(
        deserialize_with = "null_is_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<SharedStr, SharedStr>,
    /// Who has to agree before it goes.
    #[serde(
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub finalizers: Vec<SharedStr>,
    /// Whose it is.
    #[serde(
        deserialize_with = "null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub owner_references: Vec<OwnerReference>,
}

impl Meta {
    /// Whether our finalizer is on it.
    pub fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|name| &**name == FINALIZER)
    }

    /// The identity of the Node that manages the object, if one does.
    pub fn controlling_node(&self) -> Option<&SharedStr> {
        let mut owners = self.owner_references.iter();
        let owner = owners.find(|owner| owner.controller && &*owner.kind == "Node");
        owner.map(|owner| &owner.uid)
    }
}

/// An owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// `group/version` of the owner.
    pub api_version: SharedStr,
    /// Its kind.
    pub kind: SharedStr,
    /// Its name.
    pub name: SharedStr,
    /// Its identity.
    pub uid: SharedStr,
    /// Whether it manages the object.
    pub controller: bool,
}

/// Whether a number need not be written.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands out references"
)]
pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}
