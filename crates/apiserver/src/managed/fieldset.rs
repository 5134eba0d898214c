//! Sets of field paths, the `fieldsV1` of `managedFields`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde_json::{Map, Value};

use super::topology::{Topology, Treatment};
use crate::{encoding::paths::shortened, store::Object};

/// One element of a field path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PathElement {
    /// A member: `f:name`.
    Field(String),
    /// A list element identified by its keys, as JSON: `k:{"type":"Ready"}`.
    Keys(String),
    /// An element of a set, identified by its value as JSON: `v:"x"`.
    Value(String),
}

impl PathElement {
    /// The path element of an element in a keyed list; `None` when a key is missing.
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

/// A set of field paths as a tree, so that a common prefix is stored once. No branch is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    /// The path of this node is in the set.
    is_member: bool,
    below: BTreeMap<PathElement, FieldSet>,
}

impl FieldSet {
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_member && self.below.is_empty()
    }

    /// Number of paths in the set.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.is_member) + self.below.values().map(Self::len).sum::<usize>()
    }

    /// True when the path of this node is in the set.
    pub(crate) fn is_member(&self) -> bool {
        self.is_member
    }

    /// True when a path below this node is in the set.
    pub(crate) fn has_below(&self) -> bool {
        !self.below.is_empty()
    }

    /// The subset below a path element.
    pub(crate) fn get(&self, step: &PathElement) -> Option<&Self> {
        self.below.get(step)
    }

    /// The path elements of this node with the subset below each.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (&PathElement, &Self)> {
        self.below.iter()
    }

    fn put(&mut self, step: PathElement, set: Self) {
        if set.is_empty() {
            return;
        }
        match self.below.get_mut(&step) {
            Some(known) => known.add_all(&set),
            None => drop(self.below.insert(step, set)),
        }
    }

    fn put_member(&mut self, step: PathElement) {
        self.below.entry(step).or_default().is_member = true;
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        self.is_member |= other.is_member;
        for (step, set) in &other.below {
            match self.below.get_mut(step) {
                Some(known) => known.add_all(set),
                None => drop(self.below.insert(step.clone(), set.clone())),
            }
        }
    }

    pub(crate) fn remove_all(&mut self, other: &Self) {
        self.is_member &= !other.is_member;
        self.below.retain(|step, set| {
            if let Some(gone) = other.below.get(step) {
                set.remove_all(gone);
            }
            !set.is_empty()
        });
    }

    /// The intersection of this set with both others.
    pub(crate) fn common(&self, one: &Self, other: &Self) -> Self {
        let mut common = Self {
            is_member: self.is_member && one.is_member && other.is_member,
            below: BTreeMap::new(),
        };
        for (step, set) in &self.below {
            if let (Some(one), Some(other)) = (one.below.get(step), other.below.get(step)) {
                common.put(step.clone(), set.common(one, other));
            }
        }
        common
    }

    /// Removes a path and all below it.
    pub(crate) fn remove(&mut self, path: &[PathElement]) {
        match path {
            [] => *self = Self::default(),
            [step, rest @ ..] => self.change(step, |set| set.remove(rest)),
        }
    }

    /// Removes the path of one element but keeps those below it.
    pub(crate) fn remove_exactly(&mut self, step: &PathElement) {
        self.change(step, |set| set.is_member = false);
    }

    fn change(&mut self, step: &PathElement, change: impl FnOnce(&mut Self)) {
        if let Some(set) = self.below.get_mut(step) {
            change(set);
            if set.is_empty() {
                self.below.remove(step);
            }
        }
    }

    /// Keeps the branches whose first path element passes.
    pub(crate) fn retain(&mut self, keep: impl Fn(&PathElement) -> bool) {
        self.is_member = false;
        self.below.retain(|step, _| keep(step));
    }

    /// The first `most` paths as text.
    pub(crate) fn texts(&self, most: usize) -> Vec<String> {
        let mut texts = Vec::new();
        self.write_texts(&mut String::new(), most, &mut texts);
        texts
    }

    fn write_texts(&self, path: &mut String, most: usize, texts: &mut Vec<String>) {
        if self.is_member {
            texts.push(shortened(path.clone()));
        }
        for (step, set) in &self.below {
            if texts.len() >= most {
                return;
            }
            let length = path.len();
            path.push_str(&step.to_string());
            set.write_texts(path, most, texts);
            path.truncate(length);
        }
    }

    pub(crate) fn from_json(value: &Value) -> Self {
        let mut set = Self::default();
        set.read(value);
        set
    }

    fn read(&mut self, value: &Value) {
        let Value::Object(members) = value else {
            return;
        };
        for (key, inner) in members {
            if key == "." {
                self.is_member = true;
                continue;
            }
            let Some(step) = PathElement::parse(key) else {
                continue;
            };
            if inner.as_object().is_none_or(Map::is_empty) {
                self.put_member(step);
            } else {
                self.put(step, Self::from_json(inner));
            }
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut node = Map::new();
        if self.is_member && self.has_below() {
            node.insert(".".into(), Value::Object(Map::new()));
        }
        for (step, set) in &self.below {
            node.insert(step.key(), set.to_json());
        }
        Value::Object(node)
    }

    /// The paths that an applied object owns.
    pub(crate) fn of_applied(topology: &Topology<'_>, object: &Object) -> Self {
        let mut set = Self::default();
        set.claim_members(topology, object);
        set
    }

    fn claim_members(&mut self, topology: &Topology<'_>, object: &Object) {
        for (name, value) in object {
            let mut set = Self::default();
            set.claim(&topology.member(name), value);
            self.put(PathElement::Field(name.clone()), set);
        }
    }

    fn claim(&mut self, topology: &Topology<'_>, value: &Value) {
        match (topology.treatment(value), value) {
            (Treatment::Members, Value::Object(object)) if !object.is_empty() => {
                self.claim_members(topology, object);
            }
            (Treatment::Set, Value::Array(list)) if !list.is_empty() => {
                for element in list {
                    self.put_member(PathElement::Value(element.to_string()));
                }
            }
            (Treatment::Keyed(keys), Value::Array(list)) if !list.is_empty() => {
                let inner = topology.element();
                for element in list {
                    let Some(step) = PathElement::of_keys(&keys, element, &inner) else {
                        continue;
                    };
                    let set = self.below.entry(step).or_default();
                    set.is_member = true;
                    if let Value::Object(object) = element {
                        set.claim_members(&inner, object);
                    }
                }
            }
            _ => self.is_member = true,
        }
    }
}

/// The difference between two states of an object.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// Paths that are new or have another value.
    pub(crate) changed: FieldSet,
    pub(crate) removed: FieldSet,
}

/// Compares two states of an object.
pub(crate) fn compare(topology: &Topology<'_>, old: &Object, new: &Object) -> Difference {
    let mut difference = Difference::default();
    difference.members(topology, Some(old), Some(new));
    difference
}

impl Difference {
    fn put(&mut self, step: &PathElement, below: Self) {
        self.changed.put(step.clone(), below.changed);
        self.removed.put(step.clone(), below.removed);
    }

    fn members(&mut self, topology: &Topology<'_>, old: Option<&Object>, new: Option<&Object>) {
        let names: BTreeSet<&String> = old.into_iter().chain(new).flat_map(Map::keys).collect();
        for name in names {
            let (old, new) = (
                old.and_then(|old| old.get(name)),
                new.and_then(|new| new.get(name)),
            );
            if old != new {
                let below = Self::of(&topology.member(name), old, new);
                self.put(&PathElement::Field(name.clone()), below);
            }
        }
    }

    fn of(topology: &Topology<'_>, old: Option<&Value>, new: Option<&Value>) -> Self {
        let mut difference = Self::default();
        let Some(shown) = new.or(old) else {
            return difference;
        };
        if old == new {
            return difference;
        }
        let treatment = topology.treatment(shown);
        match (old, new) {
            (None, Some(_)) => difference.changed.is_member = true,
            (Some(_), None) => difference.removed.is_member = true,
            _ => difference.changed.is_member = treatment == Treatment::Leaf,
        }
        match treatment {
            Treatment::Leaf => {}
            Treatment::Members => {
                let (old, new) = (
                    old.and_then(Value::as_object),
                    new.and_then(Value::as_object),
                );
                difference.members(topology, old, new);
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
                for text in &new - &old {
                    difference.changed.put_member(PathElement::Value(text));
                }
                for text in &old - &new {
                    difference.removed.put_member(PathElement::Value(text));
                }
            }
            Treatment::Keyed(keys) => difference.keyed(topology, &keys, old, new),
        }
        difference
    }

    fn keyed(
        &mut self,
        topology: &Topology<'_>,
        keys: &[String],
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        let inner = topology.element();
        // Of several elements with the same keys, the first counts.
        let mut elements: BTreeMap<PathElement, [Option<&Value>; 2]> = BTreeMap::new();
        for (side, list) in [old, new].into_iter().enumerate() {
            for element in list.and_then(Value::as_array).into_iter().flatten() {
                if let Some(step) = PathElement::of_keys(keys, element, &inner) {
                    elements.entry(step).or_default()[side].get_or_insert(element);
                }
            }
        }
        for (step, [old, new]) in elements {
            self.put(&step, Self::of(&inner, old, new));
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
        assert_eq!(
            difference.removed.to_json(),
            json!({"f:data": {".": {}, "f:k": {}}})
        );
    }
}
