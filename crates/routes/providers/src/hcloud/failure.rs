//! Classification of Hetzner API errors.

use http::StatusCode;
use weft_routes::{ProviderError, RateLimit};

use super::{api::Purpose, rate::next_call_after, wire::Problem};
use crate::http::shortened;

/// Classifies an error code of the API.
pub(super) fn classify(
    problem: &Problem,
    purpose: Purpose,
    rate: Option<RateLimit>,
) -> ProviderError {
    let effect = purpose.effect();
    let message = || {
        format!("{}: {}", problem.code, problem.message)
            .as_str()
            .into()
    };
    match problem.code.as_str() {
        "rate_limit_exceeded" => limited(rate),
        "locked" => ProviderError::Locked,
        // Conflict: the network changed while the call ran, and the call did nothing. The cached
        // routes are as valid as before, so it is not [`ProviderError::Conflict`].
        "conflict" | "maintenance" | "unavailable" => ProviderError::Retry(message()),
        "not_found" => match purpose {
            Purpose::Delete | Purpose::Instances => ProviderError::Gone,
            _ => ProviderError::Invalid(message()),
        },
        "invalid_input" => match purpose {
            // Another route or a subnet is in the way, or the route differs from the cached one.
            Purpose::Create if names_field(problem, "destination") => ProviderError::Conflict,
            Purpose::Delete => ProviderError::Conflict,
            _ => ProviderError::Invalid(message()),
        },
        "uniqueness_error" => ProviderError::Conflict,
        "resource_limit_exceeded" => ProviderError::Quota,
        "protected" | "token_readonly" | "unauthorized" | "forbidden" => ProviderError::Forbidden,
        "service_error" | "server_error" | "bad_gateway" | "timeout" => {
            effect.broken(&shortened(&problem.code))
        }
        _ => ProviderError::Invalid(message()),
    }
}

/// Classifies the error of an action. It was started, so only codes that say that nothing changed
/// are taken as such.
pub(super) fn classify_action(problem: &Problem, purpose: Purpose) -> ProviderError {
    let error = classify(problem, purpose, None);
    match error {
        ProviderError::Invalid(_) | ProviderError::Gone if problem.code != "not_found" => {
            ProviderError::Uncertain
        }
        error => error,
    }
}

/// Classifies a response without an error code.
pub(super) fn classify_status(
    status: StatusCode,
    purpose: Purpose,
    rate: Option<RateLimit>,
) -> ProviderError {
    match status {
        StatusCode::TOO_MANY_REQUESTS => limited(rate),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ProviderError::Forbidden,
        _ if status.is_server_error() => purpose.effect().broken(status.as_str()),
        _ => ProviderError::Garbage(
            format!("status {status} without an error code")
                .as_str()
                .into(),
        ),
    }
}

fn limited(rate: Option<RateLimit>) -> ProviderError {
    ProviderError::RateLimited {
        after: rate.map(next_call_after),
    }
}

fn names_field(problem: &Problem, name: &str) -> bool {
    let fields = problem.details["fields"].as_array();
    fields.is_some_and(|fields| fields.iter().any(|field| field["name"] == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(code: &str) -> Problem {
        Problem {
            code: code.to_owned(),
            ..Problem::default()
        }
    }

    /// Every code of the reference, as a create, a delete and a list end with it.
    #[test]
    fn every_code_is_classified_by_what_to_do_about_it() {
        let table = [
            ("rate_limit_exceeded", ["rate_limited"; 3]),
            ("conflict", ["retry"; 3]),
            ("locked", ["locked"; 3]),
            ("not_found", ["invalid", "gone", "invalid"]),
            ("invalid_input", ["invalid", "conflict", "invalid"]),
            ("uniqueness_error", ["conflict"; 3]),
            ("resource_limit_exceeded", ["quota"; 3]),
            ("protected", ["forbidden"; 3]),
            ("token_readonly", ["forbidden"; 3]),
            ("unauthorized", ["forbidden"; 3]),
            ("forbidden", ["forbidden"; 3]),
            ("maintenance", ["retry"; 3]),
            ("service_error", ["uncertain", "uncertain", "retry"]),
            ("server_error", ["uncertain", "uncertain", "retry"]),
            ("bad_gateway", ["uncertain", "uncertain", "retry"]),
            ("timeout", ["uncertain", "uncertain", "retry"]),
            ("json_error", ["invalid"; 3]),
            ("something_new", ["invalid"; 3]),
        ];
        for (code, expected) in table {
            let purposes = [Purpose::Create, Purpose::Delete, Purpose::List];
            let sorted = purposes.map(|purpose| classify(&coded(code), purpose, None).label());
            assert_eq!(sorted, expected, "{code}");
        }
    }

    #[test]
    fn an_action_that_failed_for_an_unknown_reason_may_have_changed_something() {
        let sorted = |code: &str| classify_action(&coded(code), Purpose::Create).label();
        assert_eq!(sorted("action_failed"), "uncertain");
        assert_eq!(sorted("resource_limit_exceeded"), "quota");
    }
}
