//! Decoder of JSON bodies that finds duplicate members and words errors as Go does.

use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::paths::Path;

/// A decoded document and its duplicate members.
#[derive(Debug, Default)]
pub(crate) struct Document {
    pub(crate) value: Value,
    /// Paths of duplicate members, such as `data.a`.
    pub(crate) duplicates: Vec<String>,
}

/// Limit of an object's depth. Clients' decoders stop at 127 levels, and a list or a watch event
/// nests the object a few levels deeper.
pub(crate) const MAX_DEPTH: usize = 120;

/// True when a value has at most `levels` levels; visits no deeper ones.
pub(crate) fn fits(value: &Value, levels: usize) -> bool {
    let below = |value: &Value| fits(value, levels - 1);
    match value {
        Value::Array(list) => levels > 0 && list.iter().all(below),
        Value::Object(object) => levels > 0 && object.values().all(below),
        _ => true,
    }
}

/// Parses one JSON document.
pub(crate) fn parse(bytes: &[u8]) -> Result<Document, serde_json::Error> {
    let mut duplicates = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let seed = Seed {
        path: Path::Root,
        duplicates: &mut duplicates,
    };
    let value = seed.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Document { value, duplicates })
}

/// The error message of Go's decoder for the same input.
pub(crate) fn go_error(error: &serde_json::Error, bytes: &[u8]) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    let offset = offset_of(bytes, error.line(), error.column());
    match bytes.get(offset).copied() {
        Some(byte) => format!(
            "invalid character {} looking for beginning of value",
            quoted(byte)
        ),
        None => error.to_string(),
    }
}

fn offset_of(bytes: &[u8], line: usize, column: usize) -> usize {
    let start: usize = bytes
        .split(|byte| *byte == b'\n')
        .take(line.saturating_sub(1))
        .map(|l| l.len() + 1)
        .sum();
    start + column.saturating_sub(1)
}

fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => "'\\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        0x20..=0x7e => format!("'{}'", char::from(byte)),
        b'\n' => "'\\n'".to_owned(),
        b'\t' => "'\\t'".to_owned(),
        byte => format!("'\\x{byte:02x}'"),
    }
}

struct Seed<'a> {
    path: Path<'a>,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let path = Path::Element(&self.path, list.len());
            match elements.next_element_seed(Seed {
                path,
                duplicates: self.duplicates,
            })? {
                Some(value) => list.push(value),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let path = Path::Member(&self.path, &name);
            if object.contains_key(&name) {
                super::paths::note(self.duplicates, || path.to_string());
            }
            let value = members.next_value_seed(Seed {
                path,
                duplicates: self.duplicates,
            })?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_members_are_reported_with_their_path() {
        let text = br#"{"data":{"a":"b","a":"c"},"l":[{"x":1,"x":2}]}"#;
        let document = parse(text).unwrap();
        assert_eq!(document.duplicates, ["data.a", "l[0].x"]);
        assert_eq!(document.value["data"]["a"], "c", "the last one counts");
    }

    #[test]
    fn mistakes_are_worded_as_go_words_them() {
        let error = parse(br#"{"apiVersion":"v1""#).unwrap_err();
        assert_eq!(
            go_error(&error, br#"{"apiVersion":"v1""#),
            "unexpected end of JSON input"
        );
        let error = parse(b"i\xb7").unwrap_err();
        assert_eq!(
            go_error(&error, b"i\xb7"),
            "invalid character 'i' looking for beginning of value"
        );
    }

    #[test]
    fn depth_is_bounded() {
        let deep = "[".repeat(100_000);
        assert!(parse(deep.as_bytes()).is_err());
    }
}
