//! What an ordinary user cannot have, found out before it is hit.

use std::fs;

use crate::program::{command, output};

/// What there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pods of the demo, when there are many.
    pub many: usize,
    /// Whether proxies use legacy iptables, whatever is usual here.
    pub(crate) legacy: bool,
    /// What people should know.
    pub note: Option<&'static str>,
}

/// Rules of a demo with more pods do not fit through a socket whose buffer only the host's root may
/// enlarge: `iptables-nft-restore` fails above some 22 kB in a user namespace.
const FEW: usize = 8;
const MANY: usize = 36;

impl Limits {
    /// Those of this process.
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
                Some(
                    "proxies use legacy iptables: as an ordinary user nft takes few rules at once",
                ),
            ),
            (false, false) => (
                FEW,
                false,
                Some(
                    "few pods: as an ordinary user nft takes few rules at once, and this kernel has no legacy xtables",
                ),
            ),
        };
        Self { many, legacy, note }
    }
}

/// Whether a user namespace is the host's own.
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
    fn only_the_host_s_root_has_no_limits() {
        assert!(is_everyone("         0          0 4294967295\n"));
        assert!(!is_everyone("         0       1000          1\n"));
        assert!(!is_everyone(""));
        assert_eq!(Limits::of(true, false).many, MANY);
        assert!(Limits::of(false, true).legacy);
        assert_eq!(Limits::of(false, false).many, FEW);
        assert!(Limits::of(false, false).note.is_some());
    }
}
