//! Fields a kind can be selected by.

use serde_json::Value;
use weft_model::{
    FieldSelector, SharedStr,
    selector::{FieldOperator, FieldRequirement},
};

use crate::status::{ApiError, Outcome};

/// How a field's text is taken from an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extract {
    /// The text, empty when absent.
    Text,
    /// `true` or `false`, false when absent.
    Flag,
    /// The component of an Event's source, or else its reporting component.
    EventSource,
    /// Known to the server but never with a value.
    Nothing,
}

/// One selectable field beside name and namespace.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    /// The name used in selectors of this view.
    pub(crate) label: String,
    /// Where it is in the stored object.
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

    /// A field that is a text at its path.
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
    /// Whether the kind words its refusals itself (it has a table of its own upstream).
    pub(crate) own_table: bool,
    /// Whether `metadata.namespace` is refused, as Nodes do.
    pub(crate) no_namespace: bool,
}

/// A field of a selector, resolved for one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FieldRef {
    Name,
    Namespace,
    /// The n-th value kept with the stored object.
    Stored(usize),
}

/// One condition of a field selector, resolved for one kind.
#[derive(Debug, Clone)]
pub(crate) struct FieldCondition {
    pub(crate) field: FieldRef,
    pub(crate) requirement: FieldRequirement,
}

impl FieldTable {
    /// The values to keep with a stored object, in table order.
    pub(crate) fn values(&self, object: &Value) -> Box<[SharedStr]> {
        self.fields
            .iter()
            .map(|field| field.value(object))
            .collect()
    }

    /// Finds the fields a selector names.
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
    /// The value this condition pins the field to, if it does.
    pub(crate) fn pinned(&self) -> Option<(FieldRef, &str)> {
        (self.requirement.operator == FieldOperator::Equals)
            .then_some((self.field, self.requirement.value.as_str()))
    }
}
