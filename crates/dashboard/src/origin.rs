//! Check of a request's `Origin`: only the page itself may act.

use axum::http::{HeaderMap, Uri, header, uri::Authority};

/// Returns whether `Origin` names the host and port of the request.
pub(crate) fn is_from_our_page(uri: &Uri, headers: &HeaderMap) -> bool {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let ours = uri.authority().map(Authority::as_str).or(host);
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let (Some(ours), Some(origin), None) = (ours, origins.next(), origins.next()) else {
        return false;
    };
    let theirs = origin.to_str().ok();
    theirs
        .and_then(|origin| origin.strip_prefix("http://"))
        .is_some_and(|origin| origin.eq_ignore_ascii_case(ours))
}
