//! The compared proxies.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::ValueEnum;

/// A proxy and its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arm {
    KubeProxyLegacy,
    WeftLegacy,
    KubeProxyNft,
    WeftNft,
    KubeProxyNftables,
    NewestKubeProxyNftables,
    WeftNftables,
}

/// Paths of the compared programs.
#[derive(Debug)]
pub(crate) struct Proxies {
    pub(crate) weft: PathBuf,
    pub(crate) kube_proxy: PathBuf,
    /// A later release than the one that everything else is compared with.
    pub(crate) newest_kube_proxy: PathBuf,
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
    pub(crate) const ALL: [Self; 7] = [
        Self::KubeProxyLegacy,
        Self::WeftLegacy,
        Self::KubeProxyNft,
        Self::WeftNft,
        Self::KubeProxyNftables,
        Self::NewestKubeProxyNftables,
        Self::WeftNftables,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::KubeProxyLegacy => "kube-proxy iptables-legacy",
            Self::WeftLegacy => "weft legacy",
            Self::KubeProxyNft => "kube-proxy iptables-nft",
            Self::WeftNft => "weft nft",
            Self::KubeProxyNftables => "kube-proxy nftables",
            Self::NewestKubeProxyNftables => "newest kube-proxy nftables",
            Self::WeftNftables => "weft nftables",
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
            Self::NewestKubeProxyNftables => "new-nftables",
            Self::WeftNftables => "weft-nftables",
        }
    }

    pub(crate) fn variant(self) -> Variant {
        match self {
            Self::KubeProxyLegacy | Self::WeftLegacy => Variant::Legacy,
            Self::KubeProxyNft
            | Self::WeftNft
            | Self::KubeProxyNftables
            | Self::NewestKubeProxyNftables
            | Self::WeftNftables => Variant::Nft,
        }
    }

    /// True if it writes rules through the programs of iptables.
    pub(crate) fn calls_iptables(self) -> bool {
        !self.mode().ends_with("nftables")
    }

    fn mode(self) -> &'static str {
        match self {
            Self::KubeProxyLegacy | Self::WeftLegacy | Self::KubeProxyNft | Self::WeftNft => {
                "--proxy-mode=iptables"
            }
            Self::KubeProxyNftables | Self::NewestKubeProxyNftables | Self::WeftNftables => {
                "--proxy-mode=nftables"
            }
        }
    }

    /// The program and the flags that only this arm has.
    pub(crate) fn command_line(self, proxies: &Proxies) -> Vec<OsString> {
        let mode = self.mode();
        let (program, flags): (&Path, &[&str]) = match self {
            Self::KubeProxyLegacy | Self::KubeProxyNft | Self::KubeProxyNftables => {
                (&proxies.kube_proxy, &[mode])
            }
            Self::NewestKubeProxyNftables => (&proxies.newest_kube_proxy, &[mode]),
            Self::WeftLegacy => (&proxies.weft, &["proxy", mode, "--iptables-variant=legacy"]),
            Self::WeftNft => (&proxies.weft, &["proxy", mode, "--iptables-variant=nft"]),
            Self::WeftNftables => (&proxies.weft, &["proxy", mode]),
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
