//! JSON patch (RFC 6902). As upstream, `replace` of a missing member adds it.

use serde_json::Value;
use thiserror::Error;

use crate::{
    api::BODY_LIMIT,
    decode::json_type,
    encoding::{
        json::{self, MAX_DEPTH},
        size::{self, TooLarge},
    },
    status::{ApiError, Outcome},
};

/// Limit of operations per patch.
const MAX_OPERATIONS: usize = 10_000;

/// Limit of the bytes that all copies and moves of a patch add up to: each copy can double the
/// document.
const MAX_COPIED: usize = BODY_LIMIT;

/// Elements of lists that all operations of a patch may shift: each insertion and removal shifts those
/// behind it, so a patch of a long list could take minutes. All operations on a list of 5,000 fit.
const MAX_SHIFTED: usize = 50_000_000;

/// One operation of a patch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operation {
    Add(Pointer, Value),
    Remove(Pointer),
    Replace(Pointer, Value),
    Move(Pointer, Pointer),
    Copy(Pointer, Pointer),
    Test(Pointer, Value),
}

/// A JSON pointer (RFC 6901).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pointer(Vec<String>);

/// An operation that cannot be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum StepError {
    #[error("path not found")]
    Missing,
    #[error("value does not match")]
    TestFailed,
    #[error("the result has too many levels")]
    TooDeep,
    #[error("too many bytes copied or moved")]
    TooMuch,
}

impl From<TooLarge> for StepError {
    fn from(_: TooLarge) -> Self {
        Self::TooMuch
    }
}

/// Parses a patch.
pub(crate) fn parse(body: &[u8]) -> Outcome<Vec<Operation>> {
    let refused = |detail: &str| ApiError::bad_request(format!("error decoding patch: {detail}"));
    let document = json::parse(body).map_err(|error| refused(&json::go_error(&error, body)))?;
    let Value::Array(steps) = document.value else {
        let kind = json_type(&document.value);
        return Err(refused(&format!(
            "json: cannot unmarshal {kind} into Go value of type []handlers.jsonPatchOp"
        )));
    };
    if steps.len() > MAX_OPERATIONS {
        return Err(ApiError::new(
            http::StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!(
                "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                steps.len()
            ),
        ));
    }
    steps
        .iter()
        .map(|step| operation(step).ok_or_else(ApiError::unprocessable))
        .collect()
}

fn operation(step: &Value) -> Option<Operation> {
    let path = Pointer::parse(step.get("path")?.as_str()?)?;
    let from = || Pointer::parse(step.get("from")?.as_str()?);
    let value = || step.get("value").cloned();
    Some(match step.get("op")?.as_str()? {
        "add" => Operation::Add(path, value()?),
        "remove" => Operation::Remove(path),
        "replace" => Operation::Replace(path, value()?),
        "move" => Operation::Move(from()?, path),
        "copy" => Operation::Copy(from()?, path),
        "test" => Operation::Test(path, value().unwrap_or(Value::Null)),
        _ => return None,
    })
}

/// Applies all operations; after an error the document is to be discarded. Every operation keeps the
/// depth limit, so that measuring a copied value cannot recurse deeply.
pub(crate) fn apply(document: &mut Value, operations: &[Operation]) -> Result<(), StepError> {
    let mut budget = MAX_COPIED;
    let mut shifts = MAX_SHIFTED;
    for operation in operations {
        match operation {
            Operation::Add(path, value) => {
                path.check_depth(value)?;
                path.add(document, value.clone(), &mut shifts)?;
            }
            Operation::Remove(path) => drop(path.remove(document, &mut shifts)?),
            Operation::Replace(path, value) => {
                path.check_depth(value)?;
                path.replace(document, value.clone())?;
            }
            Operation::Move(from, path) => {
                let value = from.remove(document, &mut shifts)?;
                size::take(&mut budget, &value)?;
                path.check_depth(&value)?;
                path.add(document, value, &mut shifts)?;
            }
            Operation::Copy(from, path) => {
                let value = from.get(document).ok_or(StepError::Missing)?;
                size::take(&mut budget, value)?;
                path.check_depth(value)?;
                path.add(document, value.clone(), &mut shifts)?;
            }
            Operation::Test(path, value) => {
                if path.get(document).unwrap_or(&Value::Null) != value {
                    return Err(StepError::TestFailed);
                }
            }
        }
    }
    Ok(())
}

impl Pointer {
    /// Checks that a value inserted here keeps the depth limit.
    fn check_depth(&self, value: &Value) -> Result<(), StepError> {
        match MAX_DEPTH.checked_sub(self.0.len()) {
            Some(levels) if json::fits(value, levels) => Ok(()),
            _ => Err(StepError::TooDeep),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self(Vec::new()));
        }
        let parts = text.strip_prefix('/')?.split('/');
        Some(Self(
            parts
                .map(|part| part.replace("~1", "/").replace("~0", "~"))
                .collect(),
        ))
    }

    fn get<'a>(&self, document: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(document, |value, part| match value {
            Value::Object(object) => object.get(part),
            Value::Array(list) => list.get(part.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// The parent value and the last segment.
    fn parent<'a>(&self, document: &'a mut Value) -> Option<(&'a mut Value, &str)> {
        let (last, before) = self.0.split_last()?;
        let parent = before
            .iter()
            .try_fold(document, |value, part| match value {
                Value::Object(object) => object.get_mut(part),
                Value::Array(list) => list.get_mut(part.parse::<usize>().ok()?),
                _ => None,
            })?;
        Some((parent, last))
    }

    fn add(&self, document: &mut Value, value: Value, shifts: &mut usize) -> Result<(), StepError> {
        if self.0.is_empty() {
            *document = value;
            return Ok(());
        }
        match self.parent(document).ok_or(StepError::Missing)? {
            (Value::Object(object), name) => drop(object.insert(name.to_owned(), value)),
            (Value::Array(list), "-") => list.push(value),
            (Value::Array(list), position) => {
                let position = position
                    .parse::<usize>()
                    .ok()
                    .filter(|at| *at <= list.len())
                    .ok_or(StepError::Missing)?;
                shift(shifts, list.len() - position)?;
                list.insert(position, value);
            }
            _ => return Err(StepError::Missing),
        }
        Ok(())
    }

    fn remove(&self, document: &mut Value, shifts: &mut usize) -> Result<Value, StepError> {
        match self.parent(document).ok_or(StepError::Missing)? {
            (Value::Object(object), name) => object.remove(name).ok_or(StepError::Missing),
            (Value::Array(list), position) => {
                let position = position.parse::<usize>().ok().filter(|at| *at < list.len());
                let position = position.ok_or(StepError::Missing)?;
                shift(shifts, list.len() - position)?;
                Ok(list.remove(position))
            }
            _ => Err(StepError::Missing),
        }
    }

    fn replace(&self, document: &mut Value, value: Value) -> Result<(), StepError> {
        if self.0.is_empty() {
            *document = value;
            return Ok(());
        }
        match self.parent(document).ok_or(StepError::Missing)? {
            (Value::Object(object), name) => drop(object.insert(name.to_owned(), value)),
            (Value::Array(list), position) => {
                let position = position.parse::<usize>().ok().filter(|at| *at < list.len());
                list[position.ok_or(StepError::Missing)?] = value;
            }
            _ => return Err(StepError::Missing),
        }
        Ok(())
    }
}

/// Takes the elements that a step shifts from those that are left.
fn shift(left: &mut usize, elements: usize) -> Result<(), StepError> {
    *left = left.checked_sub(elements).ok_or(StepError::TooMuch)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(mut document: Value, patch: &Value) -> Result<Value, StepError> {
        let operations = parse(patch.to_string().as_bytes()).unwrap();
        apply(&mut document, &operations).map(|()| document)
    }

    #[test]
    fn steps_are_taken_in_order() {
        let patch = json!([
            {"op": "test", "path": "/labels/x", "value": "1"},
            {"op": "add", "path": "/labels/a~1b", "value": "2"},
            {"op": "remove", "path": "/labels/x"},
            {"op": "add", "path": "/list/1", "value": "new"},
            {"op": "add", "path": "/list/-", "value": "last"},
            {"op": "move", "from": "/list/0", "path": "/first"},
            {"op": "copy", "from": "/first", "path": "/labels/copy"},
        ]);
        let document = json!({"labels": {"x": "1"}, "list": ["a", "b"]});
        let expected = json!({
            "labels": {"a/b": "2", "copy": "a"}, "list": ["new", "b", "last"], "first": "a",
        });
        assert_eq!(patched(document, &patch), Ok(expected));
    }

    #[test]
    fn replacing_a_missing_member_adds_it_and_removing_one_fails() {
        let replace = json!([{"op": "replace", "path": "/zzz", "value": "1"}]);
        assert_eq!(patched(json!({}), &replace), Ok(json!({"zzz": "1"})));
        let remove = json!([{"op": "remove", "path": "/zzz"}]);
        assert_eq!(patched(json!({}), &remove), Err(StepError::Missing));
        let test = json!([{"op": "test", "path": "/zzz", "value": 1}]);
        assert_eq!(patched(json!({}), &test), Err(StepError::TestFailed));
        let outside = json!([{"op": "add", "path": "/l/5", "value": 1}]);
        assert_eq!(patched(json!({"l": []}), &outside), Err(StepError::Missing));
    }

    #[test]
    fn copies_can_neither_nest_nor_multiply_without_end() {
        let nest = vec![json!({"op": "copy", "from": "/a", "path": "/a/b"}); 200];
        assert_eq!(
            patched(json!({"a": {}}), &nest.into()),
            Err(StepError::TooDeep)
        );
        let deep = format!("/a{}", "/b".repeat(MAX_DEPTH));
        let below = json!([{"op": "add", "path": deep, "value": {}}]);
        assert_eq!(patched(json!({}), &below), Err(StepError::TooDeep));
        let wide = vec![json!({"op": "copy", "from": "/l", "path": "/l/-"}); 30];
        let document = json!({"l": ["x".repeat(1000)]});
        assert_eq!(patched(document, &wide.into()), Err(StepError::TooMuch));
    }

    #[test]
    fn a_long_list_is_not_shifted_without_end() {
        let steps = |op: &str, count: usize| -> Value {
            let step = json!({"op": op, "path": "/l/0", "value": 1});
            vec![step; count].into()
        };
        for op in ["add", "remove"] {
            let list = |length: usize| json!({"l": vec![1; length]});
            assert_eq!(
                patched(list(100_000), &steps(op, MAX_OPERATIONS)),
                Err(StepError::TooMuch),
                "{op}"
            );
            assert!(patched(list(100_000), &steps(op, 100)).is_ok(), "{op}");
        }
        // What is added at the end shifts nothing.
        let appended = vec![json!({"op": "add", "path": "/l/-", "value": 1}); MAX_OPERATIONS];
        let long = json!({"l": vec![1; 100_000]});
        assert!(patched(long, &appended.into()).is_ok());
    }
}
