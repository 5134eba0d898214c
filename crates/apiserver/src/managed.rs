//! Who manages which field.

use crate::{
    kind::Subresource, meta::Meta as _, options::WriteOptions, rules::Scene, store::Object,
};

/// How a manager came to a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Apply,
    Update,
}

/// Notes the manager of what changed.
pub(crate) fn record(
    _scene: &Scene<'_>,
    old: Option<&Object>,
    object: &mut Object,
    _options: &WriteOptions,
    _operation: Operation,
    _subresource: Option<Subresource>,
) {
    if let Some(old) = old.and_then(|old| old.metadata()) {
        crate::meta::copy_member(old, object.metadata_mut(), "managedFields");
    }
}

/// Whether the same managers manage the same fields.
pub(crate) fn same(old: &Object, new: &Object) -> bool {
    old.at(&["metadata", "managedFields"]) == new.at(&["metadata", "managedFields"])
}
