//! Checks of a request's `Host` and `Origin`: only this page, by its own address, is answered.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use weft_listener::HostCheck;

/// Refuses requests that name another host.
pub(crate) async fn keep(State(check): State<HostCheck>, request: Request, next: Next) -> Response {
    if check.accepts_request(request.uri(), request.headers()) {
        return next.run(request).await;
    }
    let text = "this page is served at its own address and port only\n";
    (axum::http::StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

/// Whether a page of ours sent the request, according to the browser.
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
