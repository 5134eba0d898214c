//! Check of the `Host` that a request names, against DNS rebinding.
//!
//! A web site may let its name resolve to 127.0.0.1, so that a browser takes pages on loopback for
//! the site's own. Such a request names the site in `Host`. Numeric addresses and `localhost`
//! cannot be rebound.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, Uri, header, uri::Authority};

/// Clients that can reach a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Clients on this machine.
    Loopback,
    /// Every client that can reach the address.
    Anywhere,
}

impl Reach {
    /// The reach of a listener's address.
    pub fn of(address: SocketAddr) -> Self {
        if address.ip().to_canonical().is_loopback() {
            Self::Loopback
        } else {
            Self::Anywhere
        }
    }
}

/// The hosts that a request may name.
#[derive(Clone, Copy, Debug)]
pub struct HostCheck {
    /// The port that a request must name; any if `None`, since forwarded ports have other numbers.
    pub port: Option<u16>,
    /// With [`Reach::Anywhere`] numeric addresses other than loopback are accepted too.
    pub reach: Reach,
}

/// Body of the answer with status 421 to a request for another host.
pub const MISDIRECTED: &str = "cannot answer: Host is not an address of this server\n";

/// The default port of `http`, which browsers leave out.
const HTTP_PORT: u16 = 80;

impl HostCheck {
    /// The check for pages at an address: on loopback every port, since it may be forwarded, and
    /// elsewhere none, since a server does not know the names by which it is reached.
    pub fn for_address(address: SocketAddr) -> Option<Self> {
        (Reach::of(address) == Reach::Loopback).then_some(Self {
            port: None,
            reach: Reach::Loopback,
        })
    }

    /// Returns whether one host, with or without port, is accepted.
    fn accepts(self, authority: &str) -> bool {
        let Ok(parsed) = authority.parse::<Authority>() else {
            return false;
        };
        let port = parsed.port_u16().unwrap_or(HTTP_PORT);
        if authority.contains('@') || self.port.is_some_and(|expected| expected != port) {
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

    /// Returns whether a request names an accepted host, in HTTP/1's header, HTTP/2's pseudo-header
    /// or a full URL. A request with several hosts is refused. One without a host is accepted only
    /// if no port is demanded: browsers always send a host, some clients of diagnostics do not.
    pub fn accepts_request(self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut named = uri.authority().map(Authority::as_str).into_iter().chain(
            headers
                .get_all(header::HOST)
                .iter()
                .map(|host| host.to_str().unwrap_or_default()),
        );
        named.next().map_or(self.port.is_none(), |first| {
            self.accepts(first) && named.all(|other| other.eq_ignore_ascii_case(first))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_the_own_port_are_accepted() {
        let check = HostCheck {
            port: Some(8088),
            reach: Reach::Loopback,
        };
        for own in [
            "127.0.0.1:8088",
            "LocalHost:8088",
            "[::1]:8088",
            "127.3.2.1:8088",
        ] {
            assert!(check.accepts(own), "{own}");
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
            assert!(!check.accepts(foreign), "{foreign}");
        }
    }

    #[test]
    fn beyond_loopback_addresses_are_accepted_and_names_are_not() {
        let check = HostCheck {
            port: Some(80),
            reach: Reach::Anywhere,
        };
        assert!(check.accepts("192.0.2.7"));
        assert!(check.accepts("[2001:db8::7]:80"));
        assert!(check.accepts("localhost"));
        assert!(!check.accepts("evil.example"));
        assert!(!check.accepts("192.0.2.7:81"));
    }

    #[test]
    fn a_request_without_a_host_is_of_no_browser() {
        let (uri, headers) = (Uri::from_static("/metrics"), HeaderMap::new());
        for (port, accepted) in [(None, true), (Some(8088), false)] {
            let reach = Reach::Loopback;
            let check = HostCheck { port, reach };
            assert_eq!(check.accepts_request(&uri, &headers), accepted);
        }
    }

    #[test]
    fn without_a_port_forwarded_ones_are_accepted() {
        let check = HostCheck {
            port: None,
            reach: Reach::Loopback,
        };
        assert!(check.accepts("localhost:18080"));
        assert!(check.accepts("127.0.0.1"));
        assert!(!check.accepts("evil.example"));
    }
}
