//! Sets of paths into an object, written as `fieldsV1`.

use std::{collections::BTreeSet, fmt};

use serde_json::{Map, Value};

use super::topology::{Topology, Treatment};
use crate::store::Object;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathElement {
    /// A member: `f:name`.
    Field(String),
    /// An element told by its keys, as JSON text: `k:{"type":"Ready"}`.
    Keys(String),
    /// An element that is its own key, as JSON text: `v:"x"`.
    Value(String),
}

impl PathElement {
    /// The element of a keyed list; `None` when a key is missing.
    pub(crate) fn of_keys(
        keys: &[String],
        element: &Value,
        topology: &Topology<'_>,
    ) -> Option<Self> {
        let mut found = Map::new();
        for key in keys {
            let value = element
                .get(key)
                .cloned()
                .or_else(|| topology.key_default(key))?;
            found.insert(key.clone(), value);
        }
        Some(Self::Keys(Value::Object(found).to_string()))
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "f" => Some(Self::Field(rest.to_owned())),
            "k" => Some(Self::Keys(
                serde_json::from_str::<Value>(rest).ok()?.to_string(),
            )),
            "v" => Some(Self::Value(rest.to_owned())),
            _ => None,
        }
    }

    fn key(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Keys(text) => format!("k:{text}"),
            Self::Value(text) => format!("v:{text}"),
        }
    }
}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Keys(text) => {
                let keys: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
                let keys: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={v}")).collect();
                write!(f, "[{}]", keys.join(","))
            }
            Self::Value(text) => write!(f, "[={text}]"),
        }
    }
}

/// A path into an object.
pub(crate) type Path = Vec<PathElement>;

/// A set of paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSet(BTreeSet<Path>);

impl FieldSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, path: &[PathElement]) -> bool {
        self.0.contains(path)
    }

    pub(crate) fn paths(&self) -> impl DoubleEndedIterator<Item = &Path> {
        self.0.iter()
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }

    pub(crate) fn remove_all(&mut self, other: &Self) {
        self.0.retain(|path| !other.0.contains(path));
    }

    /// Removes a path and all below it.
    pub(crate) fn remove(&mut self, prefix: &[PathElement]) {
        self.0.retain(|path| !path.starts_with(prefix));
    }

    /// Removes one path and nothing below it.
    pub(crate) fn remove_exactly(&mut self, path: &[PathElement]) {
        self.0.remove(path);
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&Path) -> bool) {
        self.0.retain(keep);
    }

    /// Whether the set has anything below a path.
    pub(crate) fn has_below(&self, prefix: &[PathElement]) -> bool {
        let below = self.0.range::<[PathElement], _>((
            std::ops::Bound::Excluded(prefix),
            std::ops::Bound::Unbounded,
        ));
        below.take(1).any(|path| path.starts_with(prefix))
    }

    pub(crate) fn from_json(value: &Value) -> Self {
        let mut set = Self::default();
        set.read(value, &mut Vec::new());
        set
    }

    fn read(&mut self, value: &Value, path: &mut Path) {
        let Value::Object(members) = value else {
            return;
        };
        for (key, inner) in members {
            if key == "." {
                self.0.insert(path.clone());
                continue;
            }
            let Some(element) = PathElement::parse(key) else {
                continue;
            };
            path.push(element);
            if inner.as_object().is_none_or(Map::is_empty) {
                self.0.insert(path.clone());
            } else {
                self.read(inner, path);
            }
            path.pop();
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut root = Map::new();
        for path in &self.0 {
            let mut node = &mut root;
            for element in path {
                let slot = node
                    .entry(element.key())
                    .or_insert_with(|| Value::Object(Map::new()));
                let Value::Object(inner) = slot else {
                    unreachable!("only objects are put here")
                };
                node = inner;
            }
            if self.has_below(path) {
                node.insert(".".into(), Value::Object(Map::new()));
            }
        }
        Value::Object(root)
    }

    /// The paths an applied object claims.
    pub(crate) fn of_applied(topology: &Topology<'_>, object: &Object) -> Self {
        let mut set = Self::default();
        set.claim_members(topology, object, &mut Vec::new());
        set
    }

    fn claim_members(&mut self, topology: &Topology<'_>, object: &Object, path: &mut Path) {
        for (name, value) in object {
            path.push(PathElement::Field(name.clone()));
            self.claim(&topology.member(name), value, path);
            path.pop();
        }
    }

    fn claim(&mut self, topology: &Topology<'_>, value: &Value, path: &mut Path) {
        match (topology.treatment(value), value) {
            (Treatment::Members, Value::Object(object)) if !object.is_empty() => {
                self.claim_members(topology, object, path);
            }
            (Treatment::Set, Value::Array(list)) if !list.is_empty() => {
                for element in list {
                    path.push(PathElement::Value(element.to_string()));
                    self.0.insert(path.clone());
                    path.pop();
                }
            }
            (Treatment::Keyed(keys), Value::Array(list)) if !list.is_empty() => {
                let inner = topology.element();
                for element in list {
                    let Some(step) = PathElement::of_keys(&keys, element, &inner) else {
                        continue;
                    };
                    path.push(step);
                    self.0.insert(path.clone());
                    if let Value::Object(object) = element {
                        self.claim_members(&inner, object, path);
                    }
                    path.pop();
                }
            }
            _ => {
                self.0.insert(path.clone());
            }
        }
    }
}

/// What changed between two states of an object.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// Paths that are new or have another value.
    pub(crate) changed: FieldSet,
    pub(crate) removed: FieldSet,
}

/// Compares two states of an object.
pub(crate) fn compare(topology: &Topology<'_>, old: &Object, new: &Object) -> Difference {
    let mut difference = Difference::default();
    difference.members(topology, Some(old), Some(new), &mut Vec::new());
    difference
}

impl Difference {
    fn members(
        &mut self,
        topology: &Topology<'_>,
        old: Option<&Object>,
        new: Option<&Object>,
        path: &mut Path,
    ) {
        let get =
            |side: Option<&'_ Object>, name: &str| side.and_then(|side| side.get(name)).cloned();
        let names: BTreeSet<&String> = old.into_iter().chain(new).flat_map(Map::keys).collect();
        for name in names {
            let (before, after) = (get(old, name), get(new, name));
            path.push(PathElement::Field(name.clone()));
            self.value(
                &topology.member(name),
                before.as_ref(),
                after.as_ref(),
                path,
            );
            path.pop();
        }
    }

    fn value(
        &mut self,
        topology: &Topology<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
        path: &mut Path,
    ) {
        if old == new {
            return;
        }
        let Some(shown) = new.or(old) else { return };
        let treatment = topology.treatment(shown);
        match (old, new) {
            (None, Some(_)) => drop(self.changed.0.insert(path.clone())),
            (Some(_), None) => drop(self.removed.0.insert(path.clone())),
            _ if treatment == Treatment::Leaf => drop(self.changed.0.insert(path.clone())),
            _ => {}
        }
        match treatment {
            Treatment::Leaf => {}
            Treatment::Members => {
                let (old, new) = (
                    old.and_then(Value::as_object),
                    new.and_then(Value::as_object),
                );
                self.members(topology, old, new, path);
            }
            Treatment::Set => {
                let elements = |side: Option<&Value>| {
                    let list = side.and_then(Value::as_array);
                    list.into_iter()
                        .flatten()
                        .map(Value::to_string)
                        .collect::<BTreeSet<_>>()
                };
                let (old, new) = (elements(old), elements(new));
                for (set, gone) in [(&new - &old, false), (&old - &new, true)] {
                    let target = if gone {
                        &mut self.removed
                    } else {
                        &mut self.changed
                    };
                    for text in set {
                        path.push(PathElement::Value(text));
                        target.0.insert(path.clone());
                        path.pop();
                    }
                }
            }
            Treatment::Keyed(keys) => self.keyed(topology, &keys, old, new, path),
        }
    }

    fn keyed(
        &mut self,
        topology: &Topology<'_>,
        keys: &[String],
        old: Option<&Value>,
        new: Option<&Value>,
        path: &mut Path,
    ) {
        let inner = topology.element();
        let elements = |side: Option<&Value>| -> Vec<(PathElement, Value)> {
            let list = side.and_then(Value::as_array).cloned().unwrap_or_default();
            let keyed =
                |element: Value| Some((PathElement::of_keys(keys, &element, &inner)?, element));
            list.into_iter().filter_map(keyed).collect()
        };
        let (old, new) = (elements(old), elements(new));
        let steps: BTreeSet<&PathElement> = old.iter().chain(&new).map(|(step, _)| step).collect();
        for step in steps {
            let find = |side: &[(PathElement, Value)]| {
                side.iter()
                    .find(|(known, _)| known == step)
                    .map(|(_, value)| value.clone())
            };
            let (before, after) = (find(&old), find(&new));
            path.push(step.clone());
            self.value(&inner, before.as_ref(), after.as_ref(), path);
            path.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kind::builtin;

    fn object(value: Value) -> Object {
        let Value::Object(object) = value else {
            unreachable!()
        };
        object
    }

    #[test]
    fn applied_fields_are_written_as_upstream_writes_them() {
        let kinds = builtin::resource_types();
        let node = kinds.iter().find(|kind| kind.kind == "Node").unwrap();
        let applied =
            object(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
        let set = FieldSet::of_applied(&Topology::of(node), &applied);
        let expected = json!({"f:status": {"f:conditions": {
            "k:{\"type\":\"Ready\"}": {".": {}, "f:status": {}, "f:type": {}},
        }}});
        assert_eq!(set.to_json(), expected);
        assert_eq!(FieldSet::from_json(&expected), set);
    }

    #[test]
    fn a_new_map_is_changed_with_its_members() {
        let kinds = builtin::resource_types();
        let map = kinds.iter().find(|kind| kind.kind == "ConfigMap").unwrap();
        let (old, new) = (object(json!({})), object(json!({"data": {"k": "v"}})));
        let difference = compare(&Topology::of(map), &old, &new);
        assert_eq!(
            difference.changed.to_json(),
            json!({"f:data": {".": {}, "f:k": {}}})
        );
        let difference = compare(&Topology::of(map), &new, &old);
        assert!(difference.changed.is_empty());
        assert!(difference.removed.contains(&[
            PathElement::Field("data".into()),
            PathElement::Field("k".into()),
        ]));
    }
}
