//! Request paths. All are POST except [`STATUS`].

/// Assigns addresses of every family; body [`IpConfigsRequest`](crate::IpConfigsRequest).
pub const REQUEST_IP_CONFIGS: &str = "/network/requestipconfigs";
/// Releases all addresses of a key; body [`IpConfigsRequest`](crate::IpConfigsRequest).
pub const RELEASE_IP_CONFIGS: &str = "/network/releaseipconfigs";
/// The older form for exactly one address; body [`IpConfigRequest`](crate::IpConfigRequest).
pub const REQUEST_IP_CONFIG: &str = "/network/requestipconfig";
/// The older form of a release; body [`IpConfigRequest`](crate::IpConfigRequest).
pub const RELEASE_IP_CONFIG: &str = "/network/releaseipconfig";
/// Lists addresses by state; body [`AddressFilter`](crate::AddressFilter).
pub const DEBUG_ADDRESSES: &str = "/debug/ipaddresses";
/// Lists the address ids of each key; no body.
pub const DEBUG_POD_CONTEXT: &str = "/debug/podcontext";
/// Dumps the daemon's records; no body.
pub const DEBUG_REST_DATA: &str = "/debug/restdata";

/// Weft's own: reads the addresses of a key and changes nothing. Body
/// [`IpConfigsRequest`](crate::IpConfigsRequest), response
/// [`IpConfigsResponse`](crate::IpConfigsResponse) with
/// [`ReturnCode::NOT_FOUND`](crate::ReturnCode::NOT_FOUND) if the key holds no address.
pub const CHECK_IP_CONFIGS: &str = "/v1/checkipconfigs";
/// Weft's own: releases every key that is not a listed attachment; body
/// [`GcRequest`](crate::GcRequest).
pub const GC: &str = "/v1/gc";
/// Weft's own, a GET: readiness to serve an ADD; response
/// [`StatusResponse`](crate::StatusResponse).
pub const STATUS: &str = "/v1/status";
