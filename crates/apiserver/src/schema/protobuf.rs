//! Decoder of protobuf bodies into JSON, driven by the type table.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::table::{Field, Message, Scalar, Shape, Wrapping, message_of};
use crate::{
    clock::{micros_text, seconds_text},
    encoding::json::Document,
    status::{ApiError, Outcome},
    store::Object,
};

/// The first bytes of every Kubernetes protobuf body.
const MAGIC: &[u8] = b"k8s\0";
/// Limit of nested messages.
const MAX_DEPTH: usize = 64;

/// Decodes an object of a kind in its `runtime.Unknown` envelope.
pub(crate) fn decode(body: &[u8], group: &str, version: &str, kind: &str) -> Outcome<Document> {
    let refused = |complaint: &str| {
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {complaint} ({})",
            crate::decode::summary(body)
        ))
    };
    let Some(rest) = body.strip_prefix(MAGIC) else {
        return Err(refused(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
        ));
    };
    let envelope = Envelope::read(rest).ok_or_else(|| refused("unexpected EOF"))?;
    let Some(message) = message_of(group, version, kind) else {
        return Err(ApiError::unsupported_media(
            "application/json, application/yaml",
        ));
    };
    let mut object = read_message(message, envelope.raw, 0).ok_or_else(|| {
        ApiError::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: unexpected EOF"
        ))
    })?;
    for (name, text) in [
        ("apiVersion", envelope.api_version),
        ("kind", envelope.kind),
    ] {
        if !text.is_empty() {
            object.insert(name.to_owned(), text.into());
        }
    }
    Ok(Document {
        value: Value::Object(object),
        duplicates: Vec::new(),
    })
}

/// `runtime.Unknown`: the type and the bytes of an object.
#[derive(Default)]
struct Envelope<'a> {
    api_version: String,
    kind: String,
    raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut envelope = Self::default();
        let mut wire = Wire(bytes);
        while let Some((number, value)) = wire.next()? {
            match (number, value) {
                (1, Item::Bytes(bytes)) => {
                    let mut wire = Wire(bytes);
                    while let Some((number, value)) = wire.next()? {
                        match (number, value) {
                            (1, Item::Bytes(text)) => envelope.api_version = utf8(text)?,
                            (2, Item::Bytes(text)) => envelope.kind = utf8(text)?,
                            _ => {}
                        }
                    }
                }
                (2, Item::Bytes(bytes)) => envelope.raw = bytes,
                _ => {}
            }
        }
        Some(envelope)
    }
}

fn utf8(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

/// A value on the wire.
#[derive(Clone, Copy)]
enum Item<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The unread part of a message.
struct Wire<'a>(&'a [u8]);

impl<'a> Wire<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn fixed(&mut self, length: usize) -> Option<u64> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
        )
    }

    /// The next field: outer `None` for invalid bytes, inner `None` at the end.
    #[expect(
        clippy::option_option,
        reason = "broken and finished are different things"
    )]
    fn next(&mut self) -> Option<Option<(u32, Item<'a>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok()?;
        let item = match key & 7 {
            0 => Item::Number(self.varint()?),
            1 => Item::Number(self.fixed(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Item::Bytes(bytes)
            }
            5 => Item::Number(self.fixed(4)?),
            _ => return None,
        };
        Some(Some((number, item)))
    }
}

fn read_message(message: &Message, bytes: &[u8], depth: usize) -> Option<Object> {
    if depth > MAX_DEPTH {
        return None;
    }
    let mut object = Map::new();
    let mut wire = Wire(bytes);
    while let Some((number, item)) = wire.next()? {
        if let Some(field) = message.numbered(number) {
            read_field(field, item, &mut object, depth)?;
        }
    }
    Some(object)
}

fn read_field(field: &Field, item: Item<'_>, object: &mut Object, depth: usize) -> Option<()> {
    if field.inline {
        let (Some(message), Item::Bytes(bytes)) = (field.shape.message(), item) else {
            return Some(());
        };
        object.extend(read_message(message, bytes, depth + 1)?);
        return Some(());
    }
    let name = || field.name.to_owned();
    match &field.shape {
        Shape::List(inner) => {
            let list = object.entry(name()).or_insert_with(|| json!([]));
            let Value::Array(list) = list else {
                return None;
            };
            match (inner.as_ref(), item) {
                // Repeated numbers may be packed.
                (Shape::Scalar(scalar @ (Scalar::Int32 | Scalar::Int64)), Item::Bytes(bytes)) => {
                    let mut wire = Wire(bytes);
                    while !wire.0.is_empty() {
                        list.push(read_scalar(*scalar, Item::Number(wire.varint()?))?);
                    }
                }
                (inner, item) => list.push(read_value(inner, Wrapping::None, item, depth)?),
            }
        }
        Shape::Map(inner) => {
            let Item::Bytes(bytes) = item else {
                return None;
            };
            let (mut key, mut value) = (String::new(), None);
            let mut wire = Wire(bytes);
            while let Some((number, item)) = wire.next()? {
                match (number, item) {
                    (1, Item::Bytes(text)) => key = utf8(text)?,
                    (2, item) => value = Some(read_value(inner, field.wrapping, item, depth)?),
                    _ => {}
                }
            }
            let map = object.entry(name()).or_insert_with(|| json!({}));
            let Value::Object(map) = map else { return None };
            map.insert(key, value.unwrap_or_else(|| absent(inner)));
        }
        shape => {
            object.insert(name(), read_value(shape, field.wrapping, item, depth)?);
        }
    }
    Some(())
}

/// The value of a map entry without one: protobuf omits empty values.
fn absent(shape: &Shape) -> Value {
    match shape {
        Shape::Scalar(Scalar::Text | Scalar::Bytes) => json!(""),
        Shape::Scalar(Scalar::Quantity) => json!("0"),
        Shape::List(_) => json!([]),
        Shape::Message(_) | Shape::Map(_) => json!({}),
        Shape::Scalar(_) => json!(0),
    }
}

fn read_value(shape: &Shape, wrapping: Wrapping, item: Item<'_>, depth: usize) -> Option<Value> {
    match (shape, item) {
        (Shape::Scalar(scalar), item) => read_scalar(*scalar, item),
        (Shape::Message(_), Item::Bytes(bytes)) => Some(Value::Object(read_message(
            shape.message()?,
            bytes,
            depth + 1,
        )?)),
        (Shape::List(inner), Item::Bytes(bytes)) if wrapping == Wrapping::Message => {
            let mut list = Vec::new();
            let mut wire = Wire(bytes);
            while let Some((number, item)) = wire.next()? {
                if number == 1 {
                    list.push(read_value(inner, Wrapping::None, item, depth + 1)?);
                }
            }
            Some(Value::Array(list))
        }
        _ => None,
    }
}

fn read_scalar(scalar: Scalar, item: Item<'_>) -> Option<Value> {
    Some(match (scalar, item) {
        (Scalar::Text, Item::Bytes(bytes)) => utf8(bytes)?.into(),
        (Scalar::Bytes, Item::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        (Scalar::Flag, Item::Number(number)) => (number != 0).into(),
        (Scalar::Int32 | Scalar::Int64, Item::Number(number)) => signed(number).into(),
        (Scalar::Float, Item::Number(bits)) => f64::from_bits(bits).into(),
        (Scalar::Quantity, Item::Bytes(bytes)) => {
            let (_, text) = pair(bytes)?;
            text.unwrap_or_else(|| json!("0"))
        }
        (Scalar::Raw, Item::Bytes(bytes)) => {
            let mut raw = Value::Null;
            let mut wire = Wire(bytes);
            while let Some((number, item)) = wire.next()? {
                if let (1, Item::Bytes(bytes)) = (number, item) {
                    raw = serde_json::from_slice(bytes).ok()?;
                }
            }
            raw
        }
        (Scalar::IntOrString, Item::Bytes(bytes)) => int_or_string(bytes)?,
        (Scalar::Time | Scalar::MicroTime, Item::Bytes(bytes)) => time(scalar, bytes)?,
        (Scalar::Duration, Item::Bytes(bytes)) => {
            let (nanos, _) = pair(bytes)?;
            format!("{}ns", nanos.unwrap_or_default()).into()
        }
        _ => return None,
    })
}

/// Field 1 as a number and as a string, each if present.
fn pair(bytes: &[u8]) -> Option<(Option<i64>, Option<Value>)> {
    let (mut number, mut text) = (None, None);
    let mut wire = Wire(bytes);
    while let Some((field, item)) = wire.next()? {
        match (field, item) {
            (1, Item::Number(value)) => number = Some(signed(value)),
            (1, Item::Bytes(bytes)) => text = Some(Value::String(utf8(bytes)?)),
            _ => {}
        }
    }
    Some((number, text))
}

#[expect(
    clippy::cast_possible_wrap,
    reason = "protobuf writes negative numbers as 64-bit two's complement"
)]
fn signed(number: u64) -> i64 {
    number as i64
}

fn int_or_string(bytes: &[u8]) -> Option<Value> {
    let (mut is_text, mut number, mut text) = (false, 0, String::new());
    let mut wire = Wire(bytes);
    while let Some((field, item)) = wire.next()? {
        match (field, item) {
            (1, Item::Number(kind)) => is_text = kind == 1,
            (2, Item::Number(value)) => number = signed(value),
            (3, Item::Bytes(bytes)) => text = utf8(bytes)?,
            _ => {}
        }
    }
    Some(if is_text { text.into() } else { number.into() })
}

/// Decodes seconds and nanoseconds; an empty message is null.
fn time(scalar: Scalar, bytes: &[u8]) -> Option<Value> {
    if bytes.is_empty() {
        return Some(Value::Null);
    }
    let (mut seconds, mut nanos) = (0, 0);
    let mut wire = Wire(bytes);
    while let Some((field, item)) = wire.next()? {
        match (field, item) {
            (1, Item::Number(value)) => seconds = signed(value),
            (2, Item::Number(value)) => nanos = i32::try_from(signed(value)).ok()?,
            _ => {}
        }
    }
    let time = Timestamp::new(seconds, nanos).ok()?;
    Some(
        if scalar == Scalar::MicroTime {
            micros_text(time)
        } else {
            seconds_text(time)
        }
        .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length-delimited field.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        bytes.extend_from_slice(content);
        bytes
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [
            MAGIC.to_vec(),
            field(1, &meta),
            field(2, raw),
            field(3, b""),
            field(4, b""),
        ]
        .concat()
    }

    #[test]
    fn a_lease_is_read_with_times_and_empty_strings() {
        let metadata = [field(1, b"l"), field(2, b""), field(8, b"")].concat();
        let mut renew = vec![0x08];
        renew.extend_from_slice(&[0x80, 0xa5, 0xae, 0xca, 0x06]); // 1767617152
        renew.extend_from_slice(&[0x10, 0xe8, 0x07]); // 1000 ns
        let spec = [field(1, b"me"), vec![0x10, 15], field(4, &renew)].concat();
        let raw = [field(1, &metadata), field(2, &spec)].concat();
        let body = envelope("coordination.k8s.io/v1", "Lease", &raw);
        let lease = decode(&body, "coordination.k8s.io", "v1", "Lease")
            .unwrap()
            .value;
        assert_eq!(lease["spec"]["holderIdentity"], "me");
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
        assert!(
            lease["spec"]["renewTime"]
                .as_str()
                .unwrap()
                .ends_with(".000001Z")
        );
        assert_eq!(
            (&lease["kind"], &lease["metadata"]["name"]),
            (&json!("Lease"), &json!("l"))
        );
    }

    #[test]
    fn maps_ports_and_bytes_are_read() {
        let entry = [field(1, b"app"), field(2, b"x")].concat();
        let target = [vec![0x08, 1], field(3, b"http")].concat();
        let port = [vec![0x18, 80], field(4, &target)].concat();
        let raw = field(2, &[field(1, &port), field(2, &entry)].concat());
        let service = decode(&envelope("v1", "Service", &raw), "", "v1", "Service")
            .unwrap()
            .value;
        assert_eq!(service["spec"]["selector"], json!({"app": "x"}));
        assert_eq!(
            service["spec"]["ports"],
            json!([{"port": 80, "targetPort": "http"}])
        );
        let secret = field(2, &[field(1, b"k"), field(2, &[0, 255])].concat());
        let secret = decode(&envelope("v1", "Secret", &secret), "", "v1", "Secret")
            .unwrap()
            .value;
        assert_eq!(secret["data"]["k"], "AP8=");
    }

    #[test]
    fn broken_bytes_are_refused_without_a_crash() {
        assert!(decode(b"{}", "", "v1", "Pod").is_err());
        let whole = envelope("v1", "Pod", &field(1, &field(1, b"name")));
        for length in 0..whole.len() {
            let _ = decode(&whole[..length], "", "v1", "Pod");
        }
        assert!(decode(b"k8s\0\xff\xff\xff", "", "v1", "Pod").is_err());
    }
}
