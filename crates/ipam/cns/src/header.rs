//! HTTP headers of requests and responses.

/// Response header: the [name](crate::ReturnCode::name) of the return code.
pub const RETURN_CODE: &str = "cns_return_code";
/// Request header, Weft's own: milliseconds that the client goes on waiting for the response. The
/// daemon parks an ADD no longer than that.
pub const WAIT_MILLISECONDS: &str = "weft-wait-milliseconds";
/// Request header of STATUS, Weft's own: number of repairs of plugin, configuration and bridge since
/// the installer was started. The daemon shows it among its metrics, since the installer has none.
pub const CNI_REPAIRS: &str = "weft-cni-repairs";
/// The content type of every body.
pub const JSON: &str = "application/json; charset=UTF-8";
