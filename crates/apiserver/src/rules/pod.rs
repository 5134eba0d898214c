//! Rules of Pods and of Pod templates.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::{
    meta::{Meta as _, default_to, object_mut},
    status::FieldError,
    store::Object,
};

/// Resets the status to Pending and adds what upstream's admission plugins add.
pub(super) fn prepare_create(object: &mut Object) {
    let quality = quality_of_service(object);
    object.insert(
        "status".into(),
        json!({"phase": "Pending", "qosClass": quality}),
    );
    let spec = object_mut(object, "spec");
    default_spec(spec);
    default_to(spec, "enableServiceLinks", true);
    default_to(spec, "priority", 0);
    default_to(spec, "preemptionPolicy", "PreemptLowerPriority");
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Value::Array(tolerations) = tolerations else {
        return;
    };
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        if !tolerations
            .iter()
            .any(|known| known.get("key") == Some(&json!(key)))
        {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
            }));
        }
    }
}

pub(super) fn prepare_update(object: &mut Object) {
    default_spec(object_mut(object, "spec"));
}

/// Defaults of a Pod template, at `spec.template.spec`.
pub(super) fn default_template(object: &mut Object) {
    let spec = object_mut(object, "spec");
    if let Some(Value::Object(template)) = spec.get_mut("template") {
        default_spec(object_mut(template, "spec"));
    }
}

fn default_spec(spec: &mut Object) {
    default_to(spec, "restartPolicy", "Always");
    default_to(spec, "dnsPolicy", "ClusterFirst");
    default_to(spec, "terminationGracePeriodSeconds", 30);
    default_to(spec, "schedulerName", "default-scheduler");
    default_to(spec, "securityContext", json!({}));
    // The same name in two fields, the older one for older clients.
    let account = ["serviceAccountName", "serviceAccount"]
        .iter()
        .find_map(|name| spec.get(*name).and_then(Value::as_str).map(str::to_owned));
    if let Some(account) = account.filter(|account| !account.is_empty()) {
        spec.insert("serviceAccountName".into(), account.clone().into());
        spec.insert("serviceAccount".into(), account.into());
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if let Value::Object(container) = container {
                default_container(container);
            }
        }
    }
}

fn default_container(container: &mut Object) {
    default_to(container, "terminationMessagePath", "/dev/termination-log");
    default_to(container, "terminationMessagePolicy", "File");
    let image = container
        .get("image")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let tag = image
        .rsplit('/')
        .next()
        .and_then(|last| last.split_once(':'))
        .map(|(_, tag)| tag);
    let digest = image.contains('@');
    let latest = !digest && tag.is_none_or(|tag| tag == "latest");
    default_to(
        container,
        "imagePullPolicy",
        if latest { "Always" } else { "IfNotPresent" },
    );
    for port in members(container, "ports") {
        default_to(port, "protocol", "TCP");
    }
    for variable in members(container, "env") {
        if let Some(Value::Object(reference)) = variable
            .get_mut("valueFrom")
            .and_then(|from| from.get_mut("fieldRef"))
        {
            default_to(reference, "apiVersion", "v1");
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(Value::Object(probe)) = container.get_mut(probe) {
            default_to(probe, "timeoutSeconds", 1);
            default_to(probe, "periodSeconds", 10);
            default_to(probe, "successThreshold", 1);
            default_to(probe, "failureThreshold", 3);
            if let Some(Value::Object(get)) = probe.get_mut("httpGet") {
                default_to(get, "path", "/");
                default_to(get, "scheme", "HTTP");
            }
        }
    }
    if let Some(Value::Object(resources)) = container.get_mut("resources")
        && let Some(Value::Object(limits)) = resources.get("limits").cloned()
    {
        let requests = object_mut(resources, "requests");
        for (name, quantity) in limits {
            requests.entry(name).or_insert(quantity);
        }
    }
}

fn members<'a>(object: &'a mut Object, list: &str) -> impl Iterator<Item = &'a mut Object> {
    let elements = object.get_mut(list).and_then(Value::as_array_mut);
    elements
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

fn quality_of_service(object: &Object) -> &'static str {
    let containers = object.at(&["spec", "containers"]).and_then(Value::as_array);
    let resources = |container: &Value, part: &str| {
        container
            .pointer(&format!("/resources/{part}"))
            .cloned()
            .filter(|value| value != &json!({}))
    };
    let (mut any, mut all) = (false, true);
    for container in containers.into_iter().flatten() {
        let (limits, requests) = (
            resources(container, "limits"),
            resources(container, "requests"),
        );
        any |= limits.is_some() || requests.is_some();
        let complete = ["cpu", "memory"].iter().all(|name| {
            limits
                .as_ref()
                .is_some_and(|limits| limits.get(*name).is_some())
        });
        all &= complete
            && requests
                .as_ref()
                .is_none_or(|requests| limits.as_ref() == Some(requests));
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

pub(super) fn validate(object: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let spec = object.get("spec").cloned().unwrap_or_default();
    validate_spec("spec", &spec, errors);
    if let Some(old) = old
        && frozen(old) != frozen(object)
    {
        errors.push(FieldError::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,\
             `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
             additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to \
             be set to 1 if it was previously negative)\n",
        ));
    }
}

/// The immutable part of a Pod's spec.
fn frozen(object: &Object) -> Value {
    let mut spec = object.get("spec").cloned().unwrap_or_default();
    if let Value::Object(spec) = &mut spec {
        for name in [
            "activeDeadlineSeconds",
            "tolerations",
            "terminationGracePeriodSeconds",
        ] {
            spec.remove(name);
        }
        // These change by their own subresources: ephemeral containers, and nodeName by binding.
        for name in ["ephemeralContainers", "nodeName", "schedulingGates"] {
            spec.remove(name);
        }
        for list in ["containers", "initContainers"] {
            members(spec, list).for_each(|container| drop(container.remove("image")));
        }
    }
    spec
}

/// Errors of the spec of a Pod or a template.
pub(super) fn validate_spec(path: &str, spec: &Value, errors: &mut Vec<FieldError>) {
    let containers = spec.get("containers").and_then(Value::as_array);
    let Some(containers) = containers.filter(|list| !list.is_empty()) else {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
        return;
    };
    let volumes = spec.get("volumes").and_then(Value::as_array);
    let volumes: HashSet<&Value> = volumes
        .into_iter()
        .flatten()
        .filter_map(|volume| volume.get("name"))
        .collect();
    let mut names: HashSet<&str> = HashSet::new();
    for (position, container) in containers.iter().enumerate() {
        let text = |name: &str| {
            container
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let field = |name: &str| format!("{path}.containers[{position}].{name}");
        match text("name") {
            "" => errors.push(FieldError::required(field("name"), "")),
            name if !names.insert(name) => {
                errors.push(FieldError::duplicate(field("name"), &json!(name)));
            }
            name => {
                for complaint in weft_model::selector::syntax::dns_label_errors(name) {
                    errors.push(FieldError::invalid(field("name"), &json!(name), &complaint));
                }
            }
        }
        if text("image").is_empty() {
            errors.push(FieldError::required(field("image"), ""));
        }
        let mounts = container.get("volumeMounts").and_then(Value::as_array);
        for (number, mount) in mounts.into_iter().flatten().enumerate() {
            let name = mount.get("name").cloned().unwrap_or_default();
            if !volumes.contains(&name) {
                let field = field(&format!("volumeMounts[{number}].name"));
                errors.push(FieldError::not_found(field, &name));
            }
        }
    }
    let policy = spec
        .get("restartPolicy")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let known = ["Always", "OnFailure", "Never"];
    if !policy.is_empty() && !known.contains(&policy) {
        let field = format!("{path}.restartPolicy");
        errors.push(FieldError::not_supported(field, &json!(policy), &known));
    }
}
