//! Discovery of groups, versions and resources, in the legacy and the aggregated format.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use http::{StatusCode, header};
use serde_json::{Map, Value, json};

use crate::{
    api::{Api, Context},
    kind::{
        ResourceType, group_version,
        registry::{Group, Served, Version},
    },
    negotiate::MediaRange,
    reply::Reply,
    status::{ApiError, Outcome},
};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Answers all paths under `/api` and `/apis` that name no resource.
pub(super) fn answer(api: &Api, context: &Context) -> Outcome<Reply> {
    let served = api.registry.served();
    let path = context.info.path.trim_end_matches('/');
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match parts[..] {
        ["api" | "apis"] if form(context)? == Form::Aggregated => {
            Ok(aggregated(&served, parts[0] == "api", context))
        }
        ["api"] => Ok(ok(json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [
                {"clientCIDR": "0.0.0.0/0", "serverAddress": host(context)},
            ],
        }))),
        ["apis"] => {
            let groups: Vec<Value> = named_groups(&served).map(group).collect();
            Ok(ok(
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
            ))
        }
        ["api", version] => resources(&served, "", version),
        ["apis", name] => {
            let found = named_groups(&served).find(|group| group.name == name);
            let mut group = group(found.ok_or_else(ApiError::page_not_found)?);
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            Ok(ok(group))
        }
        ["apis", group, version] => resources(&served, group, version),
        _ => Err(ApiError::page_not_found()),
    }
}

/// True for the root path of a served group version.
pub(super) fn is_group_version(api: &Api, path: &str) -> bool {
    let served = api.registry.served();
    let parts: Vec<&str> = path.trim_end_matches('/').split('/').skip(1).collect();
    match parts[..] {
        ["api", version] => served.version("", version).is_some(),
        ["apis", group, version] => served.version(group, version).is_some(),
        _ => false,
    }
}

/// Answers `/` with all served paths.
pub(super) fn root(api: &Api) -> Reply {
    let mut paths: Vec<String> = [
        "/api",
        "/apis",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ]
    .into_iter()
    .map(str::to_owned)
    .collect();
    for group in &api.registry.served().groups {
        if !group.name.is_empty() {
            paths.push(format!("/apis/{}", group.name));
        }
        paths.extend(
            group
                .versions
                .iter()
                .map(|version| version_path(group, version)),
        );
    }
    paths.sort();
    Reply::value(StatusCode::OK, json!({ "paths": paths }))
}

/// `/api/v1` or `/apis/apps/v1`.
pub(super) fn version_path(group: &Group, version: &Version) -> String {
    match group.name.as_str() {
        "" => format!("/api/{}", version.name),
        name => format!("/apis/{name}/{}", version.name),
    }
}

fn ok(value: Value) -> Reply {
    Reply::value(StatusCode::OK, value)
}

fn host(context: &Context) -> &str {
    context.header(header::HOST).unwrap_or_default()
}

fn named_groups(served: &Served) -> impl Iterator<Item = &Group> {
    served.groups.iter().filter(|group| !group.name.is_empty())
}

fn group(group: &Group) -> Value {
    let version = |version: &Version| json!({"groupVersion": group_version(&group.name, &version.name), "version": version.name});
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    json!({"name": group.name, "preferredVersion": versions.first(), "versions": versions})
}

fn resources(served: &Served, group: &str, version: &str) -> Outcome<Reply> {
    let found = served
        .version(group, version)
        .ok_or_else(ApiError::page_not_found)?;
    let mut list = Map::new();
    list.insert("kind".into(), "APIResourceList".into());
    if !group.is_empty() {
        list.insert("apiVersion".into(), "v1".into());
    }
    list.insert("groupVersion".into(), group_version(group, version).into());
    let resources: Vec<Value> = found
        .resources
        .iter()
        .flat_map(|kind| legacy(kind))
        .collect();
    list.insert("resources".into(), resources.into());
    Ok(ok(list.into()))
}

/// A resource and its subresources as APIResource entries.
fn legacy(kind: &ResourceType) -> Vec<Value> {
    let mut resource = json!({
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": kind.rules.verbs.names(),
    });
    add_names(&mut resource, kind);
    let mut entries = vec![resource];
    for subresource in &kind.subresources {
        let mut entry = json!({
            "name": format!("{}/{}", kind.plural, subresource.name()),
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": subresource.verbs(),
        });
        if let Some((group, version, name)) = subresource.kind() {
            entry["kind"] = name.into();
            if !group.is_empty() {
                entry["group"] = group.into();
                entry["version"] = version.into();
            }
        }
        entries.push(entry);
    }
    entries
}

fn add_names(entry: &mut Value, kind: &ResourceType) {
    if !kind.short_names.is_empty() {
        entry["shortNames"] = kind.short_names.clone().into();
    }
    if !kind.categories.is_empty() {
        entry["categories"] = kind.categories.clone().into();
    }
}

/// The two discovery formats.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    Legacy,
    Aggregated,
}

fn form(context: &Context) -> Outcome<Form> {
    let ranges = MediaRange::parse_all(context.header(header::ACCEPT).unwrap_or_default());
    if ranges.is_empty() {
        return Ok(Form::Legacy);
    }
    for range in &ranges {
        match (range.kind, range.parameter("as"), range.parameter("v")) {
            ("application/json", Some("APIGroupDiscoveryList"), Some("v2")) => {
                return Ok(Form::Aggregated);
            }
            (_, Some(_), _) => {}
            _ => return Ok(Form::Legacy),
        }
    }
    Err(ApiError::not_acceptable(
        "only the following media types are accepted: application/json, application/yaml, \
         application/vnd.kubernetes.protobuf",
    ))
}

fn aggregated(served: &Served, core: bool, context: &Context) -> Reply {
    let groups = served
        .groups
        .iter()
        .filter(|group| group.name.is_empty() == core);
    let items: Vec<Value> = groups.map(aggregated_group).collect();
    let body = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    });
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(body.to_string());
    let tag = format!("\"{hash:016X}\"");
    let unchanged = context.header(header::IF_NONE_MATCH) == Some(tag.as_str());
    let reply = if unchanged {
        let nothing = bytes::Bytes::new();
        let kind = header::HeaderValue::from_static(AGGREGATED);
        Reply::new(
            StatusCode::NOT_MODIFIED,
            crate::reply::Payload::Raw(nothing, kind),
        )
    } else {
        ok(body).header(header::CONTENT_TYPE, AGGREGATED)
    };
    reply
        .header(header::ETAG, &tag)
        .header(header::VARY, "Accept")
        .header(header::CACHE_CONTROL, "public")
}

fn aggregated_group(group: &Group) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|version| {
            let resources: Vec<Value> = version
                .resources
                .iter()
                .map(|kind| aggregated_resource(kind))
                .collect();
            json!({"version": version.name, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let metadata = match group.name.as_str() {
        "" => json!({}),
        name => json!({ "name": name }),
    };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(kind: &ResourceType) -> Value {
    let mut resource = json!({
        "resource": kind.plural,
        "responseKind": {"group": "", "version": "", "kind": kind.kind},
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": kind.rules.verbs.names(),
    });
    add_names(&mut resource, kind);
    let subresources: Vec<Value> = kind
        .subresources
        .iter()
        .map(|subresource| {
            let (group, version, name) = subresource.kind().unwrap_or(("", "", &kind.kind));
            json!({
                "subresource": subresource.name(),
                "responseKind": {"group": group, "version": version, "kind": name},
                "verbs": subresource.verbs(),
            })
        })
        .collect();
    if !subresources.is_empty() {
        resource["subresources"] = subresources.into();
    }
    resource
}
