//! Masquerades pod traffic that leaves the cluster, by iptables rules of this node.
//!
//! CNI plugins can masquerade too, but know only one pod's subnet: between nodes with a range each
//! they would hide pods from each other. Here all ranges of the cluster are known.

use std::{error::Error as _, fmt::Write as _, sync::Arc, time::Duration};

use ipnet::IpNet;
use weft_host::{
    command::CommandError,
    iptables::{DetectError, Iptables, RestoreError, VariantChoice},
};
use weft_model::IpFamily;
use weft_runtime::{Component, ComponentRun, ComponentScope, Phase};

/// Chain in table `nat`, owned by this component.
const CHAIN: &str = "WEFT-EGRESS";
/// Interval at which the rules are checked.
const AUDIT: Duration = Duration::from_mins(1);

/// Component that keeps the masquerading rules of this node.
#[derive(Clone, Debug)]
pub struct Egress {
    ranges: Vec<IpNet>,
}

/// The masquerading rules cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// No iptables programs were found.
    #[error("cannot find the iptables programs for {0}")]
    Programs(IpFamily, #[source] DetectError),
    /// The rules of the family cannot be read.
    #[error("cannot read the {0} rules of table nat")]
    Read(IpFamily, #[source] CommandError),
    /// The rules of the family cannot be written.
    #[error("cannot write the {0} rules of table nat")]
    Write(IpFamily, #[source] RestoreError),
}

impl Egress {
    /// Rules for a cluster whose pods have these ranges.
    pub fn new(ranges: impl IntoIterator<Item = IpNet>) -> Self {
        Self {
            ranges: ranges.into_iter().collect(),
        }
    }

    fn of(&self, family: IpFamily) -> Vec<IpNet> {
        let ranges = self.ranges.iter();
        let ours = ranges.filter(|range| IpFamily::of(range.addr()) == family);
        ours.copied().collect()
    }

    /// Writes missing or changed rules; returns the families in which any were.
    pub fn ensure(&self) -> Result<Vec<IpFamily>, EgressError> {
        let mut written = Vec::new();
        for family in IpFamily::ALL {
            let ranges = self.of(family);
            if ranges.is_empty() {
                continue;
            }
            let programs = Iptables::detect(family, VariantChoice::Auto)
                .map_err(|source| EgressError::Programs(family, source))?;
            let read = |chain| {
                let rules = programs.chain_rules("nat", chain);
                rules.map(|(rules, _)| rules)
            };
            let begin = read("POSTROUTING").map_err(|source| EgressError::Read(family, source))?;
            let there = Rules {
                begin,
                // An error means that the chain does not exist, so it has no rules.
                chain: read(CHAIN).unwrap_or_default(),
            };
            if let Some(input) = input(family, &ranges, &there) {
                let restored = programs.restore(input.as_bytes());
                restored.map_err(|source| EgressError::Write(family, source))?;
                written.push(family);
            }
        }
        Ok(written)
    }
}

impl Egress {
    /// Removes the rules, in every variant and family that has them.
    pub fn remove(&self) -> Result<(), EgressError> {
        for (family, variant) in IpFamily::ALL
            .into_iter()
            .flat_map(|family| VARIANTS.map(|variant| (family, variant)))
        {
            let Ok(programs) = Iptables::detect(family, variant) else {
                continue;
            };
            if !programs.has_chain("nat", CHAIN).unwrap_or_default() {
                continue;
            }
            let (begin, _) = programs
                .chain_rules("nat", "POSTROUTING")
                .map_err(|source| EgressError::Read(family, source))?;
            let restored = programs.restore(removal(&begin).as_bytes());
            restored.map_err(|source| EgressError::Write(family, source))?;
        }
        Ok(())
    }
}

/// The variants that may have written the rules.
const VARIANTS: [VariantChoice; 2] = [VariantChoice::Nft, VariantChoice::Legacy];

/// Input of `iptables-restore --noflush` that removes the chain and every jump to it.
fn removal(begin: &[String]) -> String {
    let mut text = "*nat\n".to_owned();
    let ends = format!("-j {CHAIN}");
    for rule in begin.iter().filter(|rule| rule.ends_with(&ends)) {
        let _infallible = writeln!(text, "-D POSTROUTING {rule}");
    }
    let _infallible = write!(text, "-F {CHAIN}\n-X {CHAIN}\nCOMMIT\n");
    text
}

/// The present rules of `POSTROUTING` and of our chain.
#[derive(Debug, Default)]
struct Rules {
    begin: Vec<String>,
    chain: Vec<String>,
}

/// Rule of `POSTROUTING` that sends packets from a range to our chain.
fn jump(range: &IpNet) -> String {
    format!("-s {range} -j {CHAIN}")
}

/// Rules of our chain: return for pods and multicast, masquerade the rest.
fn chain(family: IpFamily, ranges: &[IpNet]) -> Vec<String> {
    let groups = match family {
        IpFamily::V4 => "224.0.0.0/4",
        IpFamily::V6 => "ff00::/8",
    };
    let inside = ranges.iter().map(|range| format!("-d {range} -j RETURN"));
    let outside = [format!("-d {groups} -j RETURN"), "-j MASQUERADE".to_owned()];
    inside.chain(outside).collect()
}

/// Input of `iptables-restore --noflush`; `None` if all rules are present.
fn input(family: IpFamily, ranges: &[IpNet], there: &Rules) -> Option<String> {
    let wanted = chain(family, ranges);
    let jumps: Vec<String> = ranges.iter().map(jump).collect();
    let missing: Vec<&String> = jumps
        .iter()
        .filter(|jump| !there.begin.contains(jump))
        .collect();
    if missing.is_empty() && there.chain == wanted {
        return None;
    }
    // Naming the chain flushes it; the table changes atomically.
    let mut text = format!("*nat\n:{CHAIN} - [0:0]\n");
    for rule in wanted {
        let _infallible = writeln!(text, "-A {CHAIN} {rule}");
    }
    for jump in missing {
        let _infallible = writeln!(text, "-A POSTROUTING {jump}");
    }
    text += "COMMIT\n";
    Some(text)
}

impl Component for Egress {
    fn name(&self) -> &'static str {
        "egress"
    }

    fn phase(&self) -> Phase {
        Phase::Always
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun {
        Box::pin(async move {
            let mut first = true;
            loop {
                let egress = self.clone();
                match tokio::task::spawn_blocking(move || egress.ensure()).await? {
                    Ok(written) if written.is_empty() => {}
                    Ok(families) if first => {
                        tracing::info!(?families, "egress masquerading installed");
                    }
                    Ok(families) => {
                        tracing::warn!(
                            ?families,
                            "egress masquerading rules were changed, repaired"
                        );
                    }
                    // Retry at the next check; the route controller goes on.
                    Err(error) => {
                        let cause = error.source().map(ToString::to_string);
                        tracing::error!(%error, ?cause, "cannot install egress masquerading");
                    }
                }
                if std::mem::take(&mut first) {
                    scope.ready();
                }
                tokio::select! {
                    () = scope.stopped() => return Ok(()),
                    () = tokio::time::sleep(AUDIT) => {}
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges() -> Vec<IpNet> {
        vec!["10.244.0.0/16".parse().unwrap()]
    }

    #[test]
    fn pods_see_each_other_and_the_world_sees_nodes() {
        let text = input(IpFamily::V4, &ranges(), &Rules::default()).unwrap();
        assert_eq!(
            text,
            "*nat\n:WEFT-EGRESS - [0:0]\n\
             -A WEFT-EGRESS -d 10.244.0.0/16 -j RETURN\n\
             -A WEFT-EGRESS -d 224.0.0.0/4 -j RETURN\n\
             -A WEFT-EGRESS -j MASQUERADE\n\
             -A POSTROUTING -s 10.244.0.0/16 -j WEFT-EGRESS\n\
             COMMIT\n"
        );
    }

    #[test]
    fn removing_takes_the_chain_and_only_what_leads_to_it() {
        let begin = ["-j KUBE-POSTROUTING".to_owned(), jump(&ranges()[0])];
        assert_eq!(
            removal(&begin),
            "*nat\n-D POSTROUTING -s 10.244.0.0/16 -j WEFT-EGRESS\n-F WEFT-EGRESS\n-X WEFT-EGRESS\nCOMMIT\n"
        );
    }

    #[test]
    fn what_is_there_is_not_written_again() {
        let mut there = Rules {
            begin: vec!["-j KUBE-POSTROUTING".to_owned(), jump(&ranges()[0])],
            chain: chain(IpFamily::V4, &ranges()),
        };
        assert_eq!(input(IpFamily::V4, &ranges(), &there), None);
        there.chain.pop();
        let repaired = input(IpFamily::V4, &ranges(), &there).unwrap();
        assert!(!repaired.contains("POSTROUTING"), "{repaired}");
    }
}
