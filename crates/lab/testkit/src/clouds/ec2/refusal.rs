//! Error responses of the EC2 query API.

use http::StatusCode;

use super::xml;
use crate::clouds::server::Reply;

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    code: String,
    message: String,
}

impl Refusal {
    pub(super) fn new(code: &str, message: &str) -> Self {
        Self {
            code: code.to_owned(),
            message: message.to_owned(),
        }
    }

    pub(super) fn no_instance(id: &str) -> Self {
        let message = format!("The instance ID '{id}' does not exist");
        Self::new("InvalidInstanceID.NotFound", &message)
    }

    pub(super) fn several_interfaces(id: &str) -> Self {
        let message = format!("There are multiple interfaces attached to instance '{id}'");
        Self::new("InvalidInstanceID", &message)
    }

    pub(super) fn reply(&self) -> Reply {
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{}</Code>\
             <Message>{}</Message></Error></Errors><RequestID>double</RequestID></Response>",
            xml::escape(&self.code),
            xml::escape(&self.message)
        );
        let mut reply = xml::reply(body).counted_as(&self.code);
        reply.status = self.status();
        reply
    }

    fn status(&self) -> StatusCode {
        match self.code.as_str() {
            "AuthFailure" => StatusCode::UNAUTHORIZED,
            "UnauthorizedOperation" => StatusCode::FORBIDDEN,
            "InternalError" => StatusCode::INTERNAL_SERVER_ERROR,
            "RequestLimitExceeded" | "Unavailable" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}
