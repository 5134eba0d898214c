//! Filter of lists and watches: namespace, labels, fields.

use weft_model::LabelSelector;

use super::object::Stored;
use crate::kind::{FieldCondition, FieldRef};

/// Namespace, label selector and field selector of one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    pub(crate) namespace: Option<String>,
    pub(crate) labels: LabelSelector,
    pub(crate) fields: Vec<FieldCondition>,
}

impl Filter {
    pub(crate) fn in_namespace(namespace: Option<&str>) -> Self {
        Self {
            namespace: namespace.map(str::to_owned),
            ..Self::default()
        }
    }

    /// True with a label or field selector; the namespace does not count.
    pub(crate) fn is_selective(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Stored) -> bool {
        if self
            .namespace
            .as_deref()
            .is_some_and(|namespace| object.namespace != *namespace)
        {
            return false;
        }
        self.labels.matches(|key| object.label(key))
            && self.fields.iter().all(|condition| {
                condition
                    .requirement
                    .matches(field_value(object, condition.field))
            })
    }

    /// The only name that can match, if the field selector has one.
    pub(crate) fn pinned_name(&self) -> Option<&str> {
        self.pinned(FieldRef::Name)
    }

    fn pinned(&self, field: FieldRef) -> Option<&str> {
        let mut pins = self.fields.iter().filter_map(FieldCondition::pinned);
        pins.find(|(pinned, _)| *pinned == field)
            .map(|(_, value)| value)
    }
}

/// The value of a field in a stored object.
pub(super) fn field_value(object: &Stored, field: FieldRef) -> &str {
    match field {
        FieldRef::Name => &object.name,
        FieldRef::Namespace => &object.namespace,
        FieldRef::Stored(position) => object.fields.get(position).map_or("", |text| text.as_str()),
    }
}
