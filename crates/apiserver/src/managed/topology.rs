//! List and map topology of a kind: which values merge and which are atomic.

use serde_json::Value;

use crate::{
    kind::ResourceType,
    schema::{ListRule, Message, Shape, message_of},
};

/// Type information of one path in an object.
#[derive(Debug, Clone)]
pub(crate) enum Topology<'a> {
    /// A struct of the type table.
    Struct(&'static Message),
    /// Another type of the type table.
    Value(&'static Shape, ListRule, bool),
    /// A node in the schema of a custom resource.
    Schema(&'a Value),
    /// No type information: objects merge, lists are atomic.
    Unknown,
}

/// Merge behaviour of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// Atomic: replaced as a whole.
    Leaf,
    /// An object whose members merge.
    Members,
    /// A list of distinct values.
    Set,
    /// A list whose elements are identified by these keys.
    Keyed(Vec<String>),
}

impl<'a> Topology<'a> {
    pub(crate) fn of(kind: &'a ResourceType) -> Self {
        match &kind.custom {
            Some(custom) => Self::Schema(&custom.schema),
            None => message_of(&kind.group, &kind.version, &kind.kind)
                .map_or(Self::Unknown, Self::Struct),
        }
    }

    /// The type of a member.
    pub(crate) fn member(&self, name: &str) -> Self {
        match self {
            Self::Struct(message) => match message.field(name) {
                Some(field) => match &field.shape {
                    Shape::Message(_) if !field.atomic => Self::inner(&field.shape),
                    shape => Self::Value(shape, field.list.clone(), field.atomic),
                },
                None => Self::Unknown,
            },
            Self::Value(Shape::Map(inner), ..) => Self::inner(inner),
            Self::Schema(schema) => {
                let property = schema.get("properties").and_then(|all| all.get(name));
                // Metadata has the type `ObjectMeta`; the schema cannot change it.
                if name == "metadata" && property.is_none_or(|p| p.get("properties").is_none()) {
                    return message_of("", "v1", "ConfigMap")
                        .and_then(|message| message.field("metadata"))
                        .and_then(|field| field.shape.message())
                        .map_or(Self::Unknown, Self::Struct);
                }
                property
                    .or_else(|| schema.get("additionalProperties").filter(|s| s.is_object()))
                    .map_or(Self::Unknown, Self::Schema)
            }
            Self::Value(..) | Self::Unknown => Self::Unknown,
        }
    }

    /// The type of a list element.
    pub(crate) fn element(&self) -> Self {
        match self {
            Self::Value(Shape::List(inner), ..) => Self::inner(inner),
            Self::Schema(schema) => schema.get("items").map_or(Self::Unknown, Self::Schema),
            _ => Self::Unknown,
        }
    }

    fn inner(shape: &'static Shape) -> Self {
        match (shape, shape.message()) {
            (Shape::Message(_), None) => Self::Unknown,
            (Shape::Message(_), Some(message)) if message.atomic => {
                Self::Value(shape, ListRule::Atomic, true)
            }
            (Shape::Message(_), Some(message)) => Self::Struct(message),
            (shape, _) => Self::Value(shape, ListRule::Atomic, false),
        }
    }

    /// The merge behaviour of a value of this type.
    pub(crate) fn treatment(&self, value: &Value) -> Treatment {
        match value {
            Value::Object(_) => match self {
                Self::Value(_, _, true) | Self::Value(Shape::Scalar(_), ..) => Treatment::Leaf,
                Self::Schema(schema) if text(schema, "x-kubernetes-map-type") == "atomic" => {
                    Treatment::Leaf
                }
                _ => Treatment::Members,
            },
            Value::Array(_) => match self {
                Self::Value(_, ListRule::Set, _) => Treatment::Set,
                Self::Value(_, ListRule::Map(keys), _) => Treatment::Keyed(keys.clone()),
                Self::Schema(schema) => match text(schema, "x-kubernetes-list-type") {
                    "set" => Treatment::Set,
                    "map" => {
                        let keys = schema
                            .get("x-kubernetes-list-map-keys")
                            .and_then(Value::as_array);
                        let keys = keys.into_iter().flatten().filter_map(Value::as_str);
                        Treatment::Keyed(keys.map(str::to_owned).collect())
                    }
                    _ => Treatment::Leaf,
                },
                _ => Treatment::Leaf,
            },
            _ => Treatment::Leaf,
        }
    }

    /// The default of a key that an element lacks.
    pub(crate) fn key_default(&self, key: &str) -> Option<Value> {
        match self {
            Self::Schema(schema) => schema.get("properties")?.get(key)?.get("default").cloned(),
            // The only key of built-in lists that has a default.
            _ if key == "protocol" => Some("TCP".into()),
            _ => None,
        }
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}
