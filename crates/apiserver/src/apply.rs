//! Server-side apply: merges an applied object and tracks the fields each manager owns.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Write as _,
    sync::Arc,
};

use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::{
    api::{Api, Context},
    decode,
    encoding::yaml,
    handler::{
        exclusive_write::{ExclusiveWrite, Target},
        write::{Update, UpdateMethod, create_object, same_content, update_object},
    },
    kind::{ResourceType, Subresource},
    managed::{self, FieldSet, Managers, Operation, PathElement, Topology, Treatment},
    meta::{Meta as _, object_mut},
    options::WriteOptions,
    rules::WriteScope,
    status::{ApiError, FieldError, MAX_CAUSES, Outcome},
    store::{Object, Stored},
    view,
};

/// PATCH of type apply: creates the object, or merges the body into it.
pub(crate) fn apply(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
    subresource: Option<Subresource>,
    options: &WriteOptions,
) -> Outcome<(StatusCode, Arc<Stored>)> {
    let Some(manager) = options.manager.as_deref() else {
        let error = FieldError::required("fieldManager", "is required for apply patch");
        return Err(ApiError::invalid_options("PatchOptions", error));
    };
    let applied = body(context, kind, options)?;
    let exclusive = ExclusiveWrite::begin(api, context, kind, subresource);
    let (scope, target) = (exclusive.scope(), exclusive.target);
    let named = applied.name();
    if !named.is_empty() && named != target.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({named}) does not match the name on the URL ({})",
            target.name
        )));
    }
    let Some(stored) = exclusive.found() else {
        if named.is_empty() {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({} based on URL) was undeterminable: name must be \
                 provided",
                target.name
            )));
        }
        api.authorizer.authorize_creation(api, context)?;
        return create(&scope, &target, options, manager, applied);
    };
    let said = applied.meta_text("resourceVersion");
    if !said.is_empty() && said != stored.version.to_string() {
        return Err(ApiError::modified(kind, target.name));
    }
    let old = view::object(kind, &stored);
    let application = Application {
        kind,
        manager,
        subresource: target.subresource,
        options,
    };
    let (merged, managers) = application.onto(&old, &applied)?;
    let mut object = merged;
    if manager == KUBECTL {
        renew_last_applied(&mut object, context);
    }
    let sub = target.subresource.map_or("", Subresource::name);
    let set = application.claimed(&applied);
    let mut managers = managers;
    // A manager that only takes co-ownership changed nothing, so its entry has no time.
    let time = (!same_content(&old, &object)).then(|| api.clock.now_text());
    managers.set(
        manager,
        Operation::Apply,
        &kind.api_version(),
        sub,
        time,
        set,
    );
    managers.write(&mut object);
    let update = Update {
        target,
        options,
        method: UpdateMethod::Apply,
    };
    Ok((
        StatusCode::OK,
        update_object(&scope, &update, &stored, object)?,
    ))
}

/// The annotation in which client-side `kubectl apply` keeps the last applied configuration.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager whose server-side applies update [`LAST_APPLIED`].
const KUBECTL: &str = "kubectl";

/// Updates the annotation of client-side apply where it exists, so that a user of server-side
/// apply can go back.
fn renew_last_applied(object: &mut Object, context: &Context) {
    let kept = object.at(&["metadata", "annotations", LAST_APPLIED]);
    if kept.and_then(Value::as_str).is_none_or(str::is_empty) {
        return;
    }
    // The body as it was sent, without what the server adds.
    let Ok(Value::Object(mut applied)) = yaml::parse(&context.body).map(|document| document.value)
    else {
        return;
    };
    if let Some(Value::Object(annotations)) = applied.metadata_mut().get_mut("annotations") {
        annotations.remove(LAST_APPLIED);
    }
    let text = format!("{}\n", Value::Object(applied));
    object_mut(object.metadata_mut(), "annotations").insert(LAST_APPLIED.into(), text.into());
}

/// Parses the applied object and makes the checks that only apply has.
fn body(context: &Context, kind: &ResourceType, options: &WriteOptions) -> Outcome<Object> {
    let document = yaml::parse(&context.body)
        .map_err(|error| ApiError::bad_request(format!("error decoding YAML: {error}")))?;
    let Value::Object(mut applied) = document.value else {
        return Err(ApiError::bad_request("error decoding YAML: not an object"));
    };
    if applied
        .metadata()
        .is_some_and(|metadata| metadata.contains_key("managedFields"))
    {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let (said_version, said_kind) = (applied.text("apiVersion"), applied.text("kind"));
    if said_kind != kind.kind || said_version != kind.api_version() {
        let shown = match said_version.split_once('/') {
            Some(_) => said_version.to_owned(),
            None => format!("/{said_version}"),
        };
        return Err(ApiError::bad_request(format!(
            "invalid object type: {shown}, Kind={said_kind}"
        )));
    }
    // Every field of the applied object becomes owned, so defaults must not be added to it.
    let mut checked = applied.clone();
    let unknown = crate::schema::check(kind, &kind.group, &kind.version, &kind.kind, &mut checked)?;
    for path in &unknown {
        remove_text_path(&mut applied, path);
    }
    decode::report(
        context,
        &kind.kind,
        &kind.version,
        options.validation,
        Vec::new(),
        unknown,
    )?;
    let metadata = applied.metadata_mut();
    if kind.namespaced {
        crate::meta::default_to(metadata, "namespace", context.info.namespace.as_str());
    }
    remove_nulls(&mut applied);
    Ok(applied)
}

/// Removes an unknown field by the path it was reported with.
fn remove_text_path(object: &mut Object, path: &str) {
    let Some((first, rest)) = path.split_once('.') else {
        object.remove(path);
        return;
    };
    let (name, position) = match first.split_once('[') {
        Some((name, position)) => (name, position.trim_end_matches(']').parse::<usize>().ok()),
        None => (first, None),
    };
    let next = match (object.get_mut(name), position) {
        (Some(Value::Array(list)), Some(position)) => list.get_mut(position),
        (next, _) => next,
    };
    if let Some(Value::Object(next)) = next {
        remove_text_path(next, rest);
    }
}

fn remove_nulls(object: &mut Object) {
    object.retain(|_, value| !value.is_null());
    for value in object.values_mut() {
        match value {
            Value::Object(inner) => remove_nulls(inner),
            Value::Array(list) => {
                for element in list {
                    if let Value::Object(inner) = element {
                        remove_nulls(inner);
                    }
                }
            }
            _ => {}
        }
    }
}

fn create(
    scope: &WriteScope<'_>,
    target: &Target<'_>,
    options: &WriteOptions,
    manager: &str,
    applied: Object,
) -> Outcome<(StatusCode, Arc<Stored>)> {
    let kind = scope.kind;
    if target.subresource.is_some() {
        return Err(ApiError::not_found(kind, target.name));
    }
    let uid = applied.meta_text("uid");
    if !uid.is_empty() {
        let detail = format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        );
        return Err(ApiError::conflict(kind, target.name, &detail));
    }
    let application = Application {
        kind,
        manager,
        subresource: None,
        options,
    };
    let mut managers = Managers::default();
    let set = application.claimed(&applied);
    let time = scope.api.clock.now_text();
    managers.set(
        manager,
        Operation::Apply,
        &kind.api_version(),
        "",
        Some(time),
        set,
    );
    let mut object = applied;
    crate::schema::check(kind, &kind.group, &kind.version, &kind.kind, &mut object)?;
    managers.write(&mut object);
    let stored = create_object(scope, target.namespace, object, options, Operation::Apply)?;
    Ok((StatusCode::CREATED, stored))
}

/// One apply request of one manager.
struct Application<'a> {
    kind: &'a ResourceType,
    manager: &'a str,
    subresource: Option<Subresource>,
    options: &'a WriteOptions,
}

impl Application<'_> {
    /// The fields that an applied object owns.
    fn claimed(&self, applied: &Object) -> FieldSet {
        let mut set = FieldSet::of_applied(&Topology::of(self.kind), applied);
        managed::strip(self.kind, self.subresource, &mut set);
        set
    }

    /// Merges the applied object; returns the result and all managers, with fields taken by force
    /// removed from the others.
    fn onto(&self, old: &Object, applied: &Object) -> Outcome<(Object, Managers)> {
        let topology = Topology::of(self.kind);
        let mut managers = Managers::of(old);
        let claimed = self.claimed(applied);
        let mut merged = Value::Object(old.clone());
        let mut config = applied.clone();
        for name in ["uid", "resourceVersion"] {
            config.metadata_mut().remove(name);
        }
        merge(&topology, &mut merged, &Value::Object(config));
        let Value::Object(mut merged) = merged else {
            unreachable!("objects merge to objects")
        };
        let sub = self.subresource.map_or("", Subresource::name);
        let api_version = self.kind.api_version();
        let is_own =
            |entry: &managed::Entry| entry.is_of(self.manager, Operation::Apply, &api_version, sub);
        let before = managers
            .0
            .iter()
            .find(|entry| is_own(entry))
            .map(|entry| entry.set.clone());
        let mut given_up = before.unwrap_or_default();
        given_up.remove_all(&claimed);
        let mut others = FieldSet::default();
        for entry in managers.0.iter().filter(|entry| !is_own(entry)) {
            others.add_all(&entry.set);
        }
        Pruning {
            gone: &given_up,
            others: Some(&others),
            claimed: Some(&claimed),
        }
        .prune(&topology, &mut merged);
        let changed = managed::compare(&topology, old, &merged).changed;
        let mut conflicts: BTreeMap<String, FieldSet> = BTreeMap::new();
        for entry in managers.0.iter_mut().filter(|entry| !is_own(entry)) {
            let contested = entry.set.common(&changed, &claimed);
            if contested.is_empty() {
                continue;
            }
            if self.options.force {
                entry.set.remove_all(&contested);
            } else {
                conflicts
                    .entry(owner_text(entry))
                    .or_default()
                    .add_all(&contested);
            }
        }
        if conflicts.is_empty() {
            Ok((merged, managers))
        } else {
            Err(conflict(&conflicts))
        }
    }
}

fn owner_text(entry: &managed::Entry) -> String {
    let mut text = format!("{:?}", entry.manager);
    if !entry.subresource.is_empty() {
        let _ = write!(text, " with subresource {:?}", entry.subresource);
    }
    if entry.operation == Operation::Update {
        let _ = write!(text, " using {}", entry.api_version);
    }
    text
}

/// 409 with the number of all conflicts; at most [`MAX_CAUSES`] are listed.
fn conflict(conflicts: &BTreeMap<String, FieldSet>) -> ApiError {
    let count: usize = conflicts.values().map(FieldSet::len).sum();
    let mut left = MAX_CAUSES;
    let mut named: Vec<(&String, Vec<String>)> = Vec::new();
    for (owner, contested) in conflicts {
        let texts = contested.texts(left);
        left -= texts.len();
        if !texts.is_empty() {
            named.push((owner, texts));
        }
    }
    let mut message = format!(
        "Apply failed with {count} conflict{}: ",
        if count == 1 { "" } else { "s" }
    );
    if let (1, Some((owner, fields))) = (count, named.first()) {
        let _ = write!(message, "conflict with {owner}: {}", fields.join(""));
    } else {
        let parts: Vec<String> = named
            .iter()
            .map(|(owner, fields)| format!("conflicts with {owner}:\n- {}", fields.join("\n- ")))
            .collect();
        message.push_str(&parts.join("\n"));
    }
    let causes: Vec<Value> = named
        .iter()
        .flat_map(|(owner, fields)| fields.iter().map(move |field| (owner, field)))
        .map(|(owner, field)| {
            json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {owner}"),
                "field": field,
            })
        })
        .collect();
    ApiError::apply_conflict(message, &causes)
}

/// Merges an applied value into a stored one by the list rules of the kind.
fn merge(topology: &Topology<'_>, target: &mut Value, applied: &Value) {
    match (topology.treatment(applied), applied) {
        (Treatment::Members, Value::Object(applied)) => {
            if !target.is_object() {
                *target = Value::Object(Map::new());
            }
            let Value::Object(target) = target else {
                return;
            };
            for (name, value) in applied {
                merge(
                    &topology.member(name),
                    target.entry(name).or_insert(Value::Null),
                    value,
                );
            }
        }
        (Treatment::Set, Value::Array(applied)) => {
            let Value::Array(list) = target else {
                *target = Value::Array(applied.clone());
                return;
            };
            let mut known: HashSet<Value> = list.iter().cloned().collect();
            let fresh = applied
                .iter()
                .filter(|element| known.insert((*element).clone()));
            list.extend(fresh.cloned());
        }
        (Treatment::Keyed(keys), Value::Array(applied)) => {
            if !target.is_array() {
                *target = json!([]);
            }
            let Value::Array(list) = target else { return };
            let inner = topology.element();
            let mut places: HashMap<PathElement, usize> = HashMap::new();
            for (place, element) in list.iter().enumerate() {
                if let Some(step) = PathElement::of_keys(&keys, element, &inner) {
                    places.entry(step).or_insert(place);
                }
            }
            for element in applied {
                let step = PathElement::of_keys(&keys, element, &inner);
                let known = step.as_ref().and_then(|step| places.get(step));
                if let Some(known) = known.and_then(|place| list.get_mut(*place)) {
                    merge(&inner, known, element);
                    continue;
                }
                places.extend(step.map(|step| (step, list.len())));
                list.push(element.clone());
            }
        }
        _ => *target = applied.clone(),
    }
}

/// Removal of the fields that a manager owned and no longer applies, at one path.
#[derive(Clone, Copy)]
struct Pruning<'a> {
    gone: &'a FieldSet,
    /// Fields of other managers at this path.
    others: Option<&'a FieldSet>,
    /// Fields that the manager applies now at this path.
    claimed: Option<&'a FieldSet>,
}

impl Pruning<'_> {
    /// The removal one path element further; `None` when nothing is removed there.
    fn below(self, step: &PathElement) -> Option<Self> {
        Some(Self {
            gone: self.gone.get(step)?,
            others: self.others.and_then(|set| set.get(step)),
            claimed: self.claimed.and_then(|set| set.get(step)),
        })
    }

    /// True when the value at this path is removed: no manager owns it or anything in it.
    fn is_pruned(self) -> bool {
        self.gone.is_member()
            && self.others.is_none()
            && !self.claimed.is_some_and(FieldSet::has_below)
    }

    /// Removes fields that have no manager left, children before their parents.
    fn prune(self, topology: &Topology<'_>, object: &mut Object) {
        for (step, _) in self.gone.steps() {
            let (PathElement::Field(name), Some(below)) = (step, self.below(step)) else {
                continue;
            };
            match object.get_mut(name) {
                Some(Value::Object(inner)) => below.prune(&topology.member(name), inner),
                Some(Value::Array(list)) => below.prune_list(&topology.member(name), list),
                _ => {}
            }
            if below.is_pruned() {
                object.remove(name);
            }
        }
    }

    fn prune_list(self, topology: &Topology<'_>, list: &mut Vec<Value>) {
        let gone = self.gone.steps().filter_map(|(step, _)| match step {
            PathElement::Value(text) if self.below(step)?.is_pruned() => {
                serde_json::from_str(text).ok()
            }
            _ => None,
        });
        let gone: HashSet<Value> = gone.collect();
        let keys = match topology.treatment(&json!([])) {
            Treatment::Keyed(keys) => keys,
            _ => Vec::new(),
        };
        let inner = topology.element();
        // Of several elements with the same keys, the first counts.
        let mut seen = HashSet::new();
        list.retain_mut(|element| {
            if keys.is_empty() {
                return !gone.contains(element);
            }
            let step = PathElement::of_keys(&keys, element, &inner);
            let Some(step) = step else { return true };
            let Some(below) = self.below(&step) else {
                return true;
            };
            if !seen.insert(step) {
                return true;
            }
            if let Value::Object(object) = element {
                below.prune(&inner, object);
            }
            !below.is_pruned()
        });
    }
}
