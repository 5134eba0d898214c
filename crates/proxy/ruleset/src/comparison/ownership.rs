//! Recognises chains of a service proxy by name.

use crate::{ChainName, Table};

/// Chains that a service proxy always has.
const FIXED: [&str; 9] = [
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-FIREWALL",
    "KUBE-FORWARD",
    "KUBE-MARK-MASQ",
    "KUBE-NODEPORTS",
    "KUBE-POSTROUTING",
    "KUBE-PROXY-CANARY",
    "KUBE-PROXY-FIREWALL",
    "KUBE-SERVICES",
];

const OF_SERVICES: [&str; 5] = [
    "KUBE-EXT-",
    "KUBE-FW-",
    "KUBE-SEP-",
    "KUBE-SVC-",
    "KUBE-SVL-",
];

/// True if a service proxy creates chains of that name.
pub(super) fn is_of_proxy(chain: ChainName) -> bool {
    FIXED.contains(&chain.as_str()) || is_of_service(chain)
}

/// True if the chain is created and deleted with a Service.
pub(super) fn is_of_service(chain: ChainName) -> bool {
    let name = chain.as_str();
    OF_SERVICES.iter().any(|prefix| name.starts_with(prefix))
}

/// True if the chain has rules of all Services.
pub(super) fn is_shared(table: Table, chain: ChainName) -> bool {
    match table {
        Table::Mangle => false,
        Table::Filter => matches!(
            chain.as_str(),
            "KUBE-SERVICES" | "KUBE-EXTERNAL-SERVICES" | "KUBE-NODEPORTS" | "KUBE-PROXY-FIREWALL"
        ),
        Table::Nat => matches!(chain.as_str(), "KUBE-SERVICES" | "KUBE-NODEPORTS"),
    }
}
