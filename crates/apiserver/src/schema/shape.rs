//! Normalisation of objects as Go prints them: known fields, checked types, zero values by tag.

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::table::{Field, Message, Scalar, Shape};
use crate::{
    decode::json_type,
    encoding::paths::{join, note},
    store::Object,
};

/// A value of a wrong type, with the message of Go's decoder.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum WrongType {
    #[error("json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {wanted}")]
    Kind {
        found: String,
        owner: &'static str,
        path: String,
        wanted: &'static str,
    },
    #[error("{0}")]
    Text(String),
}

/// Drops unknown fields, sets zero values as Go does, and returns the dropped paths.
pub(crate) fn normalise(message: &Message, object: &mut Object) -> Result<Vec<String>, WrongType> {
    let mut walk = Walk {
        stack: Vec::new(),
        unknown: Vec::new(),
    };
    walk.object(message, object, "")?;
    Ok(walk.unknown)
}

struct Walk {
    /// Names of the enclosing fields, as Go's errors list them.
    stack: Vec<&'static str>,
    unknown: Vec<String>,
}

impl Walk {
    fn object(
        &mut self,
        message: &Message,
        object: &mut Object,
        path: &str,
    ) -> Result<(), WrongType> {
        let top = path.is_empty();
        let names: Vec<String> = object.keys().cloned().collect();
        for name in names {
            match message.field(&name) {
                Some(field) => self.member(message, field, object, path)?,
                None if top && (name == "kind" || name == "apiVersion") => {}
                None => {
                    object.remove(&name);
                    note(&mut self.unknown, || join(path, &name));
                }
            }
        }
        for field in message.fields() {
            if !object.contains_key(field.name)
                && let Some(zero) = zero(field)
            {
                object.insert(field.name.to_owned(), zero);
            }
        }
        Ok(())
    }

    fn member(
        &mut self,
        message: &Message,
        field: &'static Field,
        object: &mut Object,
        path: &str,
    ) -> Result<(), WrongType> {
        let Some(value) = object.get_mut(field.name) else {
            return Ok(());
        };
        if value.is_null() {
            object.remove(field.name);
            return Ok(());
        }
        self.stack.push(field.name);
        self.value(message, field, &field.shape, value, &join(path, field.name))?;
        self.stack.pop();
        if is_omitted(field, value) {
            object.remove(field.name);
        }
        Ok(())
    }

    fn value(
        &mut self,
        message: &Message,
        field: &'static Field,
        shape: &Shape,
        value: &mut Value,
        path: &str,
    ) -> Result<(), WrongType> {
        match (shape, value) {
            (Shape::Scalar(scalar), value) => match scalar_error(*scalar, value) {
                None => Ok(()),
                Some(Problem::Kind) => Err(self.wrong(message, field, shape, value)),
                Some(Problem::Text(text)) => Err(WrongType::Text(text)),
            },
            (Shape::Message(_), Value::Object(inner)) => match shape.message() {
                Some(target) => self.object(target, inner, path),
                None => Ok(()),
            },
            (Shape::List(inner), Value::Array(list)) => {
                for (position, element) in list.iter_mut().enumerate() {
                    if element.is_null() {
                        *element = empty(inner);
                    }
                    self.value(
                        message,
                        field,
                        inner,
                        element,
                        &format!("{path}[{position}]"),
                    )?;
                }
                Ok(())
            }
            (Shape::Map(inner), Value::Object(map)) => {
                for (key, element) in map.iter_mut() {
                    if element.is_null() {
                        *element = empty(inner);
                    }
                    self.value(message, field, inner, element, &join(path, key))?;
                }
                Ok(())
            }
            (_, value) => Err(self.wrong(message, field, shape, value)),
        }
    }

    fn wrong(
        &self,
        message: &Message,
        field: &'static Field,
        shape: &Shape,
        value: &Value,
    ) -> WrongType {
        let wanted = match shape {
            Shape::Scalar(Scalar::Text) if field.shape != *shape => "string",
            _ => field.go_type,
        };
        let found = match (json_type(value), value) {
            (_, Value::Number(number)) if !matches!(shape, Shape::Scalar(Scalar::Text)) => {
                format!("number {number}")
            }
            (name, _) => name.to_owned(),
        };
        WrongType::Kind {
            found,
            owner: message.go_name,
            path: self.stack.join("."),
            wanted,
        }
    }
}

enum Problem {
    Kind,
    Text(String),
}

fn scalar_error(scalar: Scalar, value: &mut Value) -> Option<Problem> {
    let fits = match scalar {
        Scalar::Text | Scalar::Duration => value.is_string(),
        Scalar::Flag => value.is_boolean(),
        Scalar::Int32 => value
            .as_i64()
            .is_some_and(|number| i32::try_from(number).is_ok()),
        Scalar::Int64 => value.is_i64() || value.is_u64(),
        Scalar::Float => value.is_number(),
        Scalar::IntOrString => value.is_string() || value.is_i64(),
        Scalar::Raw => true,
        Scalar::Quantity => {
            if value.is_number() {
                *value = value.to_string().into();
            }
            value.is_string()
        }
        Scalar::Bytes => return bytes_error(value),
        Scalar::Time => return time_error(value, TimeFormat::Seconds),
        Scalar::MicroTime => return time_error(value, TimeFormat::Micros),
    };
    (!fits).then_some(Problem::Kind)
}

fn bytes_error(value: &Value) -> Option<Problem> {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    match value {
        Value::String(text) => match STANDARD.decode(text) {
            Ok(_) => None,
            Err(base64::DecodeError::InvalidByte(at, _)) => Some(Problem::Text(format!(
                "illegal base64 data at input byte {at}"
            ))),
            Err(_) => {
                let at = text.len().saturating_sub(text.len() % 4);
                Some(Problem::Text(format!(
                    "illegal base64 data at input byte {at}"
                )))
            }
        },
        _ => Some(Problem::Kind),
    }
}

/// The two time formats of Kubernetes: `metav1.Time` and `metav1.MicroTime`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TimeFormat {
    Seconds,
    Micros,
}

fn time_error(value: &mut Value, format: TimeFormat) -> Option<Problem> {
    let Value::String(text) = value else {
        return Some(Problem::Kind);
    };
    let layout = match format {
        TimeFormat::Seconds => "2006-01-02T15:04:05Z07:00",
        TimeFormat::Micros => "2006-01-02T15:04:05.000000Z07:00",
    };
    let parsed = text.parse::<jiff::Timestamp>();
    let decimals = text
        .split_once('.')
        .map(|(_, rest)| rest.bytes().take_while(u8::is_ascii_digit).count());
    match parsed {
        Ok(_) if format == TimeFormat::Micros && decimals != Some(6) => {
            let rest = text.get(19..).unwrap_or_default();
            Some(Problem::Text(format!(
                "parsing time {text:?} as {layout:?}: cannot parse {rest:?} as \".000000\""
            )))
        }
        Ok(time) => {
            *text = match format {
                TimeFormat::Seconds => crate::clock::seconds_text(time),
                TimeFormat::Micros => crate::clock::micros_text(time),
            };
            None
        }
        Err(_) => {
            let text =
                format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\"");
            Some(Problem::Text(text))
        }
    }
}

/// The value to which Go decodes a null inside a list or map.
fn empty(shape: &Shape) -> Value {
    match shape {
        Shape::Scalar(Scalar::Flag) => json!(false),
        Shape::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Float | Scalar::IntOrString) => {
            json!(0)
        }
        Shape::Scalar(Scalar::Quantity) => json!("0"),
        Shape::Scalar(_) => json!(""),
        Shape::List(_) => json!([]),
        Shape::Message(_) | Shape::Map(_) => Value::Object(Map::new()),
    }
}

/// True when Go omits a present value because it is empty.
fn is_omitted(field: &Field, value: &Value) -> bool {
    if !field.omit_empty {
        return false;
    }
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => matches!(field.shape, Shape::Map(_)) && map.is_empty(),
        _ if field.pointer => false,
        Value::String(text) => {
            text.is_empty() && matches!(field.shape, Shape::Scalar(Scalar::Text | Scalar::Bytes))
        }
        Value::Bool(flag) => !flag,
        Value::Number(number) => {
            number.as_f64() == Some(0.0)
                && !matches!(field.shape, Shape::Scalar(Scalar::IntOrString))
        }
        Value::Null => true,
    }
}

/// The value that Go prints for an unset field; `None` when it omits the field.
fn zero(field: &Field) -> Option<Value> {
    if field.omit_zero || (field.pointer && field.omit_empty) {
        return None;
    }
    match &field.shape {
        // Structs are printed despite `omitempty`.
        Shape::Message(_) if !field.pointer => {
            let mut object = Map::new();
            let message = field.shape.message()?;
            for inner in message.fields() {
                if let Some(value) = zero(inner) {
                    object.insert(inner.name.to_owned(), value);
                }
            }
            Some(Value::Object(object))
        }
        Shape::Scalar(Scalar::Time | Scalar::MicroTime | Scalar::Raw) if !field.pointer => {
            Some(Value::Null)
        }
        Shape::Scalar(Scalar::IntOrString) if !field.pointer => Some(json!(0)),
        Shape::Scalar(Scalar::Quantity) if !field.pointer => Some(json!("0")),
        _ if field.omit_empty => None,
        _ if field.pointer => Some(Value::Null),
        Shape::List(_) | Shape::Map(_) | Shape::Scalar(Scalar::Bytes) => Some(Value::Null),
        shape => Some(empty(shape)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::message_of;

    fn shaped(group: &str, kind: &str, value: Value) -> (Value, Result<Vec<String>, WrongType>) {
        let Value::Object(mut object) = value else {
            unreachable!()
        };
        let outcome = normalise(message_of(group, "v1", kind).unwrap(), &mut object);
        (Value::Object(object), outcome)
    }

    #[test]
    fn zero_values_appear_and_disappear_as_go_prints_them() {
        let (node, _) = shaped(
            "",
            "Node",
            json!({
                "metadata": {"name": "n", "labels": {}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }),
        );
        let expected = json!({
            "metadata": {"name": "n"}, "spec": {},
            "status": {
                "conditions": [{
                    "type": "Ready", "status": "True",
                    "lastHeartbeatTime": null, "lastTransitionTime": null,
                }],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
                "nodeInfo": {
                    "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "",
                    "osImage": "", "containerRuntimeVersion": "", "kubeletVersion": "",
                    "kubeProxyVersion": "", "operatingSystem": "", "architecture": "",
                },
            },
        });
        assert_eq!(node, expected);
        let (service, _) = shaped("", "Service", json!({"spec": {"ports": [{"port": 80}]}}));
        assert_eq!(service["status"], json!({"loadBalancer": {}}));
        assert_eq!(
            service["spec"]["ports"][0],
            json!({"port": 80, "targetPort": 0})
        );
    }

    #[test]
    fn unknown_fields_are_dropped_and_reported() {
        let (pod, unknown) = shaped(
            "",
            "Pod",
            json!({
                "bogus": 1,
                "spec": {"containers": [{"name": "c", "wrong": {}}], "volumes": [{"name": "v", "hostPath": {"path": "/x"}}]},
            }),
        );
        assert_eq!(unknown.unwrap(), ["bogus", "spec.containers[0].wrong"]);
        assert_eq!(pod["spec"]["volumes"][0]["hostPath"]["path"], "/x");
    }

    #[test]
    fn wrong_types_are_worded_as_go_words_them() {
        let (_, wrong) = shaped("", "ConfigMap", json!({"data": {"a": 1}}));
        assert_eq!(
            wrong.unwrap_err().to_string(),
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string"
        );
        let lease = json!({"spec": {"renewTime": "2026-01-01T00:00:02Z"}});
        assert!(shaped("coordination.k8s.io", "Lease", lease).1.is_err());
        let lease = json!({"spec": {"renewTime": "2026-01-01T00:00:02.000001Z"}});
        assert!(shaped("coordination.k8s.io", "Lease", lease).1.is_ok());
    }
}
