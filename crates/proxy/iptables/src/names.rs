//! Chain names. They are kube-proxy's, so that each program recognises the chains that the other
//! left.

use std::{fmt, fmt::Write as _, net::SocketAddr};

use sha2::{Digest as _, Sha256};
use weft_proxy::PortId;
use weft_ruleset::ChainName;

/// Prefixes of the names of chains that belong to one Service port or endpoint.
pub(crate) const PRIVATE_PREFIXES: [&str; 5] = [
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-SEP-",
    "KUBE-FW-",
    "KUBE-EXT-",
];

/// True if a chain of the nat table belongs to a Service port or endpoint.
pub(crate) fn is_private(name: &str) -> bool {
    PRIVATE_PREFIXES
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// The chains of one Service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortChains {
    /// Balances over endpoints of the whole cluster.
    pub(crate) cluster: ChainName,
    /// Balances over endpoints of this node.
    pub(crate) local: ChainName,
    /// Entry of external traffic.
    pub(crate) external: ChainName,
    /// Checks source ranges.
    pub(crate) firewall: ChainName,
}

impl PortChains {
    pub(crate) fn of(id: &PortId) -> Self {
        let hash = Hash::of(format_args!("{id}{}", id.protocol));
        Self {
            cluster: hash.chain("KUBE-SVC-"),
            local: hash.chain("KUBE-SVL-"),
            external: hash.chain("KUBE-EXT-"),
            firewall: hash.chain("KUBE-FW-"),
        }
    }
}

/// The chain of one endpoint of a Service port.
pub(crate) fn endpoint_chain(id: &PortId, endpoint: SocketAddr) -> ChainName {
    Hash::of(format_args!("{id}{}{endpoint}", id.protocol)).chain("KUBE-SEP-")
}

/// The first 16 characters of a SHA-256 in base 32.
struct Hash([u8; 16]);

impl Hash {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

    fn of(words: fmt::Arguments<'_>) -> Self {
        struct Sink(Sha256);
        impl fmt::Write for Sink {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.update(text);
                Ok(())
            }
        }
        let mut sink = Sink(Sha256::new());
        // Writing to the hash cannot fail.
        let _ = sink.write_fmt(words);
        let digest = sink.0.finalize();
        let mut text = [0; 16];
        for (index, character) in text.iter_mut().enumerate() {
            let bit = index * 5;
            let pair = u16::from_be_bytes([digest[bit / 8], digest[bit / 8 + 1]]);
            *character = Self::ALPHABET[usize::from(pair >> (11 - bit % 8)) & 31];
        }
        Self(text)
    }

    fn chain(&self, prefix: &str) -> ChainName {
        let hash = std::str::from_utf8(&self.0).unwrap_or_default();
        ChainName::fixed(&[prefix, hash].concat())
    }
}

#[cfg(test)]
mod tests {
    use weft_model::{ObjectKey, Protocol};

    use super::*;

    fn id(namespace: &str, name: &str, port: &str, protocol: Protocol) -> PortId {
        PortId {
            service: ObjectKey::namespaced(namespace, name),
            port: port.into(),
            protocol,
        }
    }

    #[test]
    fn names_are_kube_proxys() {
        // From kube-proxy's tests and from a running kube-proxy.
        let seen = [
            (id("ns1", "svc1", "p80", Protocol::Tcp), "XPGD46QRK7WJZT7O"),
            (id("ns5", "svc5", "p80", Protocol::Tcp), "NUKIZ6OKUXPJNT4C"),
            (
                id("default", "kubernetes", "https", Protocol::Tcp),
                "NPX46M4PTMTKRN6Y",
            ),
            (id("ns1", "multi", "dns", Protocol::Udp), "ESJNW7Y3RMUBUB75"),
            (
                id("ns1", "multi", "sctp", Protocol::Sctp),
                "SNWPKHSDFQQT62S4",
            ),
            (id("ns1", "empty", "", Protocol::Tcp), "MEUUMPPLA2W6AQHA"),
        ];
        for (id, hash) in seen {
            let chains = PortChains::of(&id);
            assert_eq!(chains.cluster.as_str(), format!("KUBE-SVC-{hash}"), "{id}");
            assert_eq!(chains.local.as_str(), format!("KUBE-SVL-{hash}"));
            assert_eq!(chains.external.as_str(), format!("KUBE-EXT-{hash}"));
            assert_eq!(chains.firewall.as_str(), format!("KUBE-FW-{hash}"));
        }
    }

    #[test]
    fn endpoints_of_both_families_have_kube_proxys_names() {
        let svc1 = id("ns1", "svc1", "p80", Protocol::Tcp);
        let chain = |endpoint: &str| endpoint_chain(&svc1, endpoint.parse().unwrap());
        assert_eq!(chain("10.180.0.1:80").as_str(), "KUBE-SEP-SXIVWICOYRO3J4NJ");
        assert_eq!(
            chain("[fd00:10:180::9]:80").as_str(),
            "KUBE-SEP-NUS7UJ2LWYEAI5RX"
        );
    }
}
