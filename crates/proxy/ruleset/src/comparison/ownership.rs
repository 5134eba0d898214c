//! Whose chain it is, by its name.

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

/// Whether a service proxy makes chains of that name.
pub(super) fn is_of_proxy(chain: ChainName) -> bool {
    FIXED.contains(&chain.as_str()) || is_of_service(chain)
}

/// Whether the chain comes and goes with a Service.
pub(super) fn is_of_service(chain: ChainName) -> bool {
    let name = chain.as_str();
    OF_SERVICES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether the rules of all Services stand together in it.
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
