use http::StatusCode;
use weft_routes::ProviderError;

use super::{api::Operation, wire::Problem};
use crate::http::shortened;

/// What a code of EC2 means for us.
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
        // That is how a route is missing that is to be replaced.
        "InvalidParameterValue" if operation == Operation::ReplaceRoute => ProviderError::Conflict,
        // The tables of a cluster are read anew with its routes.
        "InvalidRouteTableID.NotFound" if is_route(operation) => ProviderError::Conflict,
        "RouteLimitExceeded" => ProviderError::Quota,
        // Plain: it has several interfaces, or has had one more since it was looked at.
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

/// What an answer means that carries no code.
pub(super) fn classify_status(status: StatusCode, operation: Operation) -> ProviderError {
    match status {
        StatusCode::TOO_MANY_REQUESTS => ProviderError::RateLimited { after: None },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ProviderError::Forbidden,
        _ if status.is_server_error() => operation.effect().broken(status.as_str()),
        _ => ProviderError::Garbage(format!("status {status} without a code").as_str().into()),
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
