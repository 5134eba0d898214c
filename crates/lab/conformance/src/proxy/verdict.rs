//! Method, remarks and targets of the proxy comparison.

use crate::{
    outcome::{Outcome, Target},
    proxy::{
        arm::Arm,
        figures::{
            BEYOND_WATCHED, FIRST_SYNC, Kind, LOWER_BOUND, LOWER_BOUND_CPU, MEMORY, connection_time,
        },
        testbed,
        trial::{Setting, Trial},
    },
    version,
};

/// Number of Services at which targets are judged.
const TARGET_SIZE: u32 = 10_000;

/// Fills in method and versions.
pub(crate) fn describe(outcome: &mut Outcome, setting: &Setting) -> anyhow::Result<()> {
    let effort = setting.effort;
    outcome.method = format!(
        "Services with five endpoints in one real API server. Each proxy runs in a network namespace \
         of its own, one at a time, with min-sync-period 0, in two passes; the second pass runs the \
         proxies in reverse. New TCP connections from the namespace show what the kernel does: a \
         first sync is complete when {} Services from the whole list answer, a changed slice (all \
         five endpoints move to another port) when the new port answers, an added Service (Service, \
         then slice) when it answers, a removed one when it refuses. Latencies start when the last \
         write is sent, so they include the API server's part, which a client that \
         only watches slices, in this program, shows; they are medians of {} changes of each \
         kind, or of fewer where {} s of a pass were not enough for half of them. Processor time is \
         the mean over the changes, of the proxy and all its children until they are idle again. \
         RssAnon is the proxy's own after all changes. New connections are timed by connect(2) to {} \
         random Services while the proxy is idle. The gap is the longest time without an answered new \
         connection, of 1,000 per second, while the proxy is restarted over its rules. The smallest \
         change is one RETURN rule in a chain to which no rule jumps, written by iptables-restore \
         alone next to all rules of a proxy that has ended. Callers of that program can hardly be \
         faster; where a target is above that bound, three quarters of the attainable ratio count as \
         best achievable. The time limit of a full sync is {} s.",
        super::trial::SAMPLE,
        2 * effort.changes,
        effort.budget.as_secs(),
        effort.connections,
        effort.patience.as_secs(),
    );
    let server = setting.runtime.block_on(setting.cluster.version())?;
    outcome.versions = vec![
        version::of_weft(&setting.proxies.weft)?,
        format!(
            "kube-proxy {}",
            trim(&version::first_line(
                &setting.proxies.kube_proxy,
                "--version"
            )?)
        ),
        format!(
            "newest kube-proxy {}",
            trim(&version::first_line(
                &setting.proxies.newest_kube_proxy,
                "--version"
            )?)
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

/// Remarks on one arm's figures.
pub(crate) fn remarks(trial: &Trial, size: u32, setting: &Setting) -> Vec<String> {
    let subject = format!("{} at {size} Services", trial.arm.name());
    let mut remarks = Vec::new();
    if let Some(first) = trial.figures.first_sync {
        let took = first.took.as_secs();
        if first.given_up {
            remarks.push(format!(
                "{subject}: the first sync was not complete after {took} s. The figure is a lower \
                 bound; nothing else could be measured."
            ));
        } else if first.is_slow() {
            remarks.push(format!(
                "{subject}: not restarted, because its first sync took {took} s; all changes were \
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
                "{subject}: {kind} {count} times instead of {wanted}."
            ));
        }
    }
    remarks
}

/// Adds ratios and their targets.
pub(crate) fn judge(outcome: &mut Outcome, arms: &[Arm]) {
    let at = Some(TARGET_SIZE);
    if outcome.measures.iter().all(|measure| measure.size != at) {
        return;
    }
    let both = |pair: [Arm; 2]| pair.iter().all(|arm| arms.contains(arm));
    let nft = [Arm::KubeProxyNft, Arm::WeftNft];
    if both(nft) {
        let names = nft.map(Arm::name);
        outcome.claim(FIRST_SYNC, at, names, Some(Target::AtLeast(10.0)));
        let mut claim = |name: &str, lower_bound: &str| {
            // Where kube-proxy did not complete its first sync at the target size there is no
            // baseline; report the ratio at the largest size that it completed.
            let size = outcome.largest_size(name, names);
            let peer = outcome.value(name, size, names[0]);
            let lower_bound = outcome.value(lower_bound, size, names[1]);
            let target = match peer.zip(lower_bound.filter(|lower_bound| *lower_bound > 0.0)) {
                _ if size != at => {
                    outcome.notes.push(format!(
                        "Not judged: {name} at {TARGET_SIZE} Services, where {} did not complete its \
                         first sync.",
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
    let nftables = [
        (Arm::KubeProxyNftables, Some(300.0), Some(1000.0)),
        // Expected to be 20 times, and reported.
        (Arm::NewestKubeProxyNftables, None, None),
    ];
    for (kube_proxy, sooner, cheaper) in nftables {
        let pair = [kube_proxy, Arm::WeftNftables];
        if !both(pair) {
            continue;
        }
        let names = pair.map(Arm::name);
        let target = |ratio: Option<f64>| ratio.map(Target::AtLeast);
        outcome.claim(Kind::Changed.name(), at, names, target(sooner));
        outcome.claim(BEYOND_WATCHED, at, names, target(sooner));
        let processor_time = Kind::Changed.processor_time();
        outcome.claim(&processor_time, at, names, target(cheaper));
        outcome.claim(FIRST_SYNC, at, names, None);
        for percent in [50, 99] {
            let limit = if percent == 50 { 1.05 } else { 1.2 };
            let name = connection_time(percent);
            let names = [names[1], names[0]];
            outcome.claim(&name, at, names, Some(Target::AtMost(limit)));
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
                Arm::WeftLegacy | Arm::WeftNft | Arm::WeftNftables => 1.0,
                Arm::KubeProxyLegacy
                | Arm::KubeProxyNft
                | Arm::KubeProxyNftables
                | Arm::NewestKubeProxyNftables => 15.0,
            };
            for kind in Kind::ALL {
                outcome.add(kind.name(), Some(size), "ms", arm.name(), value);
                outcome.add(&kind.processor_time(), Some(size), "ms", arm.name(), value);
            }
            outcome.add(BEYOND_WATCHED, Some(size), "ms", arm.name(), value);
            outcome.add(FIRST_SYNC, Some(size), "s", arm.name(), value);
            outcome.add(MEMORY, Some(size), "MB", arm.name(), value);
            for percent in [50, 99] {
                let name = connection_time(percent);
                outcome.add(&name, Some(size), "ms", arm.name(), 1.0);
            }
        }
        outcome
    }

    #[test]
    fn targets_are_judged_in_their_own_direction() {
        let mut outcome = outcome(TARGET_SIZE);
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
            "one changed slice at 10,000: kube-proxy nftables / weft nftables",
            "one changed slice, less what a bare watcher needs at 10,000: kube-proxy nftables / weft nftables",
            "one changed slice, processor time at 10,000: kube-proxy nftables / weft nftables",
        ];
        assert_eq!(missed, expected, "15 times is not 20 times");
        assert_eq!(outcome.claims.len(), 23);
    }

    #[test]
    fn a_target_above_the_lower_bound_of_the_program_is_relaxed() {
        for (lower_bound, expected) in [
            (0.1, Verdict::Missed),
            (0.7, Verdict::Missed),
            (0.8, Verdict::BestAchievable),
            (0.9, Verdict::BestAchievable),
        ] {
            let mut outcome = outcome(TARGET_SIZE);
            let weft = Arm::WeftNft.name();
            outcome.add(LOWER_BOUND, Some(TARGET_SIZE), "ms", weft, lower_bound);
            judge(&mut outcome, &Arm::ALL);
            let claim = outcome.claims.iter().find(|claim| {
                let name = "one changed slice at 10,000: kube-proxy iptables-nft";
                claim.name.starts_with(name)
            });
            assert_eq!(claim.unwrap().verdict(), Some(expected), "{lower_bound}");
        }
    }

    #[test]
    fn changes_are_reported_at_the_largest_size_that_both_completed() {
        let mut both = outcome(TARGET_SIZE);
        both.measures.extend(outcome(5_000).measures);
        for measure in &mut both.measures {
            if measure.size == Some(TARGET_SIZE) && measure.name != FIRST_SYNC {
                measure.values.remove(Arm::KubeProxyNft.name());
            }
        }
        judge(&mut both, &Arm::ALL);
        let claim = |name: &str| {
            both.claims
                .iter()
                .find(|claim| claim.name.starts_with(name))
        };
        let reported = claim("one changed slice at 5,000: kube-proxy iptables-nft").unwrap();
        assert_eq!((reported.ratio, reported.target), (Some(15.0), None));
        let not_judged = "Not judged: one changed slice at 10000 Services";
        assert!(both.notes.iter().any(|note| note.starts_with(not_judged)));
        let memory = claim("RssAnon at 5,000: weft nft").unwrap();
        assert_eq!(memory.verdict(), Some(Verdict::Met));
    }

    #[test]
    fn nothing_is_judged_at_another_size_or_without_the_other_arm() {
        let mut small = outcome(1_000);
        judge(&mut small, &Arm::ALL);
        let mut alone = outcome(TARGET_SIZE);
        judge(&mut alone, &[Arm::WeftNft, Arm::WeftLegacy]);
        assert_eq!((small.claims.len(), alone.claims.len()), (0, 0));
    }
}
