//! Classification of EC2 errors.

use http::StatusCode;
use weft_routes::ProviderError;

use super::{api::Operation, wire::Problem};
use crate::http::shortened;

/// Classifies an error code of EC2.
pub(super) fn classify(
    problem: &Problem,
    status: StatusCode,
    operation: Operation,
) -> ProviderError {
    let message = || {
        shortened(&format!("{}: {}", problem.code, problem.message))
            .as_str()
            .into()
    };
    match problem.code.as_str() {
        "InvalidRoute.NotFound" if operation == Operation::DeleteRoute => ProviderError::Gone,
        "RouteAlreadyExists" | "InvalidRoute.NotFound" => ProviderError::Conflict,
        // The route to be replaced does not exist.
        "InvalidParameterValue" if operation == Operation::ReplaceRoute => ProviderError::Conflict,
        // The tables of a cluster are read again with its routes.
        "InvalidRouteTableID.NotFound" if is_route(operation) => ProviderError::Conflict,
        "RouteLimitExceeded" => ProviderError::Quota,
        // `InvalidInstanceID`: it has several interfaces, or got another one since it was read.
        "InvalidInstanceID"
        | "InvalidInstanceID.NotFound"
        | "IncorrectInstanceState"
        | "IncorrectState"
        | "InvalidNetworkInterfaceID.NotFound" => ProviderError::NotReady(message()),
        code if is_throttling(code) => ProviderError::RateLimited { after: None },
        code if is_forbidden(code) => ProviderError::Forbidden,
        _ if status.is_server_error() => classify_status(status, operation),
        _ => ProviderError::Invalid(message()),
    }
}

/// Classifies a response without an error code.
pub(super) fn classify_status(status: StatusCode, operation: Operation) -> ProviderError {
    match status {
        StatusCode::TOO_MANY_REQUESTS => ProviderError::RateLimited { after: None },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ProviderError::Forbidden,
        _ if status.is_server_error() => operation.effect().broken(status.as_str()),
        _ => ProviderError::Garbage(
            format!("status {status} without an error code")
                .as_str()
                .into(),
        ),
    }
}

fn is_route(operation: Operation) -> bool {
    use Operation::{CreateRoute, DeleteRoute, ReplaceRoute};
    matches!(operation, CreateRoute | ReplaceRoute | DeleteRoute)
}

fn is_throttling(code: &str) -> bool {
    let codes = [
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "EC2ThrottledException",
        "RequestThrottled",
        "SlowDown",
    ];
    codes.contains(&code)
}

fn is_forbidden(code: &str) -> bool {
    let codes = [
        "UnauthorizedOperation",
        "AuthFailure",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "RequestExpired",
        "MissingAuthenticationToken",
        "OptInRequired",
        "Blocked",
        "PendingVerification",
        "OperationNotPermitted",
        "AccessDenied",
    ];
    codes.contains(&code)
}
