//! Objects that kube-apiserver creates at start, and the restore of a persisted state.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    api::Api,
    handler::write,
    managed::Operation,
    options::{DryRun, FieldValidation, WriteOptions},
    persistence::Snapshot,
    store::{Object, Stored},
};

/// Loads the objects of an earlier run. Definitions come first: they define the kinds of the rest.
pub(crate) fn restore(api: &Api, snapshot: Snapshot) {
    const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
    let (definitions, others): (Vec<_>, Vec<_>) = snapshot
        .objects
        .into_iter()
        .partition(|(storage, _)| storage == DEFINITIONS);
    restore_all(api, definitions);
    crate::custom::serve_established(api);
    restore_all(api, others);
    if snapshot.version > 0 {
        api.store.resume_at(snapshot.version);
    }
    api.wake_controllers.notify_one();
}

fn restore_all(api: &Api, objects: Vec<(String, Vec<u8>)>) {
    let served = api.registry.served();
    for (storage, bytes) in objects {
        let kind = served
            .types()
            .filter(|kind| *kind.storage == *storage)
            .min_by_key(|kind| kind.group.len());
        let (Some(kind), Ok(object)) = (kind, serde_json::from_slice::<Object>(&bytes)) else {
            tracing::error!(storage, "object not restored: its kind is not served");
            continue;
        };
        if kind.is("", "Service") {
            api.allocator.learn(&object);
        }
        let stored = Arc::new(Stored::new(kind, object));
        api.controller_queue.written(kind, &stored);
        api.store.restore(&kind.storage, stored);
    }
}

/// Creates the system namespaces, the default ServiceCIDR, the Service `kubernetes`, the system
/// PriorityClasses and the bootstrap roles, each unless it exists.
pub(crate) fn create(api: &Api) {
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        ensure(
            api,
            "",
            "Namespace",
            "",
            json!({"metadata": {"name": name}}),
        );
    }
    let ranges: Vec<String> = api
        .allocator
        .ranges()
        .iter()
        .map(ToString::to_string)
        .collect();
    let range = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ranges}});
    ensure(api, "networking.k8s.io", "ServiceCIDR", "", range);
    mark_range_ready(api);
    let first = api
        .allocator
        .first_address()
        .map(|address| address.to_string());
    let service = json!({
        "metadata": {
            "name": "kubernetes",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {
            "clusterIP": first,
            "ports": [{"name": "https", "port": 443, "targetPort": 6443}],
        },
    });
    ensure(api, "", "Service", "default", service);
    for (name, value, text) in [
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods.",
        ),
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical node pods.",
        ),
    ] {
        let class = json!({"metadata": {"name": name}, "value": value, "description": text});
        ensure(api, "scheduling.k8s.io", "PriorityClass", "", class);
    }
    roles(api);
}

/// Sets the condition Ready of the default ServiceCIDR, as kube-apiserver does.
fn mark_range_ready(api: &Api) {
    let served = api.registry.served();
    let Some(kind) = served.of_kind("networking.k8s.io", "ServiceCIDR") else {
        return;
    };
    let writer = api.store.write();
    let scope = write::scope(api, &writer, kind);
    let Some(stored) = writer.get(&kind.storage, "kubernetes") else {
        return;
    };
    let mut object = stored.decode();
    if object
        .get("status")
        .is_some_and(|status| status.get("conditions").is_some())
    {
        return;
    }
    let condition = json!({
        "type": "Ready", "status": "True", "lastTransitionTime": api.clock.now_text(),
        "reason": "", "message": "Kubernetes default Service CIDR is ready",
    });
    object.insert("status".into(), json!({"conditions": [condition]}));
    write::store(&scope, object, DryRun::No);
}

/// Creates the bootstrap ClusterRoles and their bindings.
fn roles(api: &Api) {
    const RBAC: &str = "rbac.authorization.k8s.io";
    for (role, rules, subjects) in bootstrap_roles() {
        ensure(
            api,
            RBAC,
            "ClusterRole",
            "",
            json!({"metadata": {"name": role}, "rules": rules}),
        );
        let binding = json!({
            "metadata": {"name": role},
            "roleRef": {"kind": "ClusterRole", "name": role},
            "subjects": subjects,
        });
        ensure(api, RBAC, "ClusterRoleBinding", "", binding);
    }
}

/// Name, rules and subjects of each bootstrap role.
fn bootstrap_roles() -> Vec<(&'static str, Value, Value)> {
    let group = |name: &str| json!({"kind": "Group", "name": name});
    let authenticated = group("system:authenticated");
    let probes = ["/healthz", "/livez", "/readyz", "/version", "/version/"];
    vec![
        (
            "cluster-admin",
            json!([
                {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
                {"nonResourceURLs": ["*"], "verbs": ["*"]},
            ]),
            json!([group("system:masters")]),
        ),
        (
            "system:discovery",
            json!([{
                "nonResourceURLs": [
                    "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi",
                    "/openapi/*", "/readyz", "/version", "/version/",
                ],
                "verbs": ["get"],
            }]),
            json!([authenticated]),
        ),
        (
            "system:basic-user",
            json!([
                {"apiGroups": ["authorization.k8s.io"], "verbs": ["create"],
                 "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]},
                {"apiGroups": ["authentication.k8s.io"], "verbs": ["create"],
                 "resources": ["selfsubjectreviews"]},
            ]),
            json!([authenticated]),
        ),
        (
            "system:public-info-viewer",
            json!([{"nonResourceURLs": probes, "verbs": ["get"]}]),
            json!([authenticated, group("system:unauthenticated")]),
        ),
        (
            "system:service-account-issuer-discovery",
            json!([{
                "nonResourceURLs": [
                    "/.well-known/openid-configuration", "/.well-known/openid-configuration/",
                    "/openid/v1/jwks", "/openid/v1/jwks/",
                ],
                "verbs": ["get"],
            }]),
            json!([group("system:serviceaccounts")]),
        ),
        (
            "system:node-proxier",
            json!([
                {"apiGroups": [""], "resources": ["endpoints", "services"],
                 "verbs": ["list", "watch"]},
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
                {"apiGroups": ["", "events.k8s.io"], "resources": ["events"],
                 "verbs": ["create", "patch", "update"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"],
                 "verbs": ["list", "watch"]},
                {"apiGroups": ["networking.k8s.io"], "resources": ["servicecidrs"],
                 "verbs": ["list", "watch"]},
            ]),
            json!([{"kind": "User", "name": "system:kube-proxy"}]),
        ),
    ]
}

/// Creates an object unless it exists.
pub(crate) fn ensure(api: &Api, group: &str, kind: &str, namespace: &str, object: Value) {
    let served = api.registry.served();
    let (Some(kind), Value::Object(mut object)) = (served.of_kind(group, kind), object) else {
        return;
    };
    object.insert("kind".into(), kind.kind.clone().into());
    object.insert("apiVersion".into(), kind.api_version().into());
    let object: Object = object;
    let options = WriteOptions {
        dry_run: DryRun::No,
        validation: FieldValidation::Ignore,
        manager: Some("kube-apiserver".to_owned()),
        force: false,
    };
    let writer = api.store.write();
    let scope = write::scope(api, &writer, kind);
    let outcome = write::create_object(&scope, namespace, object, &options, Operation::Update);
    if let Err(error) = outcome {
        tracing::debug!(?error, "bootstrap object not created");
    }
}
