//! Rules of ConfigMaps and Secrets.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    meta::{Meta as _, default_to, object_mut},
    status::FieldError,
    store::Object,
};

/// Limit of all data in bytes.
const DATA_LIMIT: usize = 1024 * 1024;
/// Limit of a key in bytes.
const KEY_LIMIT: usize = 253;

const KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' \
    (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is \
    '[-._a-zA-Z0-9]+')";

pub(super) fn prepare_secret(object: &mut Object) {
    default_to(object, "type", "Opaque");
    if let Some(Value::Object(texts)) = object.remove("stringData") {
        let data = object_mut(object, "data");
        for (name, text) in texts {
            let bytes = STANDARD.encode(text.as_str().unwrap_or_default());
            data.insert(name, bytes.into());
        }
    }
}

pub(super) fn validate(
    kind: &str,
    object: &Object,
    old: Option<&Object>,
    errors: &mut Vec<FieldError>,
) {
    for name in ["data", "binaryData"] {
        for (key, _) in members(object, name) {
            for complaint in key_errors(key) {
                let field = format!("{name}[{key}]");
                errors.push(FieldError::invalid(field, &json!(key), &complaint));
            }
            if name == "data" && object.at(&["binaryData", key]).is_some() {
                let text = "duplicate of key present in binaryData";
                errors.push(FieldError::invalid(
                    format!("data[{key}]"),
                    &json!(key),
                    text,
                ));
            }
        }
    }
    let size = |name: &str| {
        members(object, name)
            .map(|(_, value)| value.as_str().map_or(0, str::len))
            .sum::<usize>()
    };
    if size("data") + size("binaryData") > DATA_LIMIT {
        errors.push(FieldError::too_long("[]", DATA_LIMIT));
    }
    if kind == "Secret" {
        secret_errors(object, old, errors);
    }
    frozen_data(object, old, errors);
}

fn members<'a>(object: &'a Object, name: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let members = object.get(name).and_then(Value::as_object);
    members.into_iter().flatten()
}

/// Errors of a key, which becomes a file name where it is mounted.
fn key_errors(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if key.len() > KEY_LIMIT {
        errors.push(format!("must be no more than {KEY_LIMIT} characters"));
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if key.is_empty() || !key.chars().all(fits) {
        errors.push(KEY.to_owned());
    }
    match key {
        "." | ".." => errors.push(format!("must not be '{key}'")),
        _ if key.starts_with("..") => errors.push("must not start with '..'".to_owned()),
        _ => {}
    }
    errors
}

/// Errors of Secrets of well-known types, which require certain keys.
fn secret_errors(object: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let has = |key: &str| members(object, "data").any(|(known, _)| known == key);
    let mut require = |keys: &[&str]| {
        for key in keys.iter().filter(|key| !has(key)) {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
        }
    };
    match object.text("type") {
        "kubernetes.io/tls" => require(&["tls.crt", "tls.key"]),
        "kubernetes.io/ssh-auth" => require(&["ssh-privatekey"]),
        "kubernetes.io/dockerconfigjson" => require(&[".dockerconfigjson"]),
        "kubernetes.io/dockercfg" => require(&[".dockercfg"]),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            require(&["username", "password"]);
        }
        "kubernetes.io/service-account-token" => {
            let account = "kubernetes.io/service-account.name";
            let named = object.at(&["metadata", "annotations", account]);
            if named.and_then(Value::as_str).unwrap_or_default().is_empty() {
                let field = format!("metadata.annotations[{account}]");
                errors.push(FieldError::required(field, ""));
            }
        }
        _ => {}
    }
    if old.is_some_and(|old| old.text("type") != object.text("type")) {
        let value = json!(object.text("type"));
        errors.push(FieldError::invalid("type", &value, "field is immutable"));
    }
}

fn frozen_data(object: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let Some(old) = old.filter(|old| old.get("immutable") == Some(&json!(true))) else {
        return;
    };
    let text = "field is immutable when `immutable` is set";
    if object.get("immutable") != Some(&json!(true)) {
        errors.push(FieldError::forbidden("immutable", text));
    }
    for name in ["data", "binaryData"] {
        if old.get(name) != object.get(name) {
            errors.push(FieldError::forbidden(name, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_names_of_files() {
        for fine in ["a", "A.b-c_d", ".hidden", "..."] {
            let expected = usize::from(fine == "...");
            assert_eq!(key_errors(fine).len(), expected, "{fine}");
        }
        assert_eq!(key_errors(""), [KEY]);
        assert_eq!(key_errors("a/b"), [KEY]);
        assert_eq!(key_errors(".."), ["must not be '..'"]);
        assert_eq!(key_errors(&"x".repeat(254)).len(), 1);
    }
}
