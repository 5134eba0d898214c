//! CustomResourceDefinitions: defaulting, validation, and the kinds they define.

use std::{collections::HashSet, sync::Arc};

use serde_json::{Value, json};

use super::{
    CustomVersion, PrinterColumn, ScalePaths, lifecycle::condition, path::JsonPath,
    patterns::PatternCheck, rules, schema::Patterns, structure,
};
use crate::{
    handler::table::Column,
    kind::{
        FieldTable, GenerationRule, NameRule, ResourceType, Rules, StatusRule, Subresource, Verbs,
        group_version, prefix,
    },
    meta::{Meta as _, default_to, object_mut},
    status::FieldError,
    store::Object,
};

/// Limit of printer columns per version: each is evaluated for each object of a table.
const MAX_COLUMNS: usize = 64;

/// Fills in defaults.
pub(crate) fn prepare(object: &mut Object) {
    let spec = object_mut(object, "spec");
    let names = object_mut(spec, "names");
    let kind = names
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    if !kind.is_empty() {
        default_to(names, "singular", kind.to_lowercase());
        default_to(names, "listKind", format!("{kind}List"));
    }
    default_to(spec, "conversion", json!({"strategy": "None"}));
    let storage = versions(object).find(|version| flag(version, "storage"));
    let stored: Vec<String> = storage
        .into_iter()
        .map(|version| text(version, "name").to_owned())
        .collect();
    let status = object_mut(object, "status");
    let mut known: Vec<Value> = status
        .get("storedVersions")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    for name in stored {
        if !known.contains(&json!(name)) {
            known.push(name.into());
        }
    }
    status.insert("storedVersions".into(), known.into());
}

/// Adds the errors of a definition.
pub(crate) fn validate(object: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let spec = |path: &[&str]| {
        let path: Vec<&str> = std::iter::once("spec")
            .chain(path.iter().copied())
            .collect();
        object.at(&path).and_then(Value::as_str).unwrap_or_default()
    };
    let (plural, group) = (spec(&["names", "plural"]), spec(&["group"]));
    if object.name() != format!("{plural}.{group}") {
        let text = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid(
            "metadata.name",
            &json!(object.name()),
            text,
        ));
    }
    for (field, value) in [
        ("spec.group", group),
        ("spec.names.plural", plural),
        ("spec.names.kind", spec(&["names", "kind"])),
        ("spec.scope", spec(&["scope"])),
    ] {
        if value.is_empty() {
            errors.push(FieldError::required(field, ""));
        }
    }
    let scope = spec(&["scope"]);
    if !scope.is_empty() && !["Cluster", "Namespaced"].contains(&scope) {
        let known = ["Cluster", "Namespaced"];
        errors.push(FieldError::not_supported(
            "spec.scope",
            &json!(scope),
            &known,
        ));
    }
    validate_versions(object, errors);
    validate_protection(object, group, errors);
    validate_rules(object, errors);
    if let Some(old) = old {
        validate_change(object, old, errors);
    }
}

/// Refuses changes of group and plural name, and of scope and kind once the definition is established.
fn validate_change(object: &Object, old: &Object, errors: &mut Vec<FieldError>) {
    let is_established = condition(old, "Established") == Some("True");
    for (path, always) in [
        (&["spec", "scope"][..], false),
        (&["spec", "names", "kind"], false),
        (&["spec", "group"], true),
        (&["spec", "names", "plural"], true),
    ] {
        let value = object.at(path);
        if (always || is_established) && value != old.at(path) {
            let value = value.cloned().unwrap_or_default();
            let text = "field is immutable";
            errors.push(FieldError::invalid(path.join("."), &value, text));
        }
    }
}

/// Validates structure, patterns and CEL rules of all schemas. If all versions have the same schema,
/// errors name `spec.validation`, as upstream's do.
fn validate_rules(object: &Object, errors: &mut Vec<FieldError>) {
    let schemas: Vec<Option<&Value>> = versions(object)
        .map(|version| version.pointer("/schema/openAPIV3Schema"))
        .collect();
    let mut patterns = PatternCheck::default();
    if schemas.windows(2).all(|pair| pair[0] == pair[1]) {
        if let Some(Some(schema)) = schemas.first() {
            let field = "spec.validation.openAPIV3Schema";
            errors.extend(structure::errors(schema, field));
            errors.extend(patterns.errors(schema, field));
            errors.extend(rules::errors(schema, field));
        }
        return;
    }
    for (position, schema) in schemas.into_iter().enumerate() {
        let field = format!("spec.versions[{position}].schema.openAPIV3Schema");
        errors.extend(
            schema
                .into_iter()
                .flat_map(|schema| {
                    [
                        structure::errors(schema, &field),
                        patterns.errors(schema, &field),
                        rules::errors(schema, &field),
                    ]
                })
                .flatten(),
        );
    }
}

fn validate_versions(object: &Object, errors: &mut Vec<FieldError>) {
    let storage = versions(object)
        .filter(|version| flag(version, "storage"))
        .count();
    let shown = || -> Value {
        let shown = |version: &Value| {
            json!({
                "Name": version.get("name"), "Served": version.get("served"),
                "Storage": version.get("storage"), "Deprecated": false,
                "DeprecationWarning": null, "Schema": null, "Subresources": null,
                "AdditionalPrinterColumns": null, "SelectableFields": null,
            })
        };
        versions(object).map(shown).collect()
    };
    for (position, version) in versions(object).enumerate() {
        let name = text(version, "name");
        if is_dns_1035_label(name) {
            continue;
        }
        // Upstream reports the first version twice: as `spec.version` too.
        let own = format!("spec.versions[{position}].name");
        let fields = [
            Some(own),
            (position == 0).then(|| "spec.version".to_owned()),
        ];
        for field in fields.into_iter().flatten() {
            errors.push(FieldError::invalid(field, &json!(name), DNS_1035));
        }
    }
    if storage != 1 {
        let text = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", &shown(), text));
    }
    let mut names: Vec<&str> = versions(object)
        .map(|version| text(version, "name"))
        .collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        let text = "must contain unique version names";
        errors.push(FieldError::invalid("spec.versions", &shown(), text));
    }
    for (position, version) in versions(object).enumerate() {
        if version.pointer("/schema/openAPIV3Schema").is_none() {
            let field = format!("spec.versions[{position}].schema.openAPIV3Schema");
            errors.push(FieldError::required(field, ""));
        }
        let columns = version.get("additionalPrinterColumns");
        let columns = columns.and_then(Value::as_array).map_or(0, Vec::len);
        if columns > MAX_COLUMNS {
            let field = format!("spec.versions[{position}].additionalPrinterColumns");
            errors.push(FieldError::too_many(field, columns, MAX_COLUMNS));
        }
    }
    if storage == 0 {
        let text = "must have at least one stored version";
        errors.push(FieldError::invalid(
            "status.storedVersions",
            &Value::Null,
            text,
        ));
    }
}

const DNS_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or \
    '-', start with an alphabetic character, and end with an alphanumeric character (e.g. \
    'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

fn is_dns_1035_label(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.chars().all(fits)
}

/// Requires the approval annotation for groups under `k8s.io` and `kubernetes.io`.
fn validate_protection(object: &Object, group: &str, errors: &mut Vec<FieldError>) {
    const ANNOTATION: &str = "api-approved.kubernetes.io";
    let protected = [".k8s.io", ".kubernetes.io"]
        .iter()
        .any(|end| group.ends_with(end));
    let annotation = object
        .at(&["metadata", "annotations", ANNOTATION])
        .and_then(Value::as_str);
    if protected && annotation.unwrap_or_default().is_empty() {
        errors.push(FieldError::required(
            format!("metadata.annotations[{ANNOTATION}]"),
            "protected groups must have approval annotation \"api-approved.kubernetes.io\", see \
             https://github.com/kubernetes/enhancements/pull/1111",
        ));
    }
}

pub(super) fn versions(object: &Object) -> impl Iterator<Item = &Value> {
    object
        .at(&["spec", "versions"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn flag(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The resource types of a definition, one per served version.
pub(crate) fn resource_types(definition: &Object) -> Vec<Arc<ResourceType>> {
    let storage = versions(definition).find(|version| flag(version, "storage"));
    let storage = storage
        .map(|version| text(version, "name"))
        .unwrap_or_default();
    let mut patterns = Patterns::default();
    versions(definition)
        .filter(|version| flag(version, "served"))
        .map(|version| Arc::new(resource_type(definition, version, storage, &mut patterns)))
        .collect()
}

fn resource_type(
    definition: &Object,
    version: &Value,
    storage_version: &str,
    patterns: &mut Patterns,
) -> ResourceType {
    let spec = |path: &[&str]| {
        let path: Vec<&str> = std::iter::once("spec")
            .chain(path.iter().copied())
            .collect();
        object_text(definition, &path)
    };
    let list = |name: &str| -> Vec<String> {
        let list = definition
            .at(&["spec", "names", name])
            .and_then(Value::as_array);
        list.into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let (group, name, kind) = (
        spec(&["group"]),
        text(version, "name"),
        spec(&["names", "kind"]),
    );
    let plural = spec(&["names", "plural"]);
    let has_status = version.pointer("/subresources/status").is_some();
    let scale = version.pointer("/subresources/scale").and_then(scale_paths);
    let mut subresources = Vec::new();
    if scale.is_some() {
        subresources.push(Subresource::Scale);
    }
    if has_status {
        subresources.push(Subresource::Status);
    }
    ResourceType {
        list_kind: spec(&["names", "listKind"]),
        singular: spec(&["names", "singular"]),
        short_names: list("shortNames"),
        categories: list("categories"),
        namespaced: spec(&["scope"]) == "Namespaced",
        storage: format!("{plural}.{group}").into(),
        rules: Rules {
            create_on_update: false,
            unconditional_update: false,
            returns_deleted: false,
            status: if has_status {
                StatusRule::Separate
            } else {
                StatusRule::Plain
            },
            generation: GenerationRule::Content,
            name: NameRule::Subdomain,
            verbs: Verbs::All,
        },
        subresources,
        fields: selectable_fields(definition, version),
        custom: Some(Arc::new(CustomVersion::new(
            group_version(&group, storage_version),
            version
                .pointer("/schema/openAPIV3Schema")
                .cloned()
                .unwrap_or_default(),
            columns(version),
            scale,
            patterns,
        ))),
        prefix: prefix(&group, name, &kind, crate::kind::Origin::Custom),
        version: name.to_owned(),
        group,
        kind,
        plural,
    }
}

fn object_text(object: &Object, path: &[&str]) -> String {
    object
        .at(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// The selectable fields of one version. Every version stores the values of all versions' fields, so
/// that positions agree.
fn selectable_fields(definition: &Object, version: &Value) -> FieldTable {
    let paths = |version: &Value| -> Vec<String> {
        let fields = version.get("selectableFields").and_then(Value::as_array);
        let path = |field: &Value| {
            Some(
                field
                    .get("jsonPath")?
                    .as_str()?
                    .trim_start_matches('.')
                    .to_owned(),
            )
        };
        fields.into_iter().flatten().filter_map(path).collect()
    };
    let own: HashSet<String> = paths(version).into_iter().collect();
    let mut all: Vec<String> = versions(definition).flat_map(paths).collect();
    all.sort();
    all.dedup();
    let fields = all
        .iter()
        .map(|path| crate::kind::Field::text(if own.contains(path) { path } else { "" }, path))
        .collect();
    FieldTable {
        fields,
        own_table: true,
        no_namespace: false,
    }
}

fn columns(version: &Value) -> Vec<PrinterColumn> {
    let declared = version
        .get("additionalPrinterColumns")
        .and_then(Value::as_array);
    let Some(declared) = declared.filter(|columns| !columns.is_empty()) else {
        let column = Column {
            kind: "date".to_owned(),
            ..Column::new("Age", 0)
        };
        let path = JsonPath::parse(".metadata.creationTimestamp");
        return path
            .map(|path| PrinterColumn { column, path })
            .into_iter()
            .collect();
    };
    let column = |declared: &Value| {
        let column = Column {
            name: text(declared, "name").to_owned(),
            kind: text(declared, "type").to_owned(),
            format: text(declared, "format").to_owned(),
            description: text(declared, "description").to_owned(),
            priority: declared
                .get("priority")
                .and_then(Value::as_i64)
                .unwrap_or(0),
        };
        Some(PrinterColumn {
            column,
            path: JsonPath::parse(text(declared, "jsonPath"))?,
        })
    };
    let shown = declared.iter().take(MAX_COLUMNS);
    shown.filter_map(column).collect()
}

fn scale_paths(scale: &Value) -> Option<ScalePaths> {
    let members = |name: &str| JsonPath::parse(scale.get(name)?.as_str()?)?.members();
    Some(ScalePaths {
        spec: members("specReplicasPath")?,
        status: members("statusReplicasPath")?,
        selector: members("labelSelectorPath"),
    })
}
