//! What is said about the figures, and what was promised of them.

use crate::{
    outcome::{Outcome, Target},
    proxy::{
        arm::Arm,
        figures::{FIRST_SYNC, Kind, LOWER_BOUND, LOWER_BOUND_CPU, MEMORY},
        testbed,
        trial::{Setting, Trial},
    },
    version,
};

/// The size at which promises were made.
const PROMISED: u32 = 10_000;

/// Fills in how it was measured, and with what.
pub(crate) fn describe(outcome: &mut Outcome, setting: &Setting) -> anyhow::Result<()> {
    let effort = setting.effort;
    outcome.method = format!(
        "Services of five endpoints in one real API server; each proxy in a network namespace of \
         its own, one at a time, min-sync-period 0, in two passes of which the second has the \
         opposite order. The kernel is asked by new TCP connections from the namespace: a first \
         sync is over when {} Services all over the list answer, a changed slice (all five \
         endpoints move to another port) when the new port answers, a Service is added (Service, \
         then slice) when it answers, removed when it refuses. Latencies are from the moment the \
         last write is sent, so that they hold the API server's part too, as medians of {} changes of each kind; where {} s of a pass did not \
         suffice for half of them, of fewer. Processor time is that of the proxy and all its \
         children until they are quiet again, as a mean. RssAnon is the proxy's own after all \
         changes. New connections are timed by connect(2) to {} random Services, with the proxy \
         idle. The gap is the longest time without an answered new connection, of 1,000 begun in \
         a second, while the proxy is started again over its rules. The smallest change is one RETURN \
         in a chain that nobody calls, written by iptables-restore alone beside all rules of a proxy \
         that has ended; callers of that program can hardly do better, and where a promise asks for \
         more it is judged by three quarters of what can be had. A full sync is waited for {} s.",
        super::trial::SAMPLE,
        2 * effort.changes,
        effort.budget.as_secs(),
        effort.connections,
        effort.patience.as_secs(),
    );
    let server = setting.runtime.block_on(setting.cluster.version())?;
    outcome.versions = vec![
        version::of_weft(&setting.weft)?,
        format!(
            "kube-proxy {}",
            trim(&version::first_line(&setting.kube_proxy, "--version")?)
        ),
        format!("kube-apiserver {server}"),
    ];
    for (program, argument) in [
        ("iptables-legacy", "--version"),
        ("iptables-nft", "--version"),
        ("nft", "--version"),
    ] {
        if let Ok(program) = testbed::find(program) {
            outcome
                .versions
                .push(version::first_line(&program, argument)?);
        }
    }
    Ok(())
}

fn trim(version: &str) -> &str {
    version.strip_prefix("Kubernetes ").unwrap_or(version)
}

/// What a reader of one arm's figures has to know.
pub(crate) fn remarks(trial: &Trial, size: u32, setting: &Setting) -> Vec<String> {
    let whose = format!("{} at {size} Services", trial.arm.name());
    let mut remarks = Vec::new();
    if let Some(first) = trial.figures.first_sync {
        let took = first.took.as_secs();
        if first.given_up {
            remarks.push(format!(
                "{whose}: the first sync was not over after {took} s. The figure is a lower bound; \
                 nothing else could be measured."
            ));
        } else if first.is_slow() {
            remarks.push(format!(
                "{whose}: not started again, since its first sync took {took} s; all changes were \
                 made in the first pass."
            ));
        }
    }
    let wanted = u64::from(2 * setting.effort.changes);
    for kind in Kind::ALL {
        let count = trial.figures.of_kind(kind).count() as u64;
        if count > 0 && count < wanted {
            let kind = kind.name();
            remarks.push(format!(
                "{whose}: {kind} {count} times instead of {wanted}."
            ));
        }
    }
    remarks
}

/// Sets what was promised beside what was measured.
pub(crate) fn judge(outcome: &mut Outcome, arms: &[Arm]) {
    let at = Some(PROMISED);
    if outcome.measures.iter().all(|measure| measure.size != at) {
        return;
    }
    let both = |pair: [Arm; 2]| pair.iter().all(|arm| arms.contains(arm));
    let nft = [Arm::KubeProxyNft, Arm::WeftNft];
    if both(nft) {
        let names = nft.map(Arm::name);
        outcome.claim(FIRST_SYNC, at, names, Some(Target::AtLeast(10.0)));
        let mut claim = |name: &str, lower_bound: &str| {
            // Where kube-proxy did not end its first sync at the size of the promise, there is
            // nothing to hold it against; the ratio at the largest size that it masters is told.
            let size = outcome.largest_size(name, names);
            let peer = outcome.value(name, size, names[0]);
            let lower_bound = outcome.value(lower_bound, size, names[1]);
            let target = match peer.zip(lower_bound.filter(|lower_bound| *lower_bound > 0.0)) {
                _ if size != at => {
                    outcome.notes.push(format!(
                        "Not judged: {name} at {PROMISED} Services, where {} did not end its first \
                         sync.",
                        names[0]
                    ));
                    None
                }
                None => Some(Target::AtLeast(20.0)),
                Some((peer, lower_bound)) => Some(Target::BestAchievable {
                    wanted: 20.0,
                    attainable: peer / lower_bound,
                }),
            };
            outcome.claim(name, size, names, target);
        };
        claim(Kind::Changed.name(), LOWER_BOUND);
        claim(&Kind::Changed.processor_time(), LOWER_BOUND_CPU);
    }
    let legacy = [Arm::WeftLegacy, Arm::KubeProxyLegacy];
    if both(legacy) {
        for kind in Kind::ALL {
            let names = legacy.map(Arm::name);
            outcome.claim(kind.name(), at, names, Some(Target::AtMost(1.05)));
            outcome.claim(&kind.processor_time(), at, names, Some(Target::AtMost(1.0)));
        }
    }
    for [kube_proxy, weft] in [[Arm::KubeProxyLegacy, Arm::WeftLegacy], nft] {
        if both([kube_proxy, weft]) {
            let names = [weft.name(), kube_proxy.name()];
            let at = outcome.largest_size(MEMORY, names);
            outcome.claim(MEMORY, at, names, Some(Target::AtMost(0.25)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Verdict;

    fn outcome(size: u32) -> Outcome {
        let names = Arm::ALL.map(Arm::name);
        let mut outcome = Outcome::new("proxy", "", &names);
        for arm in Arm::ALL {
            let value = match arm {
                Arm::WeftLegacy | Arm::WeftNft => 1.0,
                Arm::KubeProxyLegacy | Arm::KubeProxyNft | Arm::KubeProxyNftables => 15.0,
            };
            for kind in Kind::ALL {
                outcome.add(kind.name(), Some(size), "ms", arm.name(), value);
                outcome.add(&kind.processor_time(), Some(size), "ms", arm.name(), value);
            }
            outcome.add(FIRST_SYNC, Some(size), "s", arm.name(), value);
            outcome.add(MEMORY, Some(size), "MB", arm.name(), value);
        }
        outcome
    }

    #[test]
    fn promises_are_judged_in_the_direction_in_which_they_were_made() {
        let mut outcome = outcome(PROMISED);
        judge(&mut outcome, &Arm::ALL);
        let missed: Vec<&str> = outcome
            .claims
            .iter()
            .filter(|claim| claim.verdict() == Some(Verdict::Missed))
            .map(|claim| claim.name.as_str())
            .collect();
        let expected = [
            "one changed slice at 10,000: kube-proxy iptables-nft / weft nft",
            "one changed slice, processor time at 10,000: kube-proxy iptables-nft / weft nft",
        ];
        assert_eq!(missed, expected, "15 times is not 20 times");
        assert_eq!(outcome.claims.len(), 11);
    }

    #[test]
    fn nobody_is_asked_for_more_than_the_program_allows() {
        for (lower_bound, expected) in [
            (0.1, Verdict::Missed),
            (0.7, Verdict::Missed),
            (0.8, Verdict::BestAchievable),
            (0.9, Verdict::BestAchievable),
        ] {
            let mut outcome = outcome(PROMISED);
            let weft = Arm::WeftNft.name();
            outcome.add(LOWER_BOUND, Some(PROMISED), "ms", weft, lower_bound);
            judge(&mut outcome, &Arm::ALL);
            let claim = outcome.claims.iter().find(|claim| {
                let name = "one changed slice at 10,000: kube-proxy iptables-nft";
                claim.name.starts_with(name)
            });
            assert_eq!(claim.unwrap().verdict(), Some(expected), "{lower_bound}");
        }
    }

    #[test]
    fn changes_are_told_at_the_largest_size_that_both_master() {
        let mut both = outcome(PROMISED);
        both.measures.extend(outcome(5_000).measures);
        for measure in &mut both.measures {
            if measure.size == Some(PROMISED) && measure.name != FIRST_SYNC {
                measure.values.remove(Arm::KubeProxyNft.name());
            }
        }
        judge(&mut both, &Arm::ALL);
        let claim = |name: &str| {
            both.claims
                .iter()
                .find(|claim| claim.name.starts_with(name))
        };
        let told = claim("one changed slice at 5,000: kube-proxy iptables-nft").unwrap();
        assert_eq!((told.ratio, told.target), (Some(15.0), None));
        let not_judged = "Not judged: one changed slice at 10000 Services";
        assert!(both.notes.iter().any(|note| note.starts_with(not_judged)));
        let memory = claim("RssAnon at 5,000: weft nft").unwrap();
        assert_eq!(memory.verdict(), Some(Verdict::Met));
    }

    #[test]
    fn nothing_is_judged_at_another_size_or_without_the_other_arm() {
        let mut small = outcome(1_000);
        judge(&mut small, &Arm::ALL);
        let mut alone = outcome(PROMISED);
        judge(&mut alone, &[Arm::WeftNft, Arm::WeftLegacy]);
        assert_eq!((small.claims.len(), alone.claims.len()), (0, 0));
    }
}
