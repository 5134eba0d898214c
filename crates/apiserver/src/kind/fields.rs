//! Field selectors: the selectable fields of each kind.

use serde_json::Value;
use weft_model::{
    FieldSelector, SharedStr,
    selector::{FieldOperator, FieldRequirement},
};

use crate::status::{ApiError, Outcome};

/// Extraction of a field's text from an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extract {
    /// The text, empty when absent.
    Text,
    /// `true` or `false`, false when absent.
    Flag,
    /// The component of an Event's source, or else its reporting component.
    EventSource,
    /// A known field that never has a value.
    Nothing,
}

/// A selectable field other than name and namespace.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    /// The name in selectors of this version.
    pub(crate) label: String,
    /// Path in the stored object.
    pub(crate) path: Vec<String>,
    pub(crate) extract: Extract,
}

impl Field {
    pub(crate) fn new(label: &str, path: &str, extract: Extract) -> Self {
        let path = path.split('.').map(str::to_owned).collect();
        Self {
            label: label.to_owned(),
            path,
            extract,
        }
    }

    /// A field whose value is the string at its path.
    pub(crate) fn text(label: &str, path: &str) -> Self {
        Self::new(label, path, Extract::Text)
    }

    fn value(&self, object: &Value) -> SharedStr {
        let mut found = Some(object);
        for part in &self.path {
            found = found.and_then(|value| value.get(part));
        }
        let text = |value: Option<&Value>| match value {
            Some(Value::String(text)) => SharedStr::interned(text),
            Some(Value::Number(number)) => SharedStr::new(&number.to_string()),
            Some(Value::Bool(flag)) => SharedStr::interned(if *flag { "true" } else { "false" }),
            _ => SharedStr::interned(""),
        };
        match self.extract {
            Extract::Text => text(found),
            Extract::Flag => {
                let set = found.and_then(Value::as_bool).unwrap_or(false);
                SharedStr::interned(if set { "true" } else { "false" })
            }
            Extract::EventSource => match text(found) {
                source if source.is_empty() => text(object.get("reportingComponent")),
                source => source,
            },
            Extract::Nothing => SharedStr::interned(""),
        }
    }
}

/// The selectable fields of a kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct FieldTable {
    pub(crate) fields: Vec<Field>,
    /// Upstream has a conversion table for this kind, so its refusals have another wording.
    pub(crate) own_table: bool,
    /// `metadata.namespace` is refused, as for Nodes.
    pub(crate) no_namespace: bool,
}

/// A field of a selector, resolved for one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FieldRef {
    Name,
    Namespace,
    /// Index into [`crate::store::Stored::fields`].
    Stored(usize),
}

/// One condition of a field selector, resolved for one kind.
#[derive(Debug, Clone)]
pub(crate) struct FieldCondition {
    pub(crate) field: FieldRef,
    pub(crate) requirement: FieldRequirement,
}

impl FieldTable {
    /// The field values of a stored object, in the order of the table.
    pub(crate) fn values(&self, object: &Value) -> Box<[SharedStr]> {
        self.fields
            .iter()
            .map(|field| field.value(object))
            .collect()
    }

    /// Resolves the fields of a selector.
    pub(crate) fn resolve(&self, selector: &FieldSelector) -> Outcome<Vec<FieldCondition>> {
        selector
            .requirements()
            .iter()
            .map(|requirement| {
                let field = self.find(&requirement.field)?;
                Ok(FieldCondition {
                    field,
                    requirement: requirement.clone(),
                })
            })
            .collect()
    }

    fn find(&self, label: &str) -> Outcome<FieldRef> {
        match label {
            "metadata.name" => return Ok(FieldRef::Name),
            "metadata.namespace" if !self.no_namespace => return Ok(FieldRef::Namespace),
            _ => {}
        }
        if let Some(position) = self.fields.iter().position(|field| field.label == label) {
            return Ok(FieldRef::Stored(position));
        }
        Err(ApiError::bad_request(if self.own_table {
            format!("field label not supported: {label}")
        } else {
            format!(
                "{label:?} is not a known field selector: only \"metadata.name\", \
                 \"metadata.namespace\""
            )
        }))
    }
}

impl FieldCondition {
    /// The only value that the condition allows; `None` unless it is an equality.
    pub(crate) fn pinned(&self) -> Option<(FieldRef, &str)> {
        (self.requirement.operator == FieldOperator::Equals)
            .then_some((self.field, self.requirement.value.as_str()))
    }
}
