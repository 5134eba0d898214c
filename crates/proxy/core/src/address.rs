//! CIDRs in the notation that Kubernetes accepts.

use ipnet::IpNet;
use weft_model::parse_sloppy;

/// Reads a network as Kubernetes does, and clears the bits behind its prefix.
pub(crate) fn parse_network(text: &str) -> Option<IpNet> {
    let (address, length) = text.trim().split_once('/')?;
    let address = parse_sloppy(address)?;
    let fine = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let length = length.parse().ok().filter(|_| fine)?;
    Some(IpNet::new(address, length).ok()?.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_lose_the_bits_behind_the_prefix() {
        let read = |text| parse_network(text).map(|net| net.to_string());
        assert_eq!(read(" 010.1.2.3/8 ").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(read("fd00::1/64").as_deref(), Some("fd00::/64"));
        for text in ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/+8", "10.0.0.0/", "/8"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
