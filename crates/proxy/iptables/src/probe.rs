//! What the kernel can do, found out by doing it.

use weft_ruleset::{ChainName, Match, NfacctName, Rule, Table};

use crate::{kernel::Kernel, plan::Plan};

const CHAIN: ChainName = ChainName::fixed("WEFT-PROXY-PROBE");

/// Whether a rule can count packets by nfacct.
///
/// A kernel may have the counters and lack the match, and then every restore with such a rule
/// fails (kubernetes #142068). A chain that nothing jumps to tells, and goes again.
pub fn supports_nfacct(kernel: &mut impl Kernel) -> bool {
    let mut attempt = Plan::default();
    let counters = NfacctName::ALL.map(|name| Rule::new().with(Match::Nfacct(name)));
    attempt.write(Table::Filter, CHAIN, &counters);
    let works = kernel.restore(&attempt.to_string()).is_ok();
    if works {
        let mut removal = Plan::default();
        removal.remove(Table::Filter, CHAIN);
        if let Err(error) = kernel.restore(&removal.to_string()) {
            tracing::warn!(%error, chain = %CHAIN, "a chain that was made to try something stays behind");
        }
    }
    works
}
