//! Parser of the type table `schema/types.txt`.

use std::{
    collections::{HashMap, HashSet},
    sync::LazyLock,
};

/// A struct type.
#[derive(Debug)]
pub(crate) struct Message {
    /// Name of the Go type, without its package.
    pub(crate) go_name: &'static str,
    /// Apply treats every value of this type as atomic.
    pub(crate) atomic: bool,
    /// All fields; those of inlined types replace the inline field.
    fields: Vec<&'static Field>,
    by_name: HashMap<&'static str, &'static Field>,
    /// Fields by protobuf number; inlined types are messages of their own there.
    by_number: HashMap<u32, &'static Field>,
}

impl Message {
    pub(crate) fn fields(&self) -> &[&'static Field] {
        &self.fields
    }

    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn numbered(&self, number: u32) -> Option<&'static Field> {
        self.by_number.get(&number).copied()
    }
}

/// The form of a list in protobuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrapping {
    /// A repeated field.
    None,
    /// A named list type: a message with `items`.
    Message,
}

/// One field of a message.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a row of a table, one column per tag"
)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    number: u32,
    pub(crate) shape: Shape,
    /// The Go type, as Go's errors print it.
    pub(crate) go_type: &'static str,
    pub(crate) pointer: bool,
    pub(crate) omit_empty: bool,
    pub(crate) omit_zero: bool,
    /// In JSON, the fields of the type replace this one.
    pub(crate) inline: bool,
    pub(crate) wrapping: Wrapping,
    pub(crate) merge: Merge,
    pub(crate) list: ListRule,
    /// A map or struct that apply treats as atomic.
    pub(crate) atomic: bool,
}

/// Strategic merge rule of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Merge {
    /// Merge key of a list; empty for a list of primitives, `None` for an atomic list.
    pub(crate) key: Option<&'static str>,
    /// `retainKeys`: only the keys of the patch are kept.
    pub(crate) retain_keys: bool,
}

/// List rule of server-side apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListRule {
    Atomic,
    Set,
    Map(Vec<String>),
}

/// The type of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shape {
    Scalar(Scalar),
    Message(&'static str),
    List(Box<Shape>),
    Map(Box<Shape>),
}

/// Primitive types, and types with an encoding of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    Text,
    Flag,
    Int32,
    Int64,
    Float,
    Bytes,
    Time,
    MicroTime,
    Duration,
    Quantity,
    IntOrString,
    Raw,
}

impl Shape {
    fn parse(text: &'static str) -> Self {
        if let Some(inner) = text.strip_prefix("[]") {
            return Self::List(Box::new(Self::parse(inner)));
        }
        if let Some(inner) = text.strip_prefix("{}") {
            return Self::Map(Box::new(Self::parse(inner)));
        }
        Self::Scalar(match text.trim_start_matches('*') {
            "string" => Scalar::Text,
            "bool" => Scalar::Flag,
            "int32" => Scalar::Int32,
            "int64" => Scalar::Int64,
            "float64" => Scalar::Float,
            "bytes" => Scalar::Bytes,
            "time" => Scalar::Time,
            "microtime" => Scalar::MicroTime,
            "duration" => Scalar::Duration,
            "quantity" => Scalar::Quantity,
            "intorstring" => Scalar::IntOrString,
            "raw" => Scalar::Raw,
            name => return Self::Message(name),
        })
    }

    /// The struct type of a value, or of the elements of a list or map.
    pub(crate) fn message(&self) -> Option<&'static Message> {
        match self {
            Self::Message(name) => TABLE.get(name),
            Self::List(inner) | Self::Map(inner) => inner.message(),
            Self::Scalar(_) => None,
        }
    }
}

static TABLE: LazyLock<HashMap<&'static str, Message>> =
    LazyLock::new(|| parse(include_str!("../../schema/types.txt")));

/// The struct type of a kind, if the table has it.
pub(crate) fn message_of(group: &str, version: &str, kind: &str) -> Option<&'static Message> {
    let package = match (group, kind) {
        (_, "DeleteOptions") => "meta",
        ("", _) => "core",
        (group, _) => group.split('.').next().unwrap_or_default(),
    };
    TABLE.get(format!("{package}/{version}.{kind}").as_str())
}

fn parse(text: &'static str) -> HashMap<&'static str, Message> {
    let mut own: HashMap<&'static str, Vec<&'static Field>> = HashMap::new();
    let mut atomic = HashSet::new();
    let mut current = "";
    for line in text.lines() {
        match line.strip_prefix('@') {
            Some(head) => {
                let (name, flag) = head.split_once(' ').unwrap_or((head, ""));
                if flag == "struct=atomic" {
                    atomic.insert(name);
                }
                current = name;
                own.entry(name).or_default();
            }
            // Leaked on purpose: the table is static.
            None => own
                .entry(current)
                .or_default()
                .push(Box::leak(Box::new(parse_field(line)))),
        }
    }
    let names: Vec<&'static str> = own.keys().copied().collect();
    names
        .into_iter()
        .map(|name| (name, message(name, atomic.contains(name), &own)))
        .collect()
}

fn message(
    name: &'static str,
    atomic: bool,
    own: &HashMap<&'static str, Vec<&'static Field>>,
) -> Message {
    let mut fields = Vec::new();
    flatten(name, own, &mut fields);
    Message {
        go_name: name.rsplit('.').next().unwrap_or(name),
        atomic,
        by_name: fields.iter().map(|field| (field.name, *field)).collect(),
        by_number: own[name]
            .iter()
            .map(|field| (field.number, *field))
            .collect(),
        fields,
    }
}

fn flatten(
    name: &str,
    own: &HashMap<&'static str, Vec<&'static Field>>,
    fields: &mut Vec<&'static Field>,
) {
    for field in own.get(name).into_iter().flatten() {
        match &field.shape {
            Shape::Message(inner) if field.inline => flatten(inner, own, fields),
            _ => fields.push(field),
        }
    }
}

fn parse_field(line: &'static str) -> Field {
    let mut parts = line.split(' ');
    let mut next = || parts.next().unwrap_or_default();
    let (name, number, shape, go_type) = (next(), next(), next(), next());
    let mut field = Field {
        name,
        number: number.parse().unwrap_or_default(),
        shape: Shape::parse(shape),
        go_type,
        pointer: shape.starts_with('*'),
        omit_empty: false,
        omit_zero: false,
        inline: false,
        wrapping: Wrapping::None,
        merge: Merge::default(),
        list: ListRule::Atomic,
        atomic: false,
    };
    for flag in parts {
        match flag.split_once('=').unwrap_or((flag, "")) {
            ("omitempty", _) => field.omit_empty = true,
            ("omitzero", _) => field.omit_zero = true,
            ("inline", _) => field.inline = true,
            ("wrapped", _) => field.wrapping = Wrapping::Message,
            ("patch", strategies) => {
                field.merge.retain_keys = strategies.contains("retainKeys");
                if strategies.contains("merge") {
                    field.merge.key = field.merge.key.or(Some(""));
                }
            }
            ("key", key) => field.merge.key = Some(key),
            ("list", "set") => field.list = ListRule::Set,
            ("list", "map") => field.list = ListRule::Map(Vec::new()),
            ("keys", keys) => {
                field.list = ListRule::Map(keys.split(',').map(str::to_owned).collect());
            }
            ("map" | "struct", "atomic") => field.atomic = true,
            _ => {}
        }
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_named_is_there() {
        for message in TABLE.values() {
            for field in message.fields() {
                let mut shape = &field.shape;
                while let Shape::List(inner) | Shape::Map(inner) = shape {
                    shape = inner;
                }
                if let Shape::Message(name) = shape {
                    assert!(TABLE.contains_key(name), "{name}");
                }
            }
        }
    }

    #[test]
    fn inlined_types_give_their_fields_to_their_parent() {
        let volume = TABLE.get("core/v1.Volume").unwrap();
        assert!(volume.field("name").is_some());
        assert!(volume.field("hostPath").is_some());
        assert!(volume.numbered(2).unwrap().inline);
    }

    #[test]
    fn types_that_are_one_value_are_known() {
        let is_atomic = |name: &str| TABLE.get(name).unwrap().atomic;
        assert!(is_atomic("meta/v1.LabelSelector") && is_atomic("core/v1.SecretKeySelector"));
        assert!(!is_atomic("core/v1.Container"));
    }

    #[test]
    fn list_rules_are_read() {
        let spec = message_of("", "v1", "Service")
            .unwrap()
            .field("spec")
            .unwrap();
        let ports = spec.shape.message().unwrap().field("ports").unwrap();
        assert_eq!(ports.merge.key, Some("port"));
        assert_eq!(
            ports.list,
            ListRule::Map(vec!["port".to_owned(), "protocol".to_owned()])
        );
        let metadata = message_of("", "v1", "Node")
            .unwrap()
            .field("metadata")
            .unwrap();
        let finalizers = metadata
            .shape
            .message()
            .unwrap()
            .field("finalizers")
            .unwrap();
        assert_eq!(
            (finalizers.merge.key, &finalizers.list),
            (Some(""), &ListRule::Set)
        );
    }
}
