//! Query options of requests, validated as kube-apiserver does.

use std::time::Duration;

use serde_json::{Value, json};
use weft_model::{FieldSelector, LabelSelector};

use crate::{
    kind::ResourceType,
    query::Query,
    request::is_true,
    status::{ApiError, FieldError, Outcome},
    store::Filter,
};

/// `resourceVersionMatch` of a list or watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    Unset,
    Exact,
    NotOlderThan,
}

/// ListOptions: parameters of a list or a watch.
#[derive(Debug)]
pub(crate) struct ListOptions {
    pub(crate) filter: Filter,
    /// `resourceVersion` as sent; empty when absent.
    pub(crate) version: String,
    pub(crate) version_match: VersionMatch,
    pub(crate) limit: Option<usize>,
    pub(crate) continue_token: Option<String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) bookmarks: bool,
    pub(crate) send_initial_events: Option<bool>,
}

/// The request that [`ListOptions`] belong to; their rules differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadVerb {
    List,
    Watch,
}

impl ListOptions {
    pub(crate) fn read(
        query: &Query,
        kind: &ResourceType,
        namespace: &str,
        verb: ReadVerb,
    ) -> Outcome<Self> {
        let limit = integer(query, "limit")?;
        let timeout = integer(query, "timeoutSeconds")?;
        let labels = LabelSelector::parse(query.get("labelSelector").unwrap_or_default())
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        let fields = FieldSelector::parse(query.get("fieldSelector").unwrap_or_default())
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        let options = Self {
            filter: Filter::new(
                (!namespace.is_empty()).then_some(namespace),
                labels,
                kind.fields.resolve(&fields)?,
            ),
            version: query.get("resourceVersion").unwrap_or_default().to_owned(),
            version_match: match query.get("resourceVersionMatch") {
                Some("Exact") => VersionMatch::Exact,
                Some("NotOlderThan") => VersionMatch::NotOlderThan,
                _ => VersionMatch::Unset,
            },
            limit: limit
                .and_then(|n| usize::try_from(n).ok())
                .filter(|n| *n > 0),
            continue_token: query.filled("continue").map(str::to_owned),
            timeout: timeout
                .and_then(|n| u64::try_from(n).ok())
                .filter(|n| *n > 0)
                .map(Duration::from_secs),
            bookmarks: query.get("allowWatchBookmarks").is_some_and(is_true),
            send_initial_events: query.get("sendInitialEvents").map(is_true),
        };
        let errors = if verb == ReadVerb::Watch {
            options.watch_errors(query.filled("resourceVersionMatch"))
        } else {
            options.list_errors(query.filled("resourceVersionMatch"))
        };
        if errors.is_empty() {
            return Ok(options);
        }
        Err(ApiError::invalid_as(
            "meta.k8s.io",
            "ListOptions",
            "",
            &errors,
        ))
    }

    fn list_errors(&self, version_match: Option<&str>) -> Vec<FieldError> {
        if self.send_initial_events.is_some() {
            let detail = "sendInitialEvents is forbidden for list";
            return vec![FieldError::forbidden("sendInitialEvents", detail)];
        }
        let Some(text) = version_match else {
            return Vec::new();
        };
        let forbidden = |detail: &str| vec![FieldError::forbidden("resourceVersionMatch", detail)];
        let mut errors = Vec::new();
        if self.version.is_empty() {
            errors.extend(forbidden(
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if self.continue_token.is_some() {
            errors.extend(forbidden(MATCH_AND_CONTINUE));
        }
        if !errors.is_empty() {
            return errors;
        }
        match self.version_match {
            VersionMatch::Unset => vec![FieldError::not_supported(
                "resourceVersionMatch",
                &json!(text),
                &["Exact", "NotOlderThan", ""],
            )],
            VersionMatch::Exact if self.version == "0" => {
                forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"")
            }
            VersionMatch::Exact | VersionMatch::NotOlderThan => Vec::new(),
        }
    }

    fn watch_errors(&self, version_match: Option<&str>) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut forbid =
            |detail| errors.push(FieldError::forbidden("resourceVersionMatch", detail));
        match self.send_initial_events {
            None if version_match.is_some() => forbid(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ),
            Some(_) if self.version_match != VersionMatch::NotOlderThan => {
                forbid("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
                if let Some(text) = version_match {
                    let error = FieldError::not_supported(
                        "resourceVersionMatch",
                        &json!(text),
                        &["NotOlderThan"],
                    );
                    errors.push(error);
                }
            }
            // As upstream: a watch without a version has a default match, which continue forbids.
            None if self.version.is_empty() && self.continue_token.is_some() => {
                forbid(MATCH_AND_CONTINUE);
            }
            Some(_) if self.continue_token.is_some() => forbid(MATCH_AND_CONTINUE),
            None | Some(_) => {}
        }
        errors
    }
}

const MATCH_AND_CONTINUE: &str = "resourceVersionMatch is forbidden when continue is provided";

/// Parses a 64-bit parameter; errors are worded as Go's.
fn integer(query: &Query, name: &str) -> Outcome<Option<i64>> {
    let Some(text) = query.filled(name) else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_| {
        ApiError::bad_request(format!(
            "strconv.ParseInt: parsing {text:?}: invalid syntax"
        ))
    })
}

/// Go's error for a resource version that is not a number.
pub(crate) fn version_syntax(text: &str) -> String {
    format!("strconv.ParseUint: parsing {text:?}: invalid syntax")
}

/// `fieldValidation`: the handling of unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// `Yes` for `dryRun=All`: everything but storage is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum DryRun {
    Yes,
    #[default]
    No,
}

impl DryRun {
    fn parse(values: &[&str]) -> Self {
        if values.is_empty() {
            Self::No
        } else {
            Self::Yes
        }
    }
}

/// CreateOptions, UpdateOptions and PatchOptions.
#[derive(Debug, Clone)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: DryRun,
    pub(crate) validation: FieldValidation,
    /// `fieldManager` of the query.
    pub(crate) manager: Option<String>,
    pub(crate) force: bool,
}

impl WriteOptions {
    pub(crate) fn read(query: &Query, kind: &str) -> Outcome<Self> {
        let dry_run: Vec<&str> = query
            .all("dryRun")
            .filter(|value| !value.is_empty())
            .collect();
        if dry_run.iter().any(|value| *value != "All") {
            let error = FieldError::not_supported("dryRun", &json!(dry_run), &["All"]);
            return Err(ApiError::invalid_options(kind, error));
        }
        let validation = match query.filled("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let known = ["", "Ignore", "Strict", "Warn"];
                let error = FieldError::not_supported("fieldValidation", &json!(other), &known);
                return Err(ApiError::invalid_options(kind, error));
            }
        };
        let manager = query.filled("fieldManager");
        let errors = manager.map(manager_errors).unwrap_or_default();
        if !errors.is_empty() {
            return Err(ApiError::invalid_as("meta.k8s.io", kind, "", &errors));
        }
        Ok(Self {
            dry_run: DryRun::parse(&dry_run),
            validation,
            manager: manager.map(str::to_owned),
            force: query.get("force").is_some_and(is_true),
        })
    }
}

/// Limit of a manager's name in bytes.
const MANAGER_LIMIT: usize = 128;

fn manager_errors(manager: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if manager.len() > MANAGER_LIMIT {
        errors.push(FieldError::too_long("fieldManager", MANAGER_LIMIT));
    }
    // The position is in bytes; only the first such character is reported.
    let control = manager.char_indices().find(|(_, c)| c.is_control());
    if let Some((position, c)) = control {
        let shown: String = manager
            .chars()
            .map(|c| match c {
                c if c.is_ascii_control() => format!("\\x{:02x}", u32::from(c)),
                c => c.to_string(),
            })
            .collect();
        let code = u32::from(c);
        let detail = format!("invalid character U+{code:04X} (at position {position})");
        errors.push(FieldError {
            field: "fieldManager".to_owned(),
            reason: "FieldValueInvalid",
            message: format!("Invalid value: \"{shown}\": {detail}"),
        });
    }
    errors
}

/// `propagationPolicy`: the handling of a deleted object's dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// DeleteOptions, from the body or else from the query.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) dry_run: DryRun,
    pub(crate) grace: Option<i64>,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
}

impl DeleteOptions {
    pub(crate) fn read(query: &Query, body: Option<&Value>) -> Outcome<Self> {
        let text = |name: &str| match body {
            Some(body) => body.get(name).and_then(Value::as_str),
            None => query.filled(name),
        };
        let dry_run: Vec<&str> = match body {
            Some(body) => body
                .get("dryRun")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect(),
            None => query
                .all("dryRun")
                .filter(|value| !value.is_empty())
                .collect(),
        };
        if dry_run.iter().any(|value| *value != "All") {
            let error = FieldError::not_supported("dryRun", &json!(dry_run), &["All"]);
            return Err(ApiError::invalid_options("DeleteOptions", error));
        }
        let propagation = match text("propagationPolicy") {
            None | Some("") => None,
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(other) => {
                let known = ["Foreground", "Background", "Orphan", "nil"];
                let error = FieldError::not_supported("propagationPolicy", &json!(other), &known);
                return Err(ApiError::invalid_options("DeleteOptions", error));
            }
        };
        let orphans = body.is_some_and(|body| body.get("orphanDependents").is_some());
        if let Some(policy) = text("propagationPolicy").filter(|_| orphans) {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            let error = FieldError::invalid("propagationPolicy", &json!(policy), detail);
            return Err(ApiError::invalid_options("DeleteOptions", error));
        }
        let grace = match body {
            Some(body) => body.get("gracePeriodSeconds").and_then(Value::as_i64),
            None => integer(query, "gracePeriodSeconds")?,
        };
        let precondition = |name: &str| {
            let value = body?.get("preconditions")?.get(name)?.as_str()?;
            Some(value.to_owned())
        };
        Ok(Self {
            dry_run: DryRun::parse(&dry_run),
            grace,
            propagation,
            uid: precondition("uid"),
            version: precondition("resourceVersion"),
        })
    }
}
