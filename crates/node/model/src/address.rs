//! IP addresses in the notation that Kubernetes accepts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Parses an address as Kubernetes does: IPv4 numbers may have leading zeros (read as decimal), and
/// an IPv4-mapped IPv6 address is IPv4.
pub fn parse_sloppy(text: &str) -> Option<IpAddr> {
    if let Some(address) = parse_ipv4(text) {
        return Some(address.into());
    }
    let address: Ipv6Addr = text.parse().ok()?;
    Some(match address.to_ipv4_mapped() {
        Some(mapped) => mapped.into(),
        None => address.into(),
    })
}

fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        *octet = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
    }
    parts.next().is_none().then_some(octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_kubernetes_reads_them() {
        let cases = [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.001.008", Some("10.0.1.8")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("fd00::0:1", Some("fd00::1")),
            ("10.0.0.256", None),
            ("10.0.0", None),
            ("10.0.0.1.2", None),
            ("fe80::1%eth0", None),
            ("", None),
            (" 10.0.0.1", None),
        ];
        for (text, expected) in cases {
            let read = parse_sloppy(text).map(|address| address.to_string());
            assert_eq!(read.as_deref(), expected, "{text:?}");
        }
    }
}
