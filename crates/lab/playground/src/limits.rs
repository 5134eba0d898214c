//! Limits of this machine and user, detected before a demo runs into them.

use std::fs;

use crate::program::{command, output};

/// Limits of a playground.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of pods to which the demo scales up.
    pub many: usize,
    /// True if proxies have to use legacy iptables.
    pub(crate) legacy: bool,
    /// Explanation of the limit for the user, if there is one.
    pub note: Option<&'static str>,
}

/// Number of pods with nft in a user namespace. There `iptables-nft-restore` fails above some 22 kB,
/// because only root of the host may enlarge its socket buffer.
const FEW: usize = 8;
const MANY: usize = 36;

impl Limits {
    /// Detects the limits of this process.
    pub(crate) fn find() -> Self {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self::of(is_everyone(&map), has_legacy())
    }

    fn of(root: bool, legacy: bool) -> Self {
        let (many, legacy, note) = match (root, legacy) {
            (true, _) => (MANY, false, None),
            (false, true) => (
                MANY,
                true,
                Some("proxies use legacy iptables: without root, nft accepts few rules at once"),
            ),
            (false, false) => (
                FEW,
                false,
                Some(
                    "few pods: without root, nft accepts few rules at once, and this kernel has no legacy iptables",
                ),
            ),
        };
        Self { many, legacy, note }
    }
}

/// True if a `uid_map` is that of the host's user namespace.
fn is_everyone(map: &str) -> bool {
    let mut numbers = map.split_whitespace().map(str::parse::<u32>);
    matches!(
        (numbers.next(), numbers.next(), numbers.next()),
        (Some(Ok(0)), Some(Ok(0)), Some(Ok(u32::MAX)))
    )
}

fn has_legacy() -> bool {
    let works = |program| output(command(program).args(["-t", "nat", "-S"]), b"").is_ok();
    works("iptables-legacy") && works("ip6tables-legacy")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_of_the_host_has_no_limits() {
        assert!(is_everyone("         0          0 4294967295\n"));
        assert!(!is_everyone("         0       1000          1\n"));
        assert!(!is_everyone(""));
        assert_eq!(Limits::of(true, false).many, MANY);
        assert!(Limits::of(false, true).legacy);
        assert_eq!(Limits::of(false, false).many, FEW);
        assert!(Limits::of(false, false).note.is_some());
    }
}
