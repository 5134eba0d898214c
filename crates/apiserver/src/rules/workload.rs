//! Rules of Deployments and other workloads: defaulting and basic validation. No controller runs them.

use serde_json::{Value, json};

use super::pod;
use crate::{
    meta::{Meta as _, default_to, object_mut},
    status::FieldError,
    store::Object,
};

pub(super) fn prepare(kind: &str, object: &mut Object) {
    pod::default_template(object);
    let spec = object_mut(object, "spec");
    match kind {
        "Deployment" => {
            default_to(spec, "replicas", 1);
            default_to(spec, "revisionHistoryLimit", 10);
            default_to(spec, "progressDeadlineSeconds", 600);
            let strategy = object_mut(spec, "strategy");
            default_to(strategy, "type", "RollingUpdate");
            if strategy.get("type") == Some(&json!("RollingUpdate")) {
                let rolling = object_mut(strategy, "rollingUpdate");
                default_to(rolling, "maxUnavailable", "25%");
                default_to(rolling, "maxSurge", "25%");
            }
        }
        "DaemonSet" => {
            default_to(spec, "revisionHistoryLimit", 10);
            let strategy = object_mut(spec, "updateStrategy");
            default_to(strategy, "type", "RollingUpdate");
            if strategy.get("type") == Some(&json!("RollingUpdate")) {
                let rolling = object_mut(strategy, "rollingUpdate");
                default_to(rolling, "maxUnavailable", 1);
                default_to(rolling, "maxSurge", 0);
            }
        }
        "StatefulSet" => {
            default_to(spec, "replicas", 1);
            default_to(spec, "revisionHistoryLimit", 10);
            default_to(spec, "podManagementPolicy", "OrderedReady");
            let retain = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
            default_to(spec, "persistentVolumeClaimRetentionPolicy", retain);
            let strategy = object_mut(spec, "updateStrategy");
            default_to(strategy, "type", "RollingUpdate");
            if strategy.get("type") == Some(&json!("RollingUpdate")) {
                default_to(object_mut(strategy, "rollingUpdate"), "partition", 0);
            }
        }
        _ => default_to(spec, "replicas", 1),
    }
}

pub(super) fn validate(object: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let selector = object.at(&["spec", "selector"]);
    if selector.is_none_or(|selector| selector.is_null() || selector == &json!({})) {
        errors.push(FieldError::required("spec.selector", ""));
    }
    let labels = object
        .at(&["spec", "template", "metadata", "labels"])
        .cloned()
        .unwrap_or_default();
    let wanted = object
        .at(&["spec", "selector", "matchLabels"])
        .and_then(Value::as_object);
    let differs = |wanted: &Object| {
        wanted
            .iter()
            .any(|(key, value)| labels.get(key) != Some(value))
    };
    if wanted.is_some_and(differs) {
        let text = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid(
            "spec.template.metadata.labels",
            &labels,
            text,
        ));
    }
    if object
        .at(&["spec", "replicas"])
        .and_then(Value::as_i64)
        .is_some_and(|count| count < 0)
    {
        let value = object
            .at(&["spec", "replicas"])
            .cloned()
            .unwrap_or_default();
        let text = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.replicas", &value, text));
    }
    let template = object
        .at(&["spec", "template", "spec"])
        .cloned()
        .unwrap_or_default();
    pod::validate_spec("spec.template.spec", &template, errors);
    if let Some(old) = old
        && old.at(&["spec", "selector"]) != selector
    {
        let value = selector.cloned().unwrap_or_default();
        errors.push(FieldError::invalid(
            "spec.selector",
            &value,
            "field is immutable",
        ));
    }
}
