//! Property tests of patches against simple models.

use std::collections::BTreeMap;

use proptest::{prelude::*, sample::Index};
use serde_json::{Map, Value, json};

use super::{json, merge, strategic};

fn any_json(leaves: impl Strategy<Value = Value> + 'static) -> impl Strategy<Value = Value> {
    leaves.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c/~]{1,2}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        "[a-z]{0,3}".prop_map(Value::from),
    ]
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-c/~]{1,2}", any_json(leaf()), 0..5)
        .prop_map(|members| Value::Object(members.into_iter().collect()))
}

/// A random operation; indexes choose among the paths of the document.
#[derive(Debug, Clone)]
struct Step {
    what: u8,
    place: Index,
    other: Index,
    name: String,
    value: Value,
}

fn step() -> impl Strategy<Value = Step> {
    let parts = (
        0..6_u8,
        any::<Index>(),
        any::<Index>(),
        "[a-c/~]{1,2}",
        any_json(leaf()),
    );
    parts.prop_map(|(what, place, other, name, value)| Step {
        what,
        place,
        other,
        name,
        value,
    })
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// JSON pointers of all values in a document.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(n, v)| (escaped(n), v)).collect(),
        Value::Array(list) => {
            let numbered = list.iter().enumerate();
            numbered.map(|(n, v)| (n.to_string(), v)).collect()
        }
        _ => Vec::new(),
    };
    for (name, value) in inner {
        let below = format!("{at}/{name}");
        pointers(value, &below, all);
        all.push(below);
    }
}

fn parent<'a>(document: &'a mut Value, pointer: &str) -> (&'a mut Value, String) {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let name = name.replace("~1", "/").replace("~0", "~");
    (document.pointer_mut(parent).unwrap(), name)
}

fn insert(document: &mut Value, pointer: &str, value: Value) {
    match parent(document, pointer) {
        (Value::Object(members), name) => drop(members.insert(name, value)),
        (Value::Array(list), name) if name == "-" => list.push(value),
        (Value::Array(list), name) => list.insert(name.parse().unwrap(), value),
        _ => unreachable!("only containers have places"),
    }
}

fn take(document: &mut Value, pointer: &str) -> Value {
    match parent(document, pointer) {
        (Value::Object(members), name) => members.remove(&name).unwrap(),
        (Value::Array(list), name) => list.remove(name.parse().unwrap()),
        _ => unreachable!("only containers have places"),
    }
}

/// A pointer at which a value can be added.
fn new_place(document: &Value, step: &Step) -> String {
    let mut all = Vec::new();
    pointers(document, "", &mut all);
    all.push(String::new());
    all.retain(|pointer| {
        let value = document.pointer(pointer).unwrap();
        value.is_object() || value.is_array()
    });
    let container = step.other.get(&all);
    match document.pointer(container).unwrap() {
        Value::Array(list) => match step.place.index(list.len() + 2) {
            beyond if beyond > list.len() => format!("{container}/-"),
            position => format!("{container}/{position}"),
        },
        _ => format!("{container}/{}", escaped(&step.name)),
    }
}

/// Applies a step to the model and returns it as a JSON patch operation; `None` for an empty
/// document.
fn model(document: &mut Value, step: &Step) -> Option<Value> {
    let mut all = Vec::new();
    pointers(document, "", &mut all);
    let there = (!all.is_empty()).then(|| step.place.get(&all).clone());
    match step.what {
        0 => {
            let path = new_place(document, step);
            insert(document, &path, step.value.clone());
            Some(json!({"op": "add", "path": path, "value": step.value}))
        }
        1 => {
            let path = there?;
            take(document, &path);
            Some(json!({"op": "remove", "path": path}))
        }
        2 => {
            let path = there?;
            *document.pointer_mut(&path).unwrap() = step.value.clone();
            Some(json!({"op": "replace", "path": path, "value": step.value}))
        }
        3 => {
            let from = there?;
            let value = take(document, &from);
            let path = new_place(document, step);
            insert(document, &path, value);
            Some(json!({"op": "move", "from": from, "path": path}))
        }
        4 => {
            let from = there?;
            let value = document.pointer(&from).unwrap().clone();
            let path = new_place(document, step);
            insert(document, &path, value);
            Some(json!({"op": "copy", "from": from, "path": path}))
        }
        _ => {
            let path = there?;
            Some(json!({"op": "test", "path": path, "value": document.pointer(&path)}))
        }
    }
}

/// The merge patch that turns one document into another.
fn difference(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return to.clone();
    };
    let gone = from.keys().filter(|name| !to.contains_key(*name));
    let mut patch: Map<String, Value> = gone.map(|name| (name.clone(), Value::Null)).collect();
    for (name, value) in to {
        match from.get(name) {
            Some(old) if old == value => {}
            Some(old) if old.is_object() && value.is_object() => {
                patch.insert(name.clone(), difference(old, value));
            }
            _ => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

fn containers(named: &BTreeMap<String, String>) -> Vec<Value> {
    let container = |(name, image)| json!({"name": name, "image": image});
    named.iter().map(container).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn a_json_patch_does_what_its_steps_mean(document in object(), steps in prop::collection::vec(step(), 0..8)) {
        let mut expected = document.clone();
        let operations: Vec<Value> = steps.iter().filter_map(|step| model(&mut expected, step)).collect();
        let text = Value::from(operations).to_string();
        let mut patched = document;
        let parsed = json::parse(text.as_bytes());
        prop_assert!(parsed.is_ok(), "{}", text);
        prop_assert_eq!(json::apply(&mut patched, &parsed.unwrap()), Ok(()), "{}", text);
        prop_assert_eq!(patched, expected, "{}", text);
    }

    #[test]
    fn a_json_patch_that_tests_for_something_else_fails(document in object(), at in any::<Index>(), value in any_json(leaf())) {
        let mut all = Vec::new();
        pointers(&document, "", &mut all);
        prop_assume!(!all.is_empty());
        let path = at.get(&all);
        prop_assume!(document.pointer(path) != Some(&value));
        let text = json!([{"op": "test", "path": path, "value": value}]).to_string();
        let operations = json::parse(text.as_bytes()).unwrap();
        let failed = json::apply(&mut document.clone(), &operations);
        prop_assert_eq!(failed, Err(json::StepError::TestFailed));
    }

    #[test]
    fn a_merge_patch_makes_one_document_of_another(from in object(), to in object()) {
        let patch = difference(&from, &to);
        let mut patched = from;
        merge::apply(&mut patched, &patch);
        prop_assert_eq!(&patched, &to);
        merge::apply(&mut patched, &patch);
        prop_assert_eq!(patched, to, "applied twice is applied once");
    }

    #[test]
    fn a_strategic_patch_merges_lists_by_name(
        old in prop::collection::btree_map("[a-d]", "[x-z]", 0..4),
        changed in prop::collection::btree_map("[a-d]", "[x-z]", 0..4),
        gone in prop::collection::btree_set("[a-d]", 0..3),
    ) {
        let kinds = crate::kind::builtin::resource_types();
        let kind = kinds.iter().find(|kind| kind.is("", "Pod")).unwrap();
        let gone: Vec<&String> = gone.iter().filter(|name| !changed.contains_key(*name)).collect();
        let mut list = containers(&changed);
        list.extend(gone.iter().map(|name| json!({"name": name, "$patch": "delete"})));
        let patch = json!({"spec": {"containers": list}});
        let mut pod = json!({"spec": {"containers": containers(&old)}});
        strategic::apply(kind, &mut pod, patch.as_object().unwrap()).unwrap();
        let mut expected = old;
        expected.extend(changed);
        expected.retain(|name, _| !gone.contains(&name));
        let result = pod["spec"]["containers"].as_array().unwrap();
        let text = |container: &Value, part: &str| container[part].as_str().unwrap().to_owned();
        let named: BTreeMap<String, String> = result.iter().map(|c| (text(c, "name"), text(c, "image"))).collect();
        prop_assert_eq!(result.len(), named.len(), "no name twice");
        prop_assert_eq!(named, expected);
    }
}
