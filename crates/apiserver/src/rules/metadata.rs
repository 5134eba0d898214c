//! Validation of metadata, the same for every kind.

use serde_json::{Value, json};
use weft_model::selector::syntax;

use crate::{
    kind::{NameRule, ResourceType},
    meta::Meta as _,
    status::FieldError,
    store::Object,
};

/// Limit of all annotations in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Errors of a name.
fn name_errors(rule: NameRule, name: &str) -> Vec<String> {
    match rule {
        NameRule::Subdomain => syntax::subdomain_errors(name),
        NameRule::Label => syntax::dns_label_errors(name),
        NameRule::PathSegment => path_segment_errors(name),
        NameRule::Address => match name.parse::<std::net::IpAddr>() {
            Ok(address) if address.to_string() == name => Vec::new(),
            Ok(address) => vec![format!(
                "must be in canonical form ({:?})",
                address.to_string()
            )],
            Err(_) => {
                vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
            }
        },
    }
}

fn path_segment_errors(name: &str) -> Vec<String> {
    if matches!(name, "." | "..") {
        return vec![format!("may not be '{name}'")];
    }
    let contains = |c: char| name.contains(c).then(|| format!("may not contain '{c}'"));
    ['/', '%'].into_iter().filter_map(contains).collect()
}

/// Errors of the metadata of a new or changed object.
pub(crate) fn metadata_errors(kind: &ResourceType, object: &Object) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let prefix = object.meta_text("generateName");
    if !prefix.is_empty() {
        // A letter or digit follows the prefix, so it may end with a hyphen or dot.
        let shown = json!(prefix);
        for text in name_errors(kind.rules.name, &format!("{prefix}x")) {
            errors.push(FieldError::invalid("metadata.generateName", &shown, &text));
        }
    }
    let name = object.name();
    if name.is_empty() {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else {
        for text in name_errors(kind.rules.name, name) {
            errors.push(FieldError::invalid("metadata.name", &json!(name), &text));
        }
    }
    let members = |field: &str| {
        object
            .at(&["metadata", field])
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
    };
    for (key, value) in members("labels") {
        for text in syntax::qualified_name_errors(key) {
            errors.push(FieldError::invalid("metadata.labels", &json!(key), &text));
        }
        for text in syntax::label_value_errors(value.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid("metadata.labels", value, &text));
        }
    }
    let mut size = 0;
    for (key, value) in members("annotations") {
        for text in syntax::qualified_name_errors(&key.to_lowercase()) {
            errors.push(FieldError::invalid(
                "metadata.annotations",
                &json!(key),
                &text,
            ));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_LIMIT {
        errors.push(FieldError::too_long(
            "metadata.annotations",
            ANNOTATIONS_LIMIT,
        ));
    }
    for (position, finalizer) in object.finalizers().into_iter().enumerate() {
        let known = ["kubernetes", "orphan", "foregroundDeletion"].contains(&finalizer);
        for text in syntax::qualified_name_errors(finalizer) {
            errors.push(FieldError::invalid(
                "metadata.finalizers",
                &json!(finalizer),
                &text,
            ));
        }
        if !known && !finalizer.contains('/') {
            let text = "name is neither a standard finalizer name nor is it fully qualified";
            let field = format!("metadata.finalizers[{position}]");
            errors.push(FieldError::invalid(field, &json!(finalizer), text));
        }
    }
    owner_errors(object, &mut errors);
    errors
}

/// Errors of owner references. As upstream's, they do not say which owner lacks a field.
fn owner_errors(object: &Object, errors: &mut Vec<FieldError>) {
    let owners = object
        .at(&["metadata", "ownerReferences"])
        .and_then(Value::as_array);
    let text = |owner: &Value, name: &str| {
        let text = owner.get(name).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let mut controllers = Vec::new();
    for owner in owners.into_iter().flatten() {
        for (name, complaint) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if text(owner, name).is_empty() {
                let field = format!("metadata.ownerReferences.{name}");
                errors.push(FieldError::invalid(field, &json!(""), complaint));
            }
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            controllers.push(format!("{}/{}", text(owner, "kind"), text(owner, "name")));
        }
    }
    if let [first, second, ..] = &controllers[..] {
        let complaint = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for \
             {first} and {second}"
        );
        let shown: Vec<String> = owners.into_iter().flatten().map(shown).collect();
        errors.push(FieldError {
            field: "metadata.ownerReferences".to_owned(),
            reason: "FieldValueInvalid",
            message: format!("Invalid value: [{}]: {complaint}", shown.join(",")),
        });
    }
}

/// An owner reference with its fields in upstream's order.
fn shown(owner: &Value) -> String {
    let names = [
        "apiVersion",
        "kind",
        "name",
        "uid",
        "controller",
        "blockOwnerDeletion",
    ];
    let member = |name: &str| {
        let value = owner.get(name)?;
        Some(format!("{name:?}:{value}"))
    };
    let members: Vec<String> = names.into_iter().filter_map(member).collect();
    format!("{{{}}}", members.join(","))
}
