//! Filter of lists and watches: namespace, labels, fields.

mod index;

use std::sync::OnceLock;

use weft_model::LabelSelector;

use self::index::Index;
use super::object::Stored;
use crate::kind::{FieldCondition, FieldRef};

/// Namespace, label selector and field selector of one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    pub(crate) namespace: Option<String>,
    pub(crate) labels: LabelSelector,
    pub(crate) fields: Vec<FieldCondition>,
    /// Of more requirements than [`FEW`], made for the first object.
    index: OnceLock<Index>,
}

/// Requirements that are compared one by one, which is all that people write.
const FEW: usize = 16;

impl Filter {
    pub(crate) fn new(
        namespace: Option<&str>,
        labels: LabelSelector,
        fields: Vec<FieldCondition>,
    ) -> Self {
        Self {
            namespace: namespace.map(str::to_owned),
            labels,
            fields,
            index: OnceLock::new(),
        }
    }

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
        if self.labels.requirements().len() + self.fields.len() > FEW {
            let index = || Index::new(&self.labels, &self.fields);
            return self.index.get_or_init(index).matches(object);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::kind::{Registry, ResourceType};

    fn kind(registry: &Registry) -> std::sync::Arc<ResourceType> {
        let served = registry.served();
        served.of_kind("", "ConfigMap").unwrap().clone()
    }

    fn requirement() -> impl Strategy<Value = String> {
        let value = "[1-4]{0,2}";
        prop_oneof![
            "!?[a-c]",
            ("[a-c]", "=|!=", value).prop_map(|(key, sign, value)| key + &sign + &value),
            ("[a-c]", "in|notin", "[1-4](,[1-4]){0,3}")
                .prop_map(|(key, operator, values)| format!("{key} {operator} ({values})")),
            ("[a-c]", ">|<", "[1-4]{1,2}").prop_map(|(key, sign, value)| key + &sign + &value),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2048) })]

        #[test]
        fn many_requirements_match_what_each_of_them_matches(
            labels in prop::collection::vec(requirement(), 0..5),
            fields in prop::collection::vec("metadata\\.name(=|!=)[m-o]", 0..3),
            found in prop::collection::btree_map("[a-c]", "[1-4]{0,2}|x", 0..3),
            name in "[m-o]",
        ) {
            let kind = kind(&Registry::new());
            let object = json!({"metadata": {"name": name, "labels": found}});
            let serde_json::Value::Object(object) = object else { unreachable!() };
            let object = Stored::new(&kind, object);
            let labels = LabelSelector::parse(&labels.join(",")).unwrap();
            let fields = weft_model::FieldSelector::parse(&fields.join(",")).unwrap();
            let fields = kind.fields.resolve(&fields).unwrap();
            let indexed = Index::new(&labels, &fields).matches(&object);
            let filter = Filter::new(None, labels, fields);
            prop_assert_eq!(indexed, filter.matches(&object));
        }
    }
}
