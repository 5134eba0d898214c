//! Health probes and metrics.

use std::fmt::Write as _;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};

use crate::{
    api::{Api, Context},
    reply::{Payload, Reply},
    status::{ApiError, Outcome},
};

/// Checks of all probes, by upstream's names. A server that cannot write to its storage is not live.
const CHECKS: &[&str] = &["ping", "log", "etcd"];
/// Checks of readiness only.
const READINESS: &[&str] = &["etcd-readiness", "informer-sync", "shutdown"];

/// The reason why a check fails; `None` when it passes.
fn problem(api: &Api, check: &str) -> Option<&'static str> {
    match check {
        "etcd" | "etcd-readiness" if !api.store.keeps_writes() => {
            Some("storage cannot persist writes")
        }
        "shutdown" if api.shutdown.is_cancelled() => Some("process is shutting down"),
        _ => None,
    }
}

/// `/healthz`, `/livez`, `/readyz` and single checks below them.
pub(super) fn probe(api: &Api, context: &Context) -> Outcome<Reply> {
    let path = context.info.path.trim_matches('/');
    let (probe, check) = path.split_once('/').unwrap_or((path, ""));
    let checks: Vec<&str> = match probe {
        "readyz" => CHECKS.iter().chain(READINESS).copied().collect(),
        "healthz" | "livez" => CHECKS.to_vec(),
        _ => return Err(ApiError::page_not_found()),
    };
    if !check.is_empty() {
        return match (checks.contains(&check), problem(api, check)) {
            (false, _) => Err(ApiError::page_not_found()),
            (true, None) => Ok(plain("ok".to_owned())),
            (true, Some(problem)) => Ok(unhealthy(format!("internal server error: {problem}\n"))),
        };
    }
    let excluded: Vec<&str> = context.query.all("exclude").collect();
    let fails = |check: &str| !excluded.contains(&check) && problem(api, check).is_some();
    let broken = checks.iter().any(|check| fails(check));
    if context.query.get("verbose").is_none() && !broken {
        return Ok(plain("ok".to_owned()));
    }
    let mut report = String::new();
    for check in &checks {
        let _ = if excluded.contains(check) {
            writeln!(report, "[+]{check} excluded: ok")
        } else if fails(check) {
            writeln!(report, "[-]{check} failed: reason withheld")
        } else {
            writeln!(report, "[+]{check} ok")
        };
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|name| !checks.contains(name))
        .map(|name| format!("{name:?}"))
        .collect();
    if !unknown.is_empty() {
        let names = unknown.join(",");
        let _ = writeln!(
            report,
            "warn: some health checks cannot be excluded: no matches for {names}"
        );
    }
    if broken {
        let _ = writeln!(report, "{probe} check failed");
        return Ok(unhealthy(report));
    }
    let _ = writeln!(report, "{probe} check passed");
    Ok(plain(report))
}

fn unhealthy(text: String) -> Reply {
    Reply {
        code: StatusCode::INTERNAL_SERVER_ERROR,
        ..plain(text)
    }
}

fn plain(text: String) -> Reply {
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    Reply::new(StatusCode::OK, Payload::Raw(Bytes::from(text), kind))
        .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
}

/// Metrics in the Prometheus text format, by upstream's names.
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
