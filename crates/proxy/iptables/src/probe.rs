//! Probes for kernel features by trying them.

use weft_model::error_text;
use weft_ruleset::{ChainName, Match, NfacctName, Rule, Table};

use crate::{kernel::Kernel, plan::Plan};

const CHAIN: ChainName = ChainName::fixed("WEFT-PROXY-PROBE");

/// True if rules can count packets with the nfacct match.
///
/// A kernel may have the counters and lack the match, and then every restore with such a rule fails
/// (kubernetes #142068). The probe writes such rules to a chain that nothing jumps to, and removes
/// it again.
pub fn supports_nfacct(kernel: &mut impl Kernel) -> bool {
    let mut attempt = Plan::default();
    let counters = NfacctName::ALL.map(|name| Rule::new().with(Match::Nfacct(name)));
    attempt.write(Table::Filter, CHAIN, &counters);
    let works = kernel.restore(&attempt.to_string()).is_ok();
    if works {
        let mut removal = Plan::default();
        removal.remove(Table::Filter, CHAIN);
        if let Err(error) = kernel.restore(&removal.to_string()) {
            tracing::warn!(error = error_text(&error), chain = %CHAIN, "cannot remove probe chain");
        }
    }
    works
}
