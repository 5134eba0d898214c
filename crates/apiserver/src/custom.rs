//! Custom resources: kinds that CustomResourceDefinitions define.

mod cell;
pub(crate) mod definition;
mod lifecycle;
mod path;
mod patterns;
mod rules;
mod schema;
mod structure;

use serde_json::Value;

pub(crate) use cell::RowBudget;
pub(crate) use lifecycle::{CLEANUP_FINALIZER, Definitions, reconcile, serve_established};

use crate::{
    api::Api,
    encoding::size::STORED_LIMIT,
    handler::table::Column,
    status::{ApiError, FieldError, Outcome},
    store::Object,
};

/// The parts of a custom resource version that built-in kinds do not have.
#[derive(Debug)]
pub(crate) struct CustomVersion {
    /// API version of stored objects.
    pub(crate) storage_api_version: String,
    pub(crate) schema: Value,
    pub(crate) columns: Vec<PrinterColumn>,
    pub(crate) scale: Option<ScalePaths>,
    /// The schema compiled for validation.
    node: schema::Node,
    rules: Option<rules::CompiledRules>,
}

/// Paths of the `scale` subresource.
#[derive(Debug)]
pub(crate) struct ScalePaths {
    pub(crate) spec: Vec<String>,
    pub(crate) status: Vec<String>,
    pub(crate) selector: Option<Vec<String>>,
}

/// A printer column and the path of its value.
#[derive(Debug)]
pub(crate) struct PrinterColumn {
    pub(crate) column: Column,
    pub(crate) path: path::JsonPath,
}

impl PrinterColumn {
    /// The cell of an object; null when the path has no value.
    pub(crate) fn cell(&self, api: &Api, object: &Object, budget: &mut RowBudget) -> Value {
        let Some(value) = self.path.find(object) else {
            return Value::Null;
        };
        match (self.column.kind.as_str(), value) {
            ("date", Value::String(text)) => crate::handler::table::age(api, text),
            ("string", value) => budget.text(value).into(),
            ("integer" | "number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
            _ => Value::Null,
        }
    }
}

impl CustomVersion {
    /// Prunes unknown fields and fills in defaults; returns the pruned paths. An object that
    /// defaults make too large to be stored is refused.
    pub(crate) fn prune(&self, object: &mut Object) -> Outcome<Vec<String>> {
        let mut unknown = self.prune_metadata(object);
        unknown.extend(schema::prune(&self.schema, object));
        let mut value = Value::Object(std::mem::take(object));
        let mut left = STORED_LIMIT;
        schema::default(&self.schema, &mut value, &mut left)
            .map_err(|_| ApiError::too_large_to_store())?;
        if let Value::Object(defaulted) = value {
            *object = defaulted;
        }
        Ok(unknown)
    }

    /// True when the version has CEL rules.
    pub(crate) fn has_rules(&self) -> bool {
        self.rules.is_some()
    }

    /// Metadata has the type `ObjectMeta`; the schema cannot change it.
    #[expect(clippy::unused_self, reason = "all versions have the same metadata")]
    fn prune_metadata(&self, object: &mut Object) -> Vec<String> {
        let message = crate::schema::message_of("", "v1", "ConfigMap")
            .and_then(|message| message.field("metadata"))
            .and_then(|field| field.shape.message());
        let (Some(message), Some(Value::Object(metadata))) = (message, object.get_mut("metadata"))
        else {
            return Vec::new();
        };
        let unknown = crate::schema::normalise(message, metadata).unwrap_or_default();
        unknown
            .into_iter()
            .map(|path| format!("metadata.{path}"))
            .collect()
    }

    /// Errors of the schema, then of lists with duplicates, then of the CEL rules.
    pub(crate) fn validate(&self, object: &Object, old: Option<&Object>) -> Vec<FieldError> {
        let value = Value::Object(object.clone());
        let mut errors = schema::schema_errors(&self.node, &value);
        if !errors.is_empty() && self.rules.is_some() {
            errors.push(FieldError::invalid(
                "<nil>",
                &Value::Null,
                "some validation rules were not checked because the object was invalid; correct \
                 the existing errors to complete validation",
            ));
            return errors;
        }
        errors.extend(schema::list_errors(&self.node, &value));
        if errors.is_empty()
            && let Some(rules) = &self.rules
        {
            let old = old.map(|old| Value::Object(old.clone()));
            errors.extend(rules.errors(&value, old.as_ref()));
        }
        errors
    }

    fn new(
        storage_api_version: String,
        schema: Value,
        columns: Vec<PrinterColumn>,
        scale: Option<ScalePaths>,
        patterns: &mut schema::Patterns,
    ) -> Self {
        let rules = rules::CompiledRules::compile(&schema);
        Self {
            storage_api_version,
            node: schema::Node::compile(&schema, patterns),
            schema,
            columns,
            scale,
            rules,
        }
    }
}
