//! Status conditions: one helper for all controllers, which writes only what changed.

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::{Kind, ObjectKey};

/// A condition as a controller states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Type of the condition.
    pub kind: String,
    /// `True`, `False` or `Unknown`; `None` is `Unknown`.
    pub status: Option<bool>,
    /// CamelCase word that programs match on.
    pub reason: String,
    /// Explanation for people.
    pub message: String,
    /// The `metadata.generation` that the status was derived from, where the kind has one.
    pub observed_generation: Option<i64>,
}

/// Failure to write a condition.
#[derive(Debug, Error)]
pub enum ConditionError {
    /// Reading the object or writing its status failed.
    #[error("cannot write condition {condition} of {key}")]
    Write {
        /// Type of the condition.
        condition: String,
        /// The object.
        key: ObjectKey,
        /// Error of the request.
        source: Box<kube::Error>,
    },
    /// Every try ended with a conflict.
    #[error("cannot write condition {condition} of {key}: conflict on each of {tries} tries")]
    Contended {
        /// Type of the condition.
        condition: String,
        /// The object.
        key: ObjectKey,
        /// Number of tries.
        tries: u32,
    },
}

const TRIES: u32 = 5;

/// Sets a condition in an object's status. Returns whether anything was written.
///
/// Other conditions stay as they are, and so do fields of this one that are not ours, such as a
/// node's heartbeat. After a conflict it reads the object again instead of overwriting.
pub async fn set_condition(
    client: &Client,
    kind: &Kind,
    key: &ObjectKey,
    manager: &str,
    condition: &Condition,
) -> Result<bool, ConditionError> {
    let resource = kind.to_api_resource();
    let api: Api<DynamicObject> = match &key.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let failed = |source| ConditionError::Write {
        condition: condition.kind.clone(),
        key: key.clone(),
        source: Box::new(source),
    };
    let params = PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    };
    for _ in 0..TRIES {
        let object = api.get(&key.name).await.map_err(failed)?;
        let known = object
            .data
            .pointer("/status/conditions")
            .and_then(Value::as_array);
        let known = known.map(Vec::as_slice).unwrap_or_default();
        let Some(conditions) = merge(known, condition, Timestamp::now()) else {
            return Ok(false);
        };
        let patch = json!({
            "metadata": {"resourceVersion": object.metadata.resource_version},
            "status": {"conditions": conditions},
        });
        match api
            .patch_status(&key.name, &params, &Patch::Merge(patch))
            .await
        {
            Ok(_) => return Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(ConditionError::Contended {
        condition: condition.kind.clone(),
        key: key.clone(),
        tries: TRIES,
    })
}

/// The conditions with one set, or `None` if they contain it already.
///
/// `lastTransitionTime` moves only when the status does.
fn merge(known: &[Value], condition: &Condition, now: Timestamp) -> Option<Vec<Value>> {
    let mut conditions = known.to_vec();
    let is_ours = |candidate: &Value| {
        candidate.get("type").and_then(Value::as_str) == Some(condition.kind.as_str())
    };
    let position = conditions.iter().position(is_ours);
    let before = position.and_then(|position| conditions[position].as_object().cloned());
    let after = apply(before.clone().unwrap_or_default(), condition, now);
    if before.as_ref() == Some(&after) {
        return None;
    }
    match position {
        Some(position) => conditions[position] = Value::Object(after),
        None => conditions.push(Value::Object(after)),
    }
    Some(conditions)
}

fn apply(
    mut fields: Map<String, Value>,
    condition: &Condition,
    now: Timestamp,
) -> Map<String, Value> {
    let status = match condition.status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    if fields.get("status").and_then(Value::as_str) != Some(status) {
        // Conditions carry whole seconds.
        let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        fields.insert("lastTransitionTime".into(), time.into());
    }
    fields.insert("type".into(), condition.kind.clone().into());
    fields.insert("status".into(), status.into());
    fields.insert("reason".into(), condition.reason.clone().into());
    fields.insert("message".into(), condition.message.clone().into());
    if let Some(generation) = condition.observed_generation {
        fields.insert("observedGeneration".into(), generation.into());
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(status: bool, message: &str) -> Condition {
        Condition {
            kind: "NetworkUnavailable".into(),
            status: Some(status),
            reason: "RouteCreated".into(),
            message: message.into(),
            observed_generation: None,
        }
    }

    #[test]
    fn only_what_changed_is_written_and_the_transition_time_follows_the_status() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let ready =
            json!({"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"});
        let first = merge(
            std::slice::from_ref(&ready),
            &condition(false, "a"),
            at("2026-01-02T00:00:00.5Z"),
        )
        .unwrap();
        assert_eq!(first[0], ready, "other conditions stay");
        assert_eq!(first[1]["lastTransitionTime"], "2026-01-02T00:00:00Z");
        assert_eq!(
            merge(&first, &condition(false, "a"), at("2026-01-03T00:00:00Z")),
            None
        );
        let second = merge(&first, &condition(false, "b"), at("2026-01-03T00:00:00Z")).unwrap();
        assert_eq!(
            second[1]["lastTransitionTime"], "2026-01-02T00:00:00Z",
            "the status is the same"
        );
        let third = merge(&second, &condition(true, "b"), at("2026-01-04T00:00:00Z")).unwrap();
        assert_eq!(third[1]["lastTransitionTime"], "2026-01-04T00:00:00Z");
        assert_eq!(third.len(), 2);
    }

    #[test]
    fn fields_of_others_in_our_condition_stay() {
        let ours =
            json!({"type": "NetworkUnavailable", "status": "True", "lastHeartbeatTime": "x"});
        let merged = merge(&[ours], &condition(false, "a"), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(merged[0]["lastHeartbeatTime"], "x");
    }
}
