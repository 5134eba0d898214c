//! Rules of service proxies in the kernel, of weft and of kube-proxy.

use std::fmt;

use weft_host::{iptables::VariantChoice, nftables::Nftables};
use weft_iptables::{HostKernel, Kernel as _, OwnWrites};
use weft_model::IpFamily;
use weft_nftables::{TABLE, is_own};
use weft_proxy_agent::{host, process::KUBE_PROXY_TABLE};

/// Rules of a service proxy in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelRules {
    /// The nftables table of weft.
    OwnTable(IpFamily),
    /// A table of that name that another program created.
    ForeignTable(IpFamily),
    /// The nftables table of kube-proxy.
    KubeProxyTable(IpFamily),
    /// `KUBE-` chains, which both write.
    Chains(IpFamily, VariantChoice),
}

impl fmt::Display for KernelRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nft = |family: &IpFamily| match family {
            IpFamily::V4 => "ip",
            IpFamily::V6 => "ip6",
        };
        match self {
            Self::OwnTable(family) => {
                write!(f, "nftables table {} {TABLE}, of weft proxy", nft(family))
            }
            Self::ForeignTable(family) => {
                write!(
                    f,
                    "nftables table {} {TABLE}, of another program",
                    nft(family)
                )
            }
            Self::KubeProxyTable(family) => {
                let family = nft(family);
                write!(
                    f,
                    "nftables table {family} {KUBE_PROXY_TABLE}, of kube-proxy"
                )
            }
            Self::Chains(family, variant) => {
                let variant = match variant {
                    VariantChoice::Legacy => "legacy",
                    VariantChoice::Auto | VariantChoice::Nft => "nft",
                };
                write!(f, "iptables-{variant} chains KUBE-SERVICES of {family}")
            }
        }
    }
}

impl KernelRules {
    /// True of the rules of a service proxy that is not weft in its nftables mode.
    pub(super) fn are_of_another_proxy(self) -> bool {
        matches!(self, Self::KubeProxyTable(_) | Self::Chains(..))
    }
}

/// All rules of service proxies in the kernel for one family. Chains count once they are filled.
pub(super) fn find(family: IpFamily) -> anyhow::Result<Vec<KernelRules>> {
    let mut found = Vec::new();
    let mut nftables = Nftables::open()?;
    if let Some(table) = nftables.table(family, TABLE)? {
        found.push(if is_own(&table) {
            KernelRules::OwnTable(family)
        } else {
            KernelRules::ForeignTable(family)
        });
    }
    if nftables.table(family, KUBE_PROXY_TABLE)?.is_some() {
        found.push(KernelRules::KubeProxyTable(family));
    }
    for variant in [VariantChoice::Nft, VariantChoice::Legacy] {
        // A variant that is not installed has written nothing.
        let installed = host::families(None, variant).unwrap_or_default();
        let own = installed.into_iter().filter(|(other, _)| *other == family);
        for (_, programs) in own {
            let mut is_filled = false;
            HostKernel::new(programs, OwnWrites::default())
                .save(&mut |line| is_filled |= is_last_of_services(line))?;
            if is_filled {
                found.push(KernelRules::Chains(family, variant));
            }
        }
    }
    Ok(found)
}

/// True for the last rule of the chain that leads to Services. kube-proxy creates the chain some time
/// before it fills it.
fn is_last_of_services(line: &str) -> bool {
    line.starts_with("-A KUBE-SERVICES ") && line.ends_with("-j KUBE-NODEPORTS")
}
