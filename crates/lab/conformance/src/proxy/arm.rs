//! The compared proxies.

use std::{ffi::OsString, path::Path};

use clap::ValueEnum;

/// A proxy and its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arm {
    KubeProxyLegacy,
    WeftLegacy,
    KubeProxyNft,
    WeftNft,
    KubeProxyNftables,
}

/// Variant of the iptables programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    Legacy,
    Nft,
}

impl Variant {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Nft => "nft",
        }
    }
}

impl Arm {
    /// In the sequence of the first pass: those that are compared with each other are adjacent.
    pub(crate) const ALL: [Self; 5] = [
        Self::KubeProxyLegacy,
        Self::WeftLegacy,
        Self::KubeProxyNft,
        Self::WeftNft,
        Self::KubeProxyNftables,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::KubeProxyLegacy => "kube-proxy iptables-legacy",
            Self::WeftLegacy => "weft legacy",
            Self::KubeProxyNft => "kube-proxy iptables-nft",
            Self::WeftNft => "weft nft",
            Self::KubeProxyNftables => "kube-proxy nftables",
        }
    }

    /// A name for namespaces and files.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::KubeProxyLegacy => "kube-legacy",
            Self::WeftLegacy => "weft-legacy",
            Self::KubeProxyNft => "kube-nft",
            Self::WeftNft => "weft-nft",
            Self::KubeProxyNftables => "kube-nftables",
        }
    }

    pub(crate) fn variant(self) -> Variant {
        match self {
            Self::KubeProxyLegacy | Self::WeftLegacy => Variant::Legacy,
            Self::KubeProxyNft | Self::WeftNft | Self::KubeProxyNftables => Variant::Nft,
        }
    }

    /// True if it writes rules through the programs of iptables.
    pub(crate) fn calls_iptables(self) -> bool {
        self != Self::KubeProxyNftables
    }

    /// The program and the flags that only this arm has.
    pub(crate) fn command_line(self, weft: &Path, kube_proxy: &Path) -> Vec<OsString> {
        let (program, flags): (&Path, &[&str]) = match self {
            Self::KubeProxyLegacy | Self::KubeProxyNft => (kube_proxy, &["--proxy-mode=iptables"]),
            Self::KubeProxyNftables => (kube_proxy, &["--proxy-mode=nftables"]),
            Self::WeftLegacy => (weft, &["proxy", "--iptables-variant=legacy"]),
            Self::WeftNft => (weft, &["proxy", "--iptables-variant=nft"]),
        };
        let program = [program.as_os_str().to_owned()];
        program
            .into_iter()
            .chain(flags.iter().map(OsString::from))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arm_is_listed_once() {
        assert_eq!(Arm::ALL.len(), Arm::value_variants().len());
        for arm in Arm::value_variants() {
            assert!(Arm::ALL.contains(arm), "{arm:?}");
        }
    }
}
