//! weft beside a running kube-proxy: the same clusters, the same edits, the same kernel state.
//!
//! Each has a network namespace of its own and watches the same API server. After every few edits
//! the two kernels are compared as `weft_ruleset::compare` does it. `WEFT_PROXY_SEEDS` says of which
//! seeds the clusters are (`1-3` without it), so a failure can be repeated.
//! The edits of a cluster on which the two disagreed are made as few as still show it and kept in
//! `tests/disagreements`; those are tried first from then on.

use std::{env, ops::RangeInclusive, path::Path};

use weft_model::IpFamily;
use weft_testkit::{
    cluster::{Edit, RandomCluster},
    lab::{self, Lab, Namespace},
    peer,
};

use crate::arena::{Arena, PATIENCE, Running};

mod disagreement;
mod packets;
mod traffic;

use disagreement::Disagreement;
use traffic::Proxy;

const PROGRAMS: [&str; 2] = ["iptables-nft", "iptables-legacy"];

#[test]
fn random_clusters_give_the_same_kernel_state_with_nft() {
    let Some(peer) = peer("kube-proxy") else {
        return;
    };
    lab::with_programs(&PROGRAMS, |lab| contest(lab, &peer, "nft", seeds()));
}

#[test]
fn random_clusters_give_the_same_kernel_state_with_legacy() {
    let Some(peer) = peer("kube-proxy") else {
        return;
    };
    lab::with_programs(&PROGRAMS, |lab| contest(lab, &peer, "legacy", seeds()));
}

/// Each variant of the newest has every other seed: what differs between releases shows in any.
#[test]
fn random_clusters_give_the_state_of_the_newest_kube_proxy_with_nft() {
    let Some(peer) = peer("kube-proxy-newest") else {
        return;
    };
    let odd = seeds().filter(|seed| seed % 2 == 1);
    lab::with_programs(&PROGRAMS, |lab| contest(lab, &peer, "nft", odd));
}

#[test]
fn random_clusters_give_the_state_of_the_newest_kube_proxy_with_legacy() {
    let Some(peer) = peer("kube-proxy-newest") else {
        return;
    };
    let even = seeds().filter(|seed| seed % 2 == 0);
    lab::with_programs(&PROGRAMS, |lab| contest(lab, &peer, "legacy", even));
}

#[test]
fn services_survive_switching_between_the_two_in_either_direction() {
    let Some(peer) = peer("kube-proxy") else {
        return;
    };
    lab::with_programs(&PROGRAMS, |lab| switch(lab, &peer, "nft"));
}

#[test]
fn no_connection_waits_while_one_takes_over_from_the_other_with_nft() {
    let Some(peer) = peer("kube-proxy") else {
        return;
    };
    lab::with_programs(&PROGRAMS, |lab| {
        traffic::take_over(lab, &peer, "nft", &IPTABLES);
    });
}

#[test]
fn no_connection_waits_while_one_takes_over_from_the_other_with_legacy() {
    let Some(peer) = peer("kube-proxy") else {
        return;
    };
    lab::with_programs(&PROGRAMS, |lab| {
        traffic::take_over(lab, &peer, "legacy", &IPTABLES);
    });
}

#[test]
fn no_connection_waits_while_modes_and_proxies_change() {
    let Some(peer) = peer("kube-proxy") else {
        return;
    };
    lab::with_programs(&["iptables-nft", "nft"], |lab| {
        traffic::take_over(lab, &peer, "nft", &EVERY_CHANGE);
    });
}

/// kube-proxy and weft in turn, both with iptables.
const IPTABLES: [Proxy; 4] = [
    Proxy::KubeProxy("iptables"),
    Proxy::Weft("iptables"),
    Proxy::KubeProxy("iptables"),
    Proxy::Weft("iptables"),
];

/// Every change of mode or program in which weft is one of the two, but from its iptables mode to
/// kube-proxy's nftables mode: kube-proxy removes iptables rules before it has written its own, so
/// the way there is by the nftables mode of weft.
const EVERY_CHANGE: [Proxy; 10] = [
    Proxy::KubeProxy("nftables"),
    Proxy::Weft("nftables"),
    Proxy::KubeProxy("nftables"),
    Proxy::Weft("iptables"),
    Proxy::Weft("nftables"),
    Proxy::KubeProxy("iptables"),
    Proxy::Weft("nftables"),
    Proxy::Weft("iptables"),
    Proxy::KubeProxy("iptables"),
    Proxy::Weft("iptables"),
];

/// The two, each in a namespace.
struct Contest {
    kube: Namespace,
    weft: Namespace,
    _running: [Running; 2],
}

impl Contest {
    fn start(lab: &Lab, arena: &Arena, peer: &Path, round: usize) -> Self {
        let kube = lab.namespace(&format!("kube{round}"));
        let weft = lab.namespace(&format!("weft{round}"));
        arena.serve(&kube);
        arena.serve(&weft);
        let running = [arena.start_kube_proxy(&kube, peer), arena.start_weft(&weft)];
        Self {
            kube,
            weft,
            _running: running,
        }
    }

    fn sides(&self) -> [&Namespace; 2] {
        [&self.kube, &self.weft]
    }
}

/// The seeds that were asked for.
fn seeds() -> RangeInclusive<u64> {
    let Ok(text) = env::var("WEFT_PROXY_SEEDS") else {
        return 1..=3;
    };
    let (first, last) = text.split_once('-').expect("WEFT_PROXY_SEEDS like 1-20");
    first.parse().unwrap()..=last.parse().unwrap()
}

fn contest(lab: &Lab, peer: &Path, variant: &str, seeds: impl Iterator<Item = u64>) {
    let arena = Arena::new(variant);
    let contest = Contest::start(lab, &arena, peer, 0);
    for kept in disagreement::kept(&["-nft", "-legacy"]) {
        arena.create_namespace(&kept.namespace);
        arena.apply(&kept.edits);
        arena.assert_agreement(&contest.sides(), &kept.name);
        arena.apply(&kept.removal());
    }
    let (mut clusters, mut services) = (0, 0);
    for seed in seeds {
        clusters += 1;
        let mut cluster = RandomCluster::new(seed);
        arena.create_namespace(cluster.namespace());
        let mut edits: Vec<Edit> = cluster
            .objects()
            .map(|(name, object)| Edit::Put(name.clone(), object.clone()))
            .collect();
        arena.apply(&edits);
        for round in 0..5 {
            for _ in 0..9 {
                let next = cluster.edit();
                arena.apply(&next);
                edits.extend(next);
            }
            if let Err(words) = arena.agreement(&contest.sides(), PATIENCE) {
                let logs = ["kube-proxy", "weft"].map(|name| arena.log(name));
                // Printed first: the search for fewer edits may be interrupted.
                eprintln!("seed {seed}, round {round}:\n{words}");
                let how = format!("{}-{variant}", peer.file_name().unwrap().to_string_lossy());
                let found = Disagreement::new(seed, &how, cluster.namespace(), edits);
                let removal = found.removal();
                let mut attempt = 0;
                let kept = found.minimise(|edits| {
                    attempt += 1;
                    arena.apply(&removal);
                    for (name, object) in RandomCluster::new(0).objects() {
                        arena.apply(&[Edit::Put(name.clone(), object.clone())]);
                    }
                    let contest = Contest::start(lab, &arena, peer, attempt);
                    // The edits have to meet two that run already.
                    let _ = arena.agreement(&contest.sides(), disagreement::PATIENCE);
                    arena.apply(edits);
                    let agreement = arena.agreement(&contest.sides(), disagreement::PATIENCE);
                    agreement.is_err()
                });
                panic!(
                    "seed {seed}, round {round}:\n{words}\n{}\n{kept}",
                    logs.join("\n----\n")
                );
            }
        }
        services += cluster.services();
        arena.clear(&cluster);
    }
    arena.assert_agreement(&contest.sides(), "after everything was deleted");
    assert!(
        clusters > 0 && services >= 4 * clusters,
        "too few Services to mean much"
    );
    let failures = Arena::metric(&contest.weft, "partial_restore_failures_total");
    assert_eq!(
        failures, "",
        "a partial restore failed and nothing was broken"
    );
}

/// The rules go from one to the other and back, over changes that happen while neither runs.
fn switch(lab: &Lab, peer: &Path, variant: &str) {
    let arena = Arena::new(variant);
    let node = lab.namespace("node");
    let beside = lab.namespace("beside");
    arena.serve(&node);
    arena.serve(&beside);
    let _reference = arena.start_kube_proxy(&beside, peer);
    let mut cluster = RandomCluster::new(4711);
    arena.create_namespace(cluster.namespace());
    for (name, object) in cluster.clone().objects() {
        arena.apply(&[Edit::Put(name.clone(), object.clone())]);
    }
    for round in 0..4 {
        for _ in 0..8 {
            arena.apply(&cluster.edit());
        }
        let running = if round % 2 == 0 {
            arena.start_weft(&node)
        } else {
            arena.start_kube_proxy(&node, peer)
        };
        arena.assert_agreement(&[&beside, &node], &format!("round {round}"));
        drop(running);
        let rules = arena.rules(&node, IpFamily::V4).to_string();
        assert!(rules.contains("KUBE-SERVICES"), "rules stay when it ends");
    }
}
