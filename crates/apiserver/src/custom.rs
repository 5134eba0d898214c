//! Custom resources: kinds that CustomResourceDefinitions bring in.

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

/// What one version of a custom resource has beyond a built-in kind.
#[derive(Debug)]
pub(crate) struct CustomVersion {
    /// The version objects are stored in.
    pub(crate) storage_api_version: String,
    pub(crate) schema: Value,
    pub(crate) columns: Vec<PrinterColumn>,
    pub(crate) scale: Option<ScalePaths>,
    /// The schema in the form values are compared with.
    node: schema::Node,
    rules: Option<rules::CompiledRules>,
}

/// Where a custom resource keeps its number of replicas.
#[derive(Debug)]
pub(crate) struct ScalePaths {
    pub(crate) spec: Vec<String>,
    pub(crate) status: Vec<String>,
    pub(crate) selector: Option<Vec<String>>,
}

/// A column and where its value is.
#[derive(Debug)]
pub(crate) struct PrinterColumn {
    pub(crate) column: Column,
    pub(crate) path: path::JsonPath,
}

impl PrinterColumn {
    /// The cell of an object; null when there is nothing to show.
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
    /// Removes what the schema does not know, fills in defaults, and answers the removed paths.
    /// What defaults make too large to be stored is refused.
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

    /// Whether expressions are run on its objects.
    pub(crate) fn has_rules(&self) -> bool {
        self.rules.is_some()
    }

    /// Metadata is that of every object, whatever the schema says.
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

    /// Complaints of the schema, then of lists with repeats, then of the CEL rules.
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
