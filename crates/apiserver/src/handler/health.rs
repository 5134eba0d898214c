//! Health probes and metrics.

use std::fmt::Write as _;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};

use crate::{
    api::{Api, Context},
    reply::{Payload, Reply},
    status::{ApiError, Outcome},
};

/// What is checked; all of it is fine as long as someone answers.
const CHECKS: &[&str] = &["ping", "log", "etcd"];

/// `/healthz`, `/livez`, `/readyz` and single checks below them.
pub(super) fn probe(context: &Context) -> Outcome<Reply> {
    let path = context.info.path.trim_matches('/');
    let (probe, check) = path.split_once('/').unwrap_or((path, ""));
    if !check.is_empty() {
        let known = CHECKS.contains(&check);
        return if known {
            Ok(plain("ok".to_owned()))
        } else {
            Err(ApiError::page_not_found())
        };
    }
    if !["healthz", "livez", "readyz"].contains(&probe) {
        return Err(ApiError::page_not_found());
    }
    if context.query.get("verbose").is_none() {
        return Ok(plain("ok".to_owned()));
    }
    let excluded: Vec<&str> = context.query.all("exclude").collect();
    let mut report = String::new();
    for check in CHECKS {
        let outcome = if excluded.contains(check) {
            "excluded: ok"
        } else {
            "ok"
        };
        let _ = writeln!(report, "[+]{check} {outcome}");
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|name| !CHECKS.contains(name))
        .map(|name| format!("{name:?}"))
        .collect();
    if !unknown.is_empty() {
        let names = unknown.join(",");
        let _ = writeln!(
            report,
            "warn: some health checks cannot be excluded: no matches for {names}"
        );
    }
    let _ = writeln!(report, "{probe} check passed");
    Ok(plain(report))
}

fn plain(text: String) -> Reply {
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    Reply::new(StatusCode::OK, Payload::Raw(Bytes::from(text), kind))
        .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
}

/// A few numbers under upstream's names.
pub(super) fn metrics(api: &Api) -> Reply {
    let mut text = String::from("# TYPE apiserver_resource_objects gauge\n");
    for (storage, count) in api.store.counts() {
        let _ = writeln!(
            text,
            "apiserver_resource_objects{{resource=\"{storage}\"}} {count}"
        );
    }
    let open = api.watches.count(&crate::fault::Matcher::any());
    let _ = writeln!(text, "# TYPE apiserver_longrunning_requests gauge");
    let _ = writeln!(
        text,
        "apiserver_longrunning_requests{{verb=\"WATCH\"}} {open}"
    );
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Reply::new(StatusCode::OK, Payload::Raw(Bytes::from(text), kind))
}
