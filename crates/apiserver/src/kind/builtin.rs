//! Table of the built-in kinds.

use std::sync::Arc;

use super::{
    FieldTable, GenerationRule, NameRule, ResourceType, Rules, StatusRule, Subresource, Verbs,
    fields::{Extract, Field},
};

/// One built-in kind; [`PLAIN`] holds what most rows share.
struct Row {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    categories: &'static [&'static str],
    cluster: bool,
    rules: Rules,
    subresources: &'static [Subresource],
    /// Selectable fields: label, path in the object, and extraction.
    fields: &'static [(&'static str, &'static str, Extract)],
    own_table: bool,
    /// The collection, if it is shared with another row.
    storage: Option<&'static str>,
}

const RULES: Rules = Rules {
    create_on_update: false,
    unconditional_update: true,
    returns_deleted: false,
    status: StatusRule::Plain,
    generation: GenerationRule::Untouched,
    name: NameRule::Subdomain,
    verbs: Verbs::All,
};

/// Objects with a spec, a status of its own and a generation.
const WORKLOAD: Rules = Rules {
    status: StatusRule::Separate,
    generation: GenerationRule::Content,
    ..RULES
};

const DEPLOYMENT: Rules = Rules {
    generation: GenerationRule::ContentAndAnnotations,
    ..WORKLOAD
};

const REVIEW: Rules = Rules {
    verbs: Verbs::CreateOnly,
    ..RULES
};

const PLAIN: Row = Row {
    group: "",
    kind: "",
    plural: "",
    short: &[],
    categories: &[],
    cluster: false,
    rules: RULES,
    subresources: &[],
    fields: &[],
    own_table: false,
    storage: None,
};

const STATUS: &[Subresource] = &[Subresource::Status];
const SCALED: &[Subresource] = &[Subresource::Scale, Subresource::Status];
const RBAC: &str = "rbac.authorization.k8s.io";
const RBAC_RULES: Rules = Rules {
    create_on_update: true,
    name: NameRule::PathSegment,
    ..RULES
};
const NETWORKING: &str = "networking.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";

const POD_FIELDS: &[(&str, &str, Extract)] = &[
    ("spec.nodeName", "spec.nodeName", Extract::Text),
    ("spec.restartPolicy", "spec.restartPolicy", Extract::Text),
    ("spec.schedulerName", "spec.schedulerName", Extract::Text),
    (
        "spec.serviceAccountName",
        "spec.serviceAccountName",
        Extract::Text,
    ),
    ("spec.hostNetwork", "spec.hostNetwork", Extract::Flag),
    ("status.phase", "status.phase", Extract::Text),
    ("status.podIP", "status.podIP", Extract::Text),
    ("status.podIPs", "status.podIPs", Extract::Nothing),
    (
        "status.nominatedNodeName",
        "status.nominatedNodeName",
        Extract::Text,
    ),
];

const CORE_EVENT_FIELDS: &[(&str, &str, Extract)] = &[
    ("involvedObject.kind", "involvedObject.kind", Extract::Text),
    (
        "involvedObject.namespace",
        "involvedObject.namespace",
        Extract::Text,
    ),
    ("involvedObject.name", "involvedObject.name", Extract::Text),
    ("involvedObject.uid", "involvedObject.uid", Extract::Text),
    (
        "involvedObject.apiVersion",
        "involvedObject.apiVersion",
        Extract::Text,
    ),
    (
        "involvedObject.resourceVersion",
        "involvedObject.resourceVersion",
        Extract::Text,
    ),
    (
        "involvedObject.fieldPath",
        "involvedObject.fieldPath",
        Extract::Text,
    ),
    ("reason", "reason", Extract::Text),
    ("reportingComponent", "reportingComponent", Extract::Text),
    ("source", "source.component", Extract::EventSource),
    ("type", "type", Extract::Text),
];

/// The same fields by the names of `events.k8s.io`, which has none for `source`.
const EVENT_FIELDS: &[(&str, &str, Extract)] = &[
    ("regarding.kind", "involvedObject.kind", Extract::Text),
    (
        "regarding.namespace",
        "involvedObject.namespace",
        Extract::Text,
    ),
    ("regarding.name", "involvedObject.name", Extract::Text),
    ("regarding.uid", "involvedObject.uid", Extract::Text),
    (
        "regarding.apiVersion",
        "involvedObject.apiVersion",
        Extract::Text,
    ),
    (
        "regarding.resourceVersion",
        "involvedObject.resourceVersion",
        Extract::Text,
    ),
    (
        "regarding.fieldPath",
        "involvedObject.fieldPath",
        Extract::Text,
    ),
    ("reason", "reason", Extract::Text),
    ("reportingController", "reportingComponent", Extract::Text),
    ("", "source.component", Extract::EventSource),
    ("type", "type", Extract::Text),
];

const EVENT_RULES: Rules = Rules {
    create_on_update: true,
    ..RULES
};

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row { kind: "ConfigMap", plural: "configmaps", short: &["cm"], ..PLAIN },
    Row { kind: "Endpoints", plural: "endpoints", short: &["ep"],
          rules: Rules { create_on_update: true, ..RULES }, ..PLAIN },
    Row { kind: "Event", plural: "events", short: &["ev"], rules: EVENT_RULES,
          fields: CORE_EVENT_FIELDS, own_table: true, ..PLAIN },
    Row { kind: "Namespace", plural: "namespaces", short: &["ns"], cluster: true,
          rules: Rules { status: StatusRule::Separate, name: NameRule::Label, returns_deleted: true,
                         verbs: Verbs::NoDeleteCollection, ..RULES },
          subresources: &[Subresource::Finalize, Subresource::Status],
          fields: &[("status.phase", "status.phase", Extract::Text)], own_table: true, ..PLAIN },
    Row { kind: "Node", plural: "nodes", short: &["no"], cluster: true,
          rules: Rules { status: StatusRule::KeptOnCreate, ..RULES }, subresources: STATUS,
          fields: &[("spec.unschedulable", "spec.unschedulable", Extract::Flag)],
          own_table: true, ..PLAIN },
    Row { kind: "Pod", plural: "pods", short: &["po"], categories: &["all"],
          rules: Rules { returns_deleted: true, ..WORKLOAD },
          subresources: &[Subresource::Binding, Subresource::EphemeralContainers,
                          Subresource::Eviction, Subresource::Proxy, Subresource::Status],
          fields: POD_FIELDS, own_table: true, ..PLAIN },
    Row { kind: "ReplicationController", plural: "replicationcontrollers", short: &["rc"],
          categories: &["all"], rules: WORKLOAD, subresources: SCALED,
          fields: &[("status.replicas", "status.replicas", Extract::Text)], own_table: true,
          ..PLAIN },
    Row { kind: "Secret", plural: "secrets", fields: &[("type", "type", Extract::Text)],
          own_table: true, ..PLAIN },
    Row { kind: "Service", plural: "services", short: &["svc"], categories: &["all"],
          rules: Rules { status: StatusRule::SeparateWithMetadata, name: NameRule::Label,
                         create_on_update: true, returns_deleted: true, ..RULES },
          subresources: STATUS,
          fields: &[("spec.clusterIP", "spec.clusterIP", Extract::Text),
                    ("spec.type", "spec.type", Extract::Text)],
          own_table: true, ..PLAIN },
    Row { kind: "ServiceAccount", plural: "serviceaccounts", short: &["sa"],
          rules: Rules { returns_deleted: true, ..RULES },
          subresources: &[Subresource::Token], ..PLAIN },
    Row { group: ADMISSION, kind: "ValidatingAdmissionPolicy",
          plural: "validatingadmissionpolicies", cluster: true, categories: &["api-extensions"],
          rules: Rules { unconditional_update: false, ..WORKLOAD }, subresources: STATUS, ..PLAIN },
    Row { group: ADMISSION, kind: "ValidatingAdmissionPolicyBinding",
          plural: "validatingadmissionpolicybindings", cluster: true,
          categories: &["api-extensions"],
          rules: Rules { generation: GenerationRule::Content, unconditional_update: false, ..RULES },
          ..PLAIN },
    Row { group: "apiextensions.k8s.io", kind: "CustomResourceDefinition",
          plural: "customresourcedefinitions", short: &["crd", "crds"],
          categories: &["api-extensions"], cluster: true,
          rules: Rules { unconditional_update: false, ..WORKLOAD }, subresources: STATUS, ..PLAIN },
    Row { group: "apps", kind: "DaemonSet", plural: "daemonsets", short: &["ds"],
          categories: &["all"], rules: WORKLOAD, subresources: STATUS, ..PLAIN },
    Row { group: "apps", kind: "Deployment", plural: "deployments", short: &["deploy"],
          categories: &["all"], rules: DEPLOYMENT, subresources: SCALED, ..PLAIN },
    Row { group: "apps", kind: "ReplicaSet", plural: "replicasets", short: &["rs"],
          categories: &["all"], rules: WORKLOAD, subresources: SCALED, ..PLAIN },
    Row { group: "apps", kind: "StatefulSet", plural: "statefulsets", short: &["sts"],
          categories: &["all"], rules: WORKLOAD, subresources: SCALED, ..PLAIN },
    Row { group: "authentication.k8s.io", kind: "SelfSubjectReview", plural: "selfsubjectreviews",
          cluster: true, rules: REVIEW, ..PLAIN },
    Row { group: "authentication.k8s.io", kind: "TokenReview", plural: "tokenreviews",
          cluster: true, rules: REVIEW, ..PLAIN },
    Row { group: "authorization.k8s.io", kind: "LocalSubjectAccessReview",
          plural: "localsubjectaccessreviews", rules: REVIEW, ..PLAIN },
    Row { group: "authorization.k8s.io", kind: "SelfSubjectAccessReview",
          plural: "selfsubjectaccessreviews", cluster: true, rules: REVIEW, ..PLAIN },
    Row { group: "authorization.k8s.io", kind: "SelfSubjectRulesReview",
          plural: "selfsubjectrulesreviews", cluster: true, rules: REVIEW, ..PLAIN },
    Row { group: "authorization.k8s.io", kind: "SubjectAccessReview",
          plural: "subjectaccessreviews", cluster: true, rules: REVIEW, ..PLAIN },
    Row { group: "coordination.k8s.io", kind: "Lease", plural: "leases",
          rules: Rules { create_on_update: true, unconditional_update: false, ..RULES }, ..PLAIN },
    Row { group: "discovery.k8s.io", kind: "EndpointSlice", plural: "endpointslices",
          rules: Rules { generation: GenerationRule::ContentAndLabels, ..RULES }, ..PLAIN },
    Row { group: "events.k8s.io", kind: "Event", plural: "events", short: &["ev"],
          rules: EVENT_RULES, fields: EVENT_FIELDS, own_table: true, storage: Some("events"),
          ..PLAIN },
    Row { group: NETWORKING, kind: "Ingress", plural: "ingresses", short: &["ing"],
          rules: WORKLOAD, subresources: STATUS, ..PLAIN },
    Row { group: NETWORKING, kind: "IPAddress", plural: "ipaddresses", short: &["ip"],
          cluster: true, rules: Rules { name: NameRule::Address, ..RULES }, ..PLAIN },
    Row { group: NETWORKING, kind: "NetworkPolicy", plural: "networkpolicies", short: &["netpol"],
          rules: Rules { generation: GenerationRule::Content, ..RULES }, ..PLAIN },
    Row { group: NETWORKING, kind: "ServiceCIDR", plural: "servicecidrs", cluster: true,
          rules: Rules { status: StatusRule::Separate, ..RULES }, subresources: STATUS, ..PLAIN },
    Row { group: "policy", kind: "PodDisruptionBudget", plural: "poddisruptionbudgets",
          short: &["pdb"], rules: Rules { unconditional_update: false, ..WORKLOAD },
          subresources: STATUS, ..PLAIN },
    Row { group: RBAC, kind: "ClusterRole", plural: "clusterroles", cluster: true,
          rules: RBAC_RULES, ..PLAIN },
    Row { group: RBAC, kind: "ClusterRoleBinding", plural: "clusterrolebindings", cluster: true,
          rules: RBAC_RULES, ..PLAIN },
    Row { group: RBAC, kind: "Role", plural: "roles", rules: RBAC_RULES, ..PLAIN },
    Row { group: RBAC, kind: "RoleBinding", plural: "rolebindings", rules: RBAC_RULES, ..PLAIN },
    Row { group: "scheduling.k8s.io", kind: "PriorityClass", plural: "priorityclasses",
          short: &["pc"], cluster: true,
          rules: Rules { generation: GenerationRule::Content, ..RULES }, ..PLAIN },
];

/// Groups in the order of discovery; groups of custom resources follow.
pub(crate) const GROUP_ORDER: &[&str] = &[
    "",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    NETWORKING,
    "policy",
    RBAC,
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    ADMISSION,
    "coordination.k8s.io",
    "discovery.k8s.io",
];

/// The resource types of all rows.
pub(crate) fn resource_types() -> Vec<Arc<ResourceType>> {
    ROWS.iter()
        .map(|row| Arc::new(resource_type(row)))
        .collect()
}

fn resource_type(row: &Row) -> ResourceType {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let storage = match row.storage {
        Some(storage) => storage.to_owned(),
        None if row.group.is_empty() => row.plural.to_owned(),
        None => format!("{}.{}", row.plural, row.group),
    };
    ResourceType {
        group: row.group.to_owned(),
        version: "v1".to_owned(),
        kind: row.kind.to_owned(),
        list_kind: format!("{}List", row.kind),
        plural: row.plural.to_owned(),
        singular: row.kind.to_lowercase(),
        short_names: owned(row.short),
        categories: owned(row.categories),
        namespaced: !row.cluster,
        storage: storage.into(),
        rules: row.rules,
        subresources: row.subresources.to_vec(),
        fields: FieldTable {
            fields: row
                .fields
                .iter()
                .map(|(label, path, how)| Field::new(label, path, *how))
                .collect(),
            own_table: row.own_table,
            no_namespace: row.kind == "Node",
        },
        custom: None,
        prefix: super::prefix(row.group, "v1", row.kind, super::Origin::Builtin),
    }
}
