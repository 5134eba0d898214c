//! Strategic merge patch: lists merge by the keys that their type declares.

use std::collections::{HashMap, HashSet, VecDeque};

use http::StatusCode;
use serde_json::{Map, Value};

use crate::{
    kind::ResourceType,
    schema::{Field, Message, Shape, message_of},
    status::{ApiError, Outcome},
    store::Object,
};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Merges a patch into an object of a built-in kind.
pub(crate) fn apply(kind: &ResourceType, target: &mut Value, patch: &Object) -> Outcome<()> {
    let message = message_of(&kind.group, &kind.version, &kind.kind);
    let Value::Object(object) = target else {
        return Err(ApiError::unprocessable());
    };
    merge_object(message, object, patch)?;
    Ok(())
}

/// Merges into an object; true when a directive deletes the whole object.
fn merge_object(
    message: Option<&'static Message>,
    target: &mut Object,
    patch: &Object,
) -> Outcome<bool> {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("delete") => return Ok(true),
        Some("replace") => target.clear(),
        Some("merge") | None => {}
        Some(other) => {
            let text = format!("Unknown patch type: {other} in map");
            return Err(ApiError::untyped(text));
        }
    }
    if let Some(Value::Array(keys)) = patch.get(RETAIN_KEYS) {
        let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
        target.retain(|name, _| keys.contains(name.as_str()));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix(DELETE_FROM) {
            delete_from(target, list, value);
        } else if !name.starts_with('$') {
            let field = message.and_then(|message| message.field(name));
            merge_member(field, target, name, value, patch)?;
        }
    }
    // `$setElementOrder` can reorder a list that the patch does not change.
    for (name, order) in patch {
        if let (Some(list), Value::Array(order)) = (name.strip_prefix(ORDER), order)
            && !patch.contains_key(list)
            && let Some(Value::Array(elements)) = target.get_mut(list)
        {
            let key = message
                .and_then(|message| message.field(list))
                .and_then(|f| f.merge.key);
            let key = key.unwrap_or_default();
            let server = positions(&*elements, key);
            *elements = ordered(
                std::mem::take(elements),
                &positions(order, key),
                &server,
                key,
            );
        }
    }
    Ok(false)
}

fn merge_member(
    field: Option<&'static Field>,
    target: &mut Object,
    name: &str,
    value: &Value,
    patch: &Object,
) -> Outcome<()> {
    match value {
        Value::Null => {
            target.remove(name);
        }
        Value::Object(inner) => {
            let slot = target
                .entry(name)
                .or_insert_with(|| Value::Object(Map::new()));
            if !slot.is_object() {
                *slot = Value::Object(Map::new());
            }
            let Value::Object(slot) = slot else {
                return Ok(());
            };
            let message = field.and_then(|field| field.shape.message());
            // All members of a map have its element type; those of a struct have types of their own.
            let gone = match field.map(|field| &field.shape) {
                Some(Shape::Map(_)) => merge_map(message, slot, inner)?,
                _ => merge_object(message, slot, inner)?,
            };
            if gone {
                target.remove(name);
            }
        }
        Value::Array(elements) => {
            let order = patch
                .get(&format!("{ORDER}{name}"))
                .and_then(Value::as_array);
            let merged = match field.and_then(|field| Some((field, field.merge.key?))) {
                Some((field, key)) => {
                    let old = match target.get_mut(name) {
                        Some(Value::Array(old)) => std::mem::take(old),
                        _ => Vec::new(),
                    };
                    merge_list(field, key, old, elements, order)?
                }
                None => elements.clone(),
            };
            target.insert(name.to_owned(), Value::Array(merged));
        }
        scalar => {
            target.insert(name.to_owned(), scalar.clone());
        }
    }
    Ok(())
}

fn merge_map(
    element: Option<&'static Message>,
    target: &mut Object,
    patch: &Object,
) -> Outcome<bool> {
    let Some(element) = element else {
        return merge_object(None, target, patch);
    };
    for (name, value) in patch {
        match (value, target.get_mut(name)) {
            (Value::Null, _) => drop(target.remove(name)),
            (Value::Object(inner), Some(Value::Object(slot))) => {
                merge_object(Some(element), slot, inner)?;
            }
            (value, _) => drop(target.insert(name.clone(), value.clone())),
        }
    }
    Ok(false)
}

fn delete_from(target: &mut Object, list: &str, values: &Value) {
    let (Some(Value::Array(elements)), Value::Array(values)) = (target.get_mut(list), values)
    else {
        return;
    };
    let values: HashSet<&Value> = values.iter().collect();
    elements.retain(|element| !values.contains(element));
}

fn merge_list(
    field: &'static Field,
    key: &str,
    old: Vec<Value>,
    patch: &[Value],
    order: Option<&Vec<Value>>,
) -> Outcome<Vec<Value>> {
    let directive = |element: &Value| {
        element
            .get(DIRECTIVE)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    if patch
        .iter()
        .any(|element| directive(element).as_deref() == Some("replace"))
    {
        let plain = patch.iter().filter(|element| directive(element).is_none());
        return Ok(plain.cloned().collect());
    }
    if old.is_empty() && !key.is_empty() {
        // Without an old list the elements are taken as they are, keys or not.
        let kept = patch.iter().filter(|element| directive(element).is_none());
        return Ok(kept.cloned().collect());
    }
    let server = positions(&old, key);
    let mut touched: Vec<&Value> = Vec::new();
    let result = if key.is_empty() {
        touched.extend(patch);
        let mut known: HashSet<&Value> = old.iter().collect();
        let fresh = patch.iter().filter(|element| known.insert(*element));
        let fresh: Vec<Value> = fresh.cloned().collect();
        old.into_iter().chain(fresh).collect()
    } else {
        let mut merged = Merged::new(old, key);
        for element in patch {
            let wanted = element.get(key).ok_or_else(|| missing_key(element, key))?;
            if directive(element).as_deref() == Some("delete") {
                merged.delete(wanted);
                continue;
            }
            let Value::Object(changes) = element else {
                return Err(missing_key(element, key));
            };
            merge_object(field.shape.message(), merged.element(wanted), changes)?;
            touched.push(element);
        }
        merged.into_list()
    };
    let order = match order {
        Some(order) => positions(order, key),
        None => positions(touched, key),
    };
    Ok(ordered(result, &order, &server, key))
}

/// A list into which elements are merged by key. Positions are indexed by key, and elements move only
/// at the end, so that merging takes linear time.
struct Merged {
    elements: Vec<Option<Value>>,
    /// Positions of the elements of a key; an unvalidated list may have several.
    places: HashMap<Value, VecDeque<usize>>,
}

impl Merged {
    fn new(old: Vec<Value>, key: &str) -> Self {
        let mut places: HashMap<Value, VecDeque<usize>> = HashMap::new();
        for (position, element) in old.iter().enumerate() {
            if let Some(value) = element.get(key) {
                places.entry(value.clone()).or_default().push_back(position);
            }
        }
        Self {
            elements: old.into_iter().map(Some).collect(),
            places,
        }
    }

    /// Removes the first element of a key.
    fn delete(&mut self, wanted: &Value) {
        let place = self.places.get_mut(wanted).and_then(VecDeque::pop_front);
        if let Some(place) = place {
            self.elements[place] = None;
        }
    }

    /// The first element of a key, or a new one.
    fn element(&mut self, wanted: &Value) -> &mut Object {
        let known = self.places.get(wanted).and_then(VecDeque::front).copied();
        let place = known.unwrap_or_else(|| {
            let place = self.elements.len();
            self.elements.push(None);
            self.places
                .entry(wanted.clone())
                .or_default()
                .push_back(place);
            place
        });
        let slot = self.elements[place].get_or_insert_with(|| Value::Object(Map::new()));
        match slot {
            Value::Object(object) => object,
            _ => unreachable!("only objects have keys"),
        }
    }

    fn into_list(self) -> Vec<Value> {
        self.elements.into_iter().flatten().collect()
    }
}

/// The identity of an element: of a primitive its value, of an object its key.
fn identity<'a>(element: &'a Value, key: &str) -> Option<&'a Value> {
    if key.is_empty() {
        Some(element)
    } else {
        element.get(key)
    }
}

/// The first position of each identity.
fn positions<'a>(list: impl IntoIterator<Item = &'a Value>, key: &str) -> HashMap<Value, usize> {
    let mut positions = HashMap::new();
    for (position, element) in list.into_iter().enumerate() {
        if let Some(identity) = identity(element, key) {
            positions.entry(identity.clone()).or_insert(position);
        }
    }
    positions
}

/// Upstream's order: elements in `order` follow it; the others keep their position relative to the
/// elements that existed before, and follow the new ones.
fn ordered(
    elements: Vec<Value>,
    order: &HashMap<Value, usize>,
    server: &HashMap<Value, usize>,
    key: &str,
) -> Vec<Value> {
    let position = |places: &HashMap<Value, usize>, element: &Value| {
        identity(element, key).and_then(|identity| places.get(identity).copied())
    };
    let (mut named, others): (Vec<Value>, Vec<Value>) = elements
        .into_iter()
        .partition(|element| position(order, element).is_some());
    named.sort_by_cached_key(|element| position(order, element));
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    let mut result = Vec::new();
    while let (Some(other), Some(name)) = (others.peek(), named.peek()) {
        let before = match (position(server, other), position(server, name)) {
            (Some(other), Some(name)) => other < name,
            _ => false,
        };
        result.extend(if before { others.next() } else { named.next() });
    }
    result.extend(named);
    result.extend(others);
    result
}

fn missing_key(element: &Value, key: &str) -> ApiError {
    let shown = go_text(element);
    let text = format!("map: {shown} does not contain declared merge key: {key}");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", text)
}

/// A JSON value as Go's `%v` prints it.
fn go_text(value: &Value) -> String {
    match value {
        Value::Object(object) => {
            let members: Vec<String> = object
                .iter()
                .map(|(name, value)| format!("{name}:{}", go_text(value)))
                .collect();
            format!("map[{}]", members.join(" "))
        }
        Value::Array(list) => {
            let elements: Vec<String> = list.iter().map(go_text).collect();
            format!("[{}]", elements.join(" "))
        }
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kind::builtin;

    fn patched(kind: &str, target: Value, patch: &Value) -> Outcome<Value> {
        let kinds = builtin::resource_types();
        let kind = kinds.iter().find(|known| known.kind == kind).unwrap();
        let mut target = target;
        apply(kind, &mut target, patch.as_object().unwrap()).map(|()| target)
    }

    fn conditions(list: &Value) -> Value {
        json!({"status": {"conditions": list}})
    }

    #[test]
    fn conditions_merge_by_type() {
        let before = conditions(
            &json!([{"type": "Ready", "status": "False", "reason": "r"}, {"type": "Disk", "status": "False"}]),
        );
        let patch = conditions(&json!([{"type": "Disk", "status": "True"}]));
        let after = conditions(
            &json!([{"type": "Ready", "status": "False", "reason": "r"}, {"type": "Disk", "status": "True"}]),
        );
        assert_eq!(patched("Node", before, &patch).unwrap(), after);
    }

    #[test]
    fn directives_delete_replace_and_order() {
        let before = conditions(&json!([{"type": "A"}, {"type": "B"}]));
        let delete = conditions(&json!([{"$patch": "delete", "type": "B"}]));
        assert_eq!(
            patched("Node", before.clone(), &delete).unwrap(),
            conditions(&json!([{"type": "A"}]))
        );
        let replace = conditions(&json!([{"$patch": "replace"}, {"type": "C"}]));
        assert_eq!(
            patched("Node", before.clone(), &replace).unwrap(),
            conditions(&json!([{"type": "C"}]))
        );
        let order = json!({"status": {
            "$setElementOrder/conditions": [{"type": "C"}, {"type": "B"}, {"type": "A"}],
            "conditions": [{"type": "C"}],
        }});
        let ordered = conditions(&json!([{"type": "C"}, {"type": "B"}, {"type": "A"}]));
        assert_eq!(patched("Node", before, &order).unwrap(), ordered);
    }

    #[test]
    fn primitive_lists_merge_with_new_values_in_front() {
        let before = json!({"metadata": {"finalizers": ["a"]}});
        let added = patched("Node", before, &json!({"metadata": {"finalizers": ["b"]}})).unwrap();
        assert_eq!(added["metadata"]["finalizers"], json!(["b", "a"]));
        let removal = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}});
        let removed = patched("Node", added, &removal).unwrap();
        assert_eq!(removed["metadata"]["finalizers"], json!(["b"]));
    }

    #[test]
    fn an_element_without_its_key_is_refused() {
        let patch = conditions(&json!([{"status": "True"}]));
        let before = conditions(&json!([{"type": "A"}]));
        let error = patched("Node", before, &patch).unwrap_err();
        assert_eq!(
            error.status()["message"],
            "map: map[status:True] does not contain declared merge key: type"
        );
    }

    #[test]
    fn atomic_lists_are_replaced_and_keys_retained() {
        let taints = json!({"spec": {"taints": [{"key": "a"}]}});
        let patch = json!({"spec": {"taints": [{"key": "b"}]}});
        assert_eq!(patched("Node", taints, &patch).unwrap(), patch);
        let strategy =
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {}}}});
        let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
        let after = json!({"spec": {"strategy": {"type": "Recreate"}}});
        assert_eq!(patched("Deployment", strategy, &patch).unwrap(), after);
    }
}
