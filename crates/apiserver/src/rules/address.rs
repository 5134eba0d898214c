//! Validation of IP addresses and CIDRs in objects.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::status::FieldError;

pub(super) const NO_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
pub(super) const NO_NETWORK: &str =
    "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// Errors of an address that is a destination of traffic.
pub(super) fn destination_errors(field: &str, address: IpAddr) -> Vec<FieldError> {
    let (link_local, multicast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (
            v6.is_unicast_link_local(),
            v6.segments()[0] & 0xff0f == 0xff02,
        ),
    };
    let shown = json!(address.to_string());
    let complaint =
        |applies: bool, text: &str| applies.then(|| FieldError::invalid(field, &shown, text));
    let unspecified = format!("may not be unspecified ({address})");
    [
        complaint(address.is_unspecified(), &unspecified),
        complaint(
            address.is_loopback(),
            "may not be in the loopback range (127.0.0.0/8, ::1/128)",
        ),
        complaint(
            link_local,
            "may not be in the link-local range (169.254.0.0/16, fe80::/10)",
        ),
        complaint(
            multicast,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Errors of a CIDR.
pub(super) fn network_errors(field: &str, value: &Value) -> Vec<FieldError> {
    let text = value.as_str().unwrap_or_default().trim();
    let parsed = text.split_once('/').and_then(|(address, length)| {
        let address: IpAddr = address.parse().ok()?;
        let length: u32 = length.parse().ok()?;
        (length <= if address.is_ipv6() { 128 } else { 32 }).then_some((address, length))
    });
    let complaint = match parsed {
        None => NO_NETWORK,
        Some((address, length)) if !is_prefix(address, length) => {
            "must not have bits set beyond the prefix length"
        }
        Some(_) => return Vec::new(),
    };
    vec![FieldError::invalid(field, value, complaint)]
}

fn is_prefix(address: IpAddr, length: u32) -> bool {
    match address {
        IpAddr::V4(v4) => v4.to_bits().checked_shl(length).unwrap_or(0) == 0,
        IpAddr::V6(v6) => v6.to_bits().checked_shl(length).unwrap_or(0) == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_end_where_their_prefix_ends() {
        let errors = |text: &str| network_errors("f", &json!(text)).len();
        for fine in [
            "10.0.0.0/8",
            "0.0.0.0/0",
            "10.0.0.1/32",
            "::/0",
            "2001:db8::/64",
            "::1/128",
        ] {
            assert_eq!(errors(fine), 0, "{fine}");
        }
        for bad in [
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0",
            "x",
            "2001:db8::1/64",
        ] {
            assert_eq!(errors(bad), 1, "{bad}");
        }
    }
}
