//! Bytes that values take as JSON, counted no further than they matter.

use std::io;

use serde_json::Value;
use thiserror::Error;

use crate::store::Object;

/// Largest object as it is stored: what etcd takes in one request (`--max-request-bytes`).
pub(crate) const STORED_LIMIT: usize = 1_572_864;

/// A value takes more bytes than are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the value is too large")]
pub(crate) struct TooLarge;

/// Takes about the bytes of a value from those that are left.
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

/// Whether an object is small enough to be stored.
pub(crate) fn is_storable(object: &Object) -> bool {
    serde_json::to_writer(Counter(STORED_LIMIT), object).is_ok()
}

/// A writer that keeps nothing and has room for so many bytes.
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
