//! Who may come in: a page of ours and no other, by a name that nobody else can give this address.
//!
//! A web site may have its name resolve to 127.0.0.1 and so make a browser believe that our pages
//! are its own (DNS rebinding). Such a request carries the site's name in `Host`. Numeric addresses
//! and `localhost` cannot be rebound.

use std::net::IpAddr;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use crate::server::Reach;

/// Which hosts are ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Door {
    pub(crate) port: u16,
    pub(crate) reach: Reach,
}

/// The scheme's port, which browsers leave out.
const HTTP_PORT: u16 = 80;

impl Door {
    fn admits(self, authority: &str) -> bool {
        let Ok(parsed) = authority.parse::<Authority>() else {
            return false;
        };
        if authority.contains('@') || parsed.port_u16().unwrap_or(HTTP_PORT) != self.port {
            return false;
        }
        let host = parsed.host();
        if host.eq_ignore_ascii_case("localhost") {
            return true;
        }
        let bare = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let address: Result<IpAddr, _> = bare.unwrap_or(host).parse();
        address.is_ok_and(|address| match self.reach {
            Reach::Loopback => address.is_loopback(),
            Reach::Anywhere => true,
        })
    }

    /// Every host that a request names, in HTTP/1's header, HTTP/2's pseudo-header or a full URL,
    /// has to be ours, and there has to be one.
    fn is_meant(self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut named = uri.authority().map(Authority::as_str).into_iter().chain(
            headers
                .get_all(header::HOST)
                .iter()
                .map(|host| host.to_str().unwrap_or_default()),
        );
        named.next().is_some_and(|first| {
            self.admits(first) && named.all(|other| other.eq_ignore_ascii_case(first))
        })
    }
}

/// Turns away what was meant for somebody else.
pub(crate) async fn keep(State(door): State<Door>, request: Request, next: Next) -> Response {
    if door.is_meant(request.uri(), request.headers()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_our_port_are_us() {
        let door = Door {
            port: 8088,
            reach: Reach::Loopback,
        };
        for ours in [
            "127.0.0.1:8088",
            "LocalHost:8088",
            "[::1]:8088",
            "127.3.2.1:8088",
        ] {
            assert!(door.admits(ours), "{ours}");
        }
        for foreign in [
            "",
            "127.0.0.1",
            "127.0.0.1:8089",
            "localhost",
            "evil.example:8088",
            "10.0.0.1:8088",
            "localhost.evil.example:8088",
            "127.0.0.1.evil.example:8088",
            "a@127.0.0.1:8088",
            "localhost:8088@evil.example",
            "[::2]:8088",
            "0.0.0.0:8088",
            "127.0.0.1:8088/x",
        ] {
            assert!(!door.admits(foreign), "{foreign}");
        }
    }

    #[test]
    fn beyond_loopback_addresses_are_us_and_names_are_not() {
        let door = Door {
            port: 80,
            reach: Reach::Anywhere,
        };
        assert!(door.admits("192.0.2.7"));
        assert!(door.admits("[2001:db8::7]:80"));
        assert!(door.admits("localhost"));
        assert!(!door.admits("evil.example"));
        assert!(!door.admits("192.0.2.7:81"));
    }
}
