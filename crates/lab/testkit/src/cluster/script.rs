//! Edits of a cluster as JSON, and a minimiser that finds a short list of edits that still fails.

use serde_json::{Value, json};

use super::{Edit, ObjectName};

/// Kinds of the objects in a random cluster.
const KINDS: [&str; 3] = ["EndpointSlice", "Node", "Service"];

impl Edit {
    /// As JSON: `{"put": OBJECT}` or `{"delete": {"kind": …, "namespace": …, "name": …}}`.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Put(_, object) => json!({"put": object}),
            Self::Delete(name) => json!({"delete":
                {"kind": name.kind, "namespace": name.namespace, "name": name.name}}),
        }
    }

    /// Reads the output of [`Edit::to_json`]; None for anything else.
    pub fn from_json(value: &Value) -> Option<Self> {
        if let Some(object) = value.get("put") {
            let name = ObjectName::read(object.get("kind")?, object.get("metadata")?)?;
            return Some(Self::Put(name, object.clone()));
        }
        let gone = value.get("delete")?;
        Some(Self::Delete(ObjectName::read(gone.get("kind")?, gone)?))
    }
}

impl ObjectName {
    fn read(kind: &Value, metadata: &Value) -> Option<Self> {
        let text = |field| metadata.get(field).and_then(Value::as_str);
        Some(Self {
            kind: KINDS.into_iter().find(|known| kind == known)?,
            namespace: text("namespace").unwrap_or_default().to_owned(),
            name: text("name")?.to_owned(),
        })
    }
}

/// Shortens a list of edits that fails: leaves out parts, large ones first, as long as the rest
/// still fails. `fails` is called at most `attempts` times.
pub fn minimal(
    edits: &[Edit],
    mut attempts: usize,
    mut fails: impl FnMut(&[Edit]) -> bool,
) -> Vec<Edit> {
    let mut kept = edits.to_vec();
    let mut size = kept.len() / 2;
    while size > 0 {
        let mut from = 0;
        while from < kept.len() {
            if attempts == 0 {
                return kept;
            }
            attempts -= 1;
            let mut shorter = kept.clone();
            shorter.drain(from..(from + size).min(kept.len()));
            if fails(&shorter) {
                kept = shorter;
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::RandomCluster;

    fn edits() -> Vec<Edit> {
        let mut cluster = RandomCluster::new(11);
        (0..60).flat_map(|_| cluster.edit()).collect()
    }

    #[test]
    fn edits_are_the_same_after_a_round_trip_through_json() {
        for edit in edits() {
            let text = edit.to_json().to_string();
            let read = Edit::from_json(&serde_json::from_str(&text).unwrap());
            assert_eq!(read, Some(edit));
        }
        assert_eq!(Edit::from_json(&json!({"put": {"kind": "Pod"}})), None);
    }

    #[test]
    fn only_the_edits_needed_for_the_failure_are_kept() {
        let edits = edits();
        let culprits = [edits[3].clone(), edits[40].clone(), edits[41].clone()];
        let fails = |tried: &[Edit]| culprits.iter().all(|edit| tried.contains(edit));
        assert_eq!(minimal(&edits, 1000, fails), culprits);
    }

    #[test]
    fn attempts_are_bounded() {
        let edits = edits();
        let mut tried = 0;
        let kept = minimal(&edits, 5, |_| {
            tried += 1;
            false
        });
        assert_eq!((tried, kept.len()), (5, edits.len()));
    }
}
