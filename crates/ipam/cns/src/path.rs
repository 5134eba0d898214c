//! Where each request goes. Everything is a POST but for [`STATUS`].

/// Assigns addresses of every family; body [`IpConfigsRequest`](crate::IpConfigsRequest).
pub const REQUEST_IP_CONFIGS: &str = "/network/requestipconfigs";
/// Gives all addresses of a key back; body [`IpConfigsRequest`](crate::IpConfigsRequest).
pub const RELEASE_IP_CONFIGS: &str = "/network/releaseipconfigs";
/// The older form for exactly one address; body [`IpConfigRequest`](crate::IpConfigRequest).
pub const REQUEST_IP_CONFIG: &str = "/network/requestipconfig";
/// The older form of giving back; body [`IpConfigRequest`](crate::IpConfigRequest).
pub const RELEASE_IP_CONFIG: &str = "/network/releaseipconfig";
/// Addresses by state; body [`AddressFilter`](crate::AddressFilter).
pub const DEBUG_ADDRESSES: &str = "/debug/ipaddresses";
/// Which key holds which address ids; no body.
pub const DEBUG_POD_CONTEXT: &str = "/debug/podcontext";
/// Everything the daemon remembers; no body.
pub const DEBUG_REST_DATA: &str = "/debug/restdata";

/// Weft's own: what a key holds, without changing anything; body
/// [`IpConfigsRequest`](crate::IpConfigsRequest), answer
/// [`IpConfigsResponse`](crate::IpConfigsResponse) with
/// [`ReturnCode::NOT_FOUND`](crate::ReturnCode::NOT_FOUND) when it holds nothing.
pub const CHECK_IP_CONFIGS: &str = "/v1/checkipconfigs";
/// Weft's own: frees what no listed attachment holds; body [`GcRequest`](crate::GcRequest).
pub const GC: &str = "/v1/gc";
/// Weft's own, a GET: whether an ADD can be served; answer
/// [`StatusResponse`](crate::StatusResponse).
pub const STATUS: &str = "/v1/status";
