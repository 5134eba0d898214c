//! Headers that mean something.

/// In answers: the [name](crate::ReturnCode::name) of the return code.
pub const RETURN_CODE: &str = "cns_return_code";
/// In requests, Weft's own: how many milliseconds the client goes on waiting for the answer. The
/// daemon parks an ADD no longer than that.
pub const WAIT_MILLISECONDS: &str = "weft-wait-milliseconds";
/// The content type of every body.
pub const JSON: &str = "application/json; charset=UTF-8";
