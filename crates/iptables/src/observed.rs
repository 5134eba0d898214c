//! What the kernel holds, in the same terms as what it should hold.

use std::collections::{HashMap, HashSet};

use weft_ruleset::{ChainName, Rule, Table};

use crate::{
    expected::{ChainHash, ChainHasher, SharedHash, line_hash},
    shared::SharedChain,
};

/// One reading of `iptables-save`.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// Our chains and kubelet's, by content.
    pub(crate) chains: HashMap<(Table, ChainName), ChainHash>,
    /// Shared chains.
    pub(crate) shared: HashMap<SharedChain, SharedHash>,
    /// Rules of built-in chains that jump to one of ours.
    pub(crate) jumps: HashSet<(Table, ChainName, String)>,
}

impl Observed {
    /// Reads the text. `tail` rules at the end of nat `KUBE-SERVICES` are looked at in order.
    pub(crate) fn read(text: &str, tail: usize) -> Self {
        let mut observed = Self::default();
        let mut shared_lines: HashMap<SharedChain, Vec<u64>> = HashMap::new();
        let mut current: Option<(Table, ChainName, ChainHasher)> = None;
        let mut table = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                observed.finish(current.take());
                table = Table::parse(name);
                continue;
            }
            let Some(table) = table else { continue };
            if let Some(declared) = line.strip_prefix(':') {
                observed.declare(table, declared);
            } else if let Some((chain, rule)) = split(line) {
                if !chain.starts_with("KUBE-") {
                    observed.note_jump(table, chain, rule);
                    continue;
                }
                let Ok(chain) = ChainName::parse(chain) else {
                    continue;
                };
                if let Some(shared) = SharedChain::find(table, chain) {
                    shared_lines
                        .entry(shared)
                        .or_default()
                        .push(line_hash(rule));
                    continue;
                }
                match &mut current {
                    Some((t, c, hasher)) if (*t, *c) == (table, chain) => hasher.line(rule),
                    _ => {
                        observed.finish(current.take());
                        let mut hasher = ChainHasher::default();
                        hasher.line(rule);
                        current = Some((table, chain, hasher));
                    }
                }
            }
        }
        observed.finish(current);
        for (chain, lines) in shared_lines {
            let end = if chain == SharedChain::NatServices {
                lines.len().saturating_sub(tail)
            } else {
                lines.len()
            };
            let hash = SharedHash {
                rules: lines.len(),
                sum: lines
                    .iter()
                    .fold(0, |sum: u64, hash| sum.wrapping_add(*hash)),
                tail: lines[end..].to_vec(),
            };
            observed.shared.insert(chain, hash);
        }
        observed
    }

    fn declare(&mut self, table: Table, declared: &str) {
        let name = declared.split(' ').next().unwrap_or_default();
        if !name.starts_with("KUBE-") {
            return;
        }
        let Ok(chain) = ChainName::parse(name) else {
            return;
        };
        if let Some(shared) = SharedChain::find(table, chain) {
            self.shared.entry(shared).or_default();
        } else {
            let empty = ChainHasher::default().finish();
            self.chains.insert((table, chain), empty);
        }
    }

    fn note_jump(&mut self, table: Table, chain: &str, rule: &str) {
        let ours = rule
            .rsplit_once("-j ")
            .is_some_and(|(_, target)| target.starts_with("KUBE-"));
        if let Ok(chain) = ChainName::parse(chain)
            && ours
        {
            self.jumps.insert((table, chain, rule.to_owned()));
        }
    }

    fn finish(&mut self, chain: Option<(Table, ChainName, ChainHasher)>) {
        if let Some((table, name, hasher)) = chain {
            self.chains.insert((table, name), hasher.finish());
        }
    }
}

fn split(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("-A ")?;
    // A rule without matches and target is only the chain's name.
    Some(rest.split_once(' ').unwrap_or((rest, "")))
}

/// The text with every rule of ours printed as we print it.
///
/// Other versions of iptables may print the same rule in other words. This is slow, so it is done
/// only when the first look finds a difference.
pub(crate) fn normalise(text: &str, family: weft_model::IpFamily) -> String {
    let mut normalised = String::with_capacity(text.len());
    for line in text.lines() {
        let parsed = split(line).and_then(|(chain, rule)| {
            let rule = Rule::parse_for(family, rule).ok()?;
            Some(format!("-A {chain} {rule}"))
        });
        normalised.push_str(parsed.as_deref().map_or(line, str::trim_end));
        normalised.push('\n');
    }
    normalised
}
