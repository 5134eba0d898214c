//! Tests of pruning, defaulting and validation.

use serde_json::json;

use super::*;

fn schema() -> Value {
    json!({"type": "object", "properties": {"spec": {
        "type": "object", "required": ["size"],
        "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 10},
            "color": {"type": "string", "default": "blue", "enum": ["blue", "red"]},
            "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
            "opts": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "port": {"x-kubernetes-int-or-string": true},
            "items": {
                "type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}}},
            },
        },
    }}})
}

fn compiled() -> Node {
    Node::compile(&schema(), &mut Patterns::default())
}

fn messages(spec: &Value) -> Vec<String> {
    let errors = schema_errors(&compiled(), &json!({ "spec": spec }));
    errors
        .into_iter()
        .map(|error| format!("{}: {}", error.field, error.message))
        .collect()
}

#[test]
fn unknown_fields_are_pruned_unless_preserved() {
    let Value::Object(mut object) = json!({
        "apiVersion": "x", "kind": "y", "metadata": {"name": "a"},
        "spec": {"size": 1, "bogus": 1, "opts": {"any": 1}, "items": [{"k": "a", "z": 1}]},
    }) else {
        unreachable!()
    };
    let unknown = prune(&schema(), &mut object);
    assert_eq!(unknown, ["spec.bogus", "spec.items[0].z"]);
    assert_eq!(object["spec"]["opts"]["any"], 1);
}

#[test]
fn defaults_appear_only_inside_present_objects() {
    let mut value = json!({"spec": {"size": 1}});
    default(&schema(), &mut value, &mut 1000).unwrap();
    assert_eq!(value["spec"]["color"], "blue");
    let mut empty = json!({});
    default(&schema(), &mut empty, &mut 1000).unwrap();
    assert_eq!(empty, json!({}));
}

#[test]
fn errors_are_worded_as_recorded_from_upstream() {
    assert_eq!(
        messages(&json!({"size": 11})),
        ["spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10"]
    );
    assert_eq!(messages(&json!({})), ["spec.size: Required value"]);
    assert_eq!(
        messages(&json!({"size": "x"})),
        [
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\""
        ]
    );
    assert_eq!(
        messages(&json!({"size": 1, "color": "green"})),
        ["spec.color: Unsupported value: \"green\": supported values: \"blue\", \"red\""]
    );
    assert_eq!(
        messages(&json!({"size": 1, "name": "toolong"})),
        ["spec.name: Too long: may not be more than 5 bytes"]
    );
    assert_eq!(
        messages(&json!({"size": 1, "port": true})),
        [
            "spec.port: Invalid value: \"boolean\": spec.port in body must be of type integer,string: \"boolean\""
        ]
    );
    assert!(messages(&json!({"size": 1, "port": "http"})).is_empty());
}

#[test]
fn repeats_in_keyed_lists_are_found() {
    let value = json!({"spec": {"items": [{"k": "a"}, {"k": "a"}]}});
    let errors = list_errors(&compiled(), &value);
    assert_eq!(errors.len(), 1);
    assert_eq!(
        (errors[0].field.as_str(), errors[0].message.as_str()),
        ("spec.items[1]", "Duplicate value: {\"k\":\"a\"}")
    );
}
