//! JSON sizes of values, counted up to a limit.

use std::io;

use serde_json::Value;
use thiserror::Error;

use crate::store::Object;

/// Limit of a stored object in bytes: etcd's default `--max-request-bytes`.
pub(crate) const STORED_LIMIT: usize = 1_572_864;

/// A value is larger than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the value is too large")]
pub(crate) struct TooLarge;

/// Subtracts the approximate size of a value from `left`.
pub(crate) fn take(left: &mut usize, value: &Value) -> Result<(), TooLarge> {
    let mut bytes = |count: usize| {
        *left = left.checked_sub(count).ok_or(TooLarge)?;
        Ok(())
    };
    match value {
        Value::String(text) => bytes(text.len() + 2),
        Value::Array(list) => {
            bytes(2 + list.len())?;
            list.iter().try_for_each(|element| take(left, element))
        }
        Value::Object(object) => {
            bytes(2)?;
            object.iter().try_for_each(|(name, value)| {
                *left = left.checked_sub(name.len() + 4).ok_or(TooLarge)?;
                take(left, value)
            })
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => bytes(4),
    }
}

/// True when an object fits into [`STORED_LIMIT`].
pub(crate) fn is_storable(object: &Object) -> bool {
    serde_json::to_writer(Counter(STORED_LIMIT), object).is_ok()
}

/// A writer that discards its input and fails after this many bytes.
struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.checked_sub(bytes.len()) {
            Some(left) => self.0 = left,
            None => return Err(io::ErrorKind::StorageFull.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_storable_up_to_the_last_byte() {
        let object = |bytes: usize| {
            let Value::Object(object) = json!({"a": "x".repeat(bytes)}) else {
                unreachable!()
            };
            object
        };
        let around = json!({"a": ""}).to_string().len();
        assert!(is_storable(&object(STORED_LIMIT - around)));
        assert!(!is_storable(&object(STORED_LIMIT - around + 1)));
    }
}
