//! Error responses of the Hetzner Cloud API.

use http::StatusCode;
use serde_json::{Value, json};

use crate::clouds::server::Reply;

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: String,
    field: Option<&'static str>,
}

impl Refusal {
    pub(super) fn code(code: &str) -> Self {
        Self {
            code: code.to_owned(),
            field: None,
        }
    }

    /// Invalid input in this field.
    pub(super) fn field(field: &'static str) -> Self {
        Self {
            field: Some(field),
            ..Self::code("invalid_input")
        }
    }

    pub(super) fn reply(&self) -> Reply {
        let details = self.field.map_or(
            Value::Null,
            |name| json!({"fields": [{"name": name, "messages": [format!("{name} is invalid")]}]}),
        );
        let message = format!("refused by the double: {}", self.code);
        let error = json!({"code": self.code, "message": message, "details": details});
        Reply::json(self.status(), &json!({"error": error})).counted_as(&self.code)
    }

    fn status(&self) -> StatusCode {
        match self.code.as_str() {
            "unauthorized" => StatusCode::UNAUTHORIZED,
            "forbidden" | "token_readonly" | "protected" | "resource_limit_exceeded" => {
                StatusCode::FORBIDDEN
            }
            "not_found" => StatusCode::NOT_FOUND,
            "conflict" | "uniqueness_error" => StatusCode::CONFLICT,
            "locked" => StatusCode::LOCKED,
            "invalid_input" => StatusCode::UNPROCESSABLE_ENTITY,
            "rate_limit_exceeded" => StatusCode::TOO_MANY_REQUESTS,
            "maintenance" | "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            "bad_gateway" => StatusCode::BAD_GATEWAY,
            "timeout" => StatusCode::GATEWAY_TIMEOUT,
            "service_error" | "server_error" => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}
