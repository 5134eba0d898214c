//! Compares two proxies by packets: with the same random clusters, every kind of client gets the same
//! endpoints, sources and refusals at every address of every Service.
//!
//! nftables rulesets of two projects cannot be compared as text. Differences that are documented in
//! docs/proxy.md are not differences here: a refused TCP connection is refused, by a reset or by
//! ICMP.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use weft_testkit::{
    cluster::{Edit, NODE, RandomCluster},
    lab::{self, Lab},
    packets::Site,
    peer,
};

use super::{
    disagreement::{self, Disagreement},
    seeds,
};
use crate::arena::{Arena, PATIENCE, Running};

mod front;
mod mark;
mod observation;

use front::{Front, UNKNOWN_PORT, fronts};
use mark::Mark;
use observation::observe;

/// Number of comparisons of a cluster.
const ROUNDS: usize = 4;
/// Number of edits between two comparisons.
const EDITS: usize = 9;

#[test]
fn random_clusters_send_packets_the_same_way_as_kube_proxy_with_nftables() {
    let Some(peer) = peer("kube-proxy") else {
        return;
    };
    lab::with_programs(&["nft"], |lab| {
        let contest = Contest::new(lab, Reference::KubeProxy(&peer));
        contest.run(seeds());
    });
}

#[test]
fn random_clusters_send_packets_the_same_way_as_the_newest_kube_proxy_with_nftables() {
    let Some(peer) = peer("kube-proxy-newest") else {
        return;
    };
    lab::with_programs(&["nft"], |lab| {
        let contest = Contest::new(lab, Reference::KubeProxy(&peer));
        contest.run(seeds());
    });
}

#[test]
fn random_clusters_send_packets_the_same_way_with_iptables_and_with_nftables() {
    lab::with_programs(&["nft", "iptables-nft"], |lab| {
        let contest = Contest::new(lab, Reference::OwnIptables);
        contest.run(seeds());
    });
}

/// The proxy that the nftables mode of weft is compared with.
#[derive(Clone, Copy)]
enum Reference<'a> {
    KubeProxy(&'a Path),
    /// weft's own iptables mode, whose rules are compared with kube-proxy's as text.
    OwnIptables,
}

impl Reference<'_> {
    fn name(self) -> String {
        match self {
            Self::KubeProxy(path) => path.file_name().unwrap().to_string_lossy().into_owned(),
            Self::OwnIptables => "iptables".to_owned(),
        }
    }
}

/// The two proxies, each on the node of a site.
struct Contest<'a> {
    arena: Arena,
    reference: Reference<'a>,
    sites: [Site; 2],
    _running: [Running; 2],
    marks: u16,
}

impl<'a> Contest<'a> {
    fn new(lab: &Lab, reference: Reference<'a>) -> Self {
        let arena = Arena::new("nft");
        let sites = ["-a", "-b"].map(|ending| Site::new(lab, ending));
        for site in &sites {
            arena.serve(site.node());
        }
        for (name, object) in RandomCluster::new(0).objects() {
            arena.apply(&[with_addresses(Edit::Put(name.clone(), object.clone()))]);
        }
        let [first, second] = &sites;
        let nftables = "--proxy-mode=nftables";
        // The modes have different addresses of NodePorts unless they are named.
        let addresses = "--nodeport-addresses=192.168.0.1/32,fd00:192::1/128";
        let running = match reference {
            Reference::KubeProxy(path) => [
                arena.start(
                    first.node(),
                    "reference",
                    &[path.to_str().unwrap(), nftables],
                ),
                arena.start_weft_with(second.node(), &[nftables]),
            ],
            Reference::OwnIptables => [
                arena.start(
                    first.node(),
                    "reference",
                    &[env!("CARGO_BIN_EXE_weft"), "proxy", addresses],
                ),
                arena.start_weft_with(second.node(), &[nftables, addresses]),
            ],
        };
        Self {
            arena,
            reference,
            sites,
            _running: running,
            marks: 0,
        }
    }

    fn run(mut self, seeds: impl Iterator<Item = u64>) {
        let how = format!("{}-packets", self.reference.name());
        for kept in disagreement::kept(&["-packets"]) {
            self.arena.create_namespace(&kept.namespace);
            self.apply(&kept.edits);
            if let Err(words) = self.agreement(PATIENCE) {
                panic!("{}:\n{words}\n{}", kept.name, self.logs());
            }
            self.apply(&kept.removal());
        }
        let mut seen = observation::Counts::default();
        for seed in seeds {
            let mut cluster = RandomCluster::with_distinct_fronts(seed);
            self.arena.create_namespace(cluster.namespace());
            let objects = cluster.objects();
            let mut edits: Vec<Edit> = objects
                .map(|(name, object)| Edit::Put(name.clone(), object.clone()))
                .collect();
            self.apply(&edits);
            for round in 0..ROUNDS {
                for _ in 0..EDITS {
                    let next = cluster.edit();
                    self.apply(&next);
                    edits.extend(next);
                }
                match self.agreement(PATIENCE) {
                    Ok(counts) => seen.add(&counts),
                    Err(words) => {
                        let logs = self.logs();
                        // Printed first: the search for fewer edits may be interrupted.
                        eprintln!("seed {seed}, round {round}:\n{words}");
                        let namespace = cluster.namespace();
                        let found = Disagreement::new(seed, &how, namespace, edits);
                        let removal = found.removal();
                        let kept = found.minimise(|edits| {
                            self.apply(&removal);
                            let _ = self.agreement(disagreement::PATIENCE);
                            self.apply(edits);
                            self.agreement(disagreement::PATIENCE).is_err()
                        });
                        panic!("seed {seed}, round {round}:\n{words}\n{logs}\n{kept}");
                    }
                }
            }
            self.arena.clear(&cluster);
        }
        eprintln!("{how}: {seen}");
        seen.assert_enough();
    }

    fn apply(&self, edits: &[Edit]) {
        let edits: Vec<Edit> = edits.iter().cloned().map(with_addresses).collect();
        self.arena.apply(&edits);
    }

    /// Waits until packets go the same ways on both sites; returns the differences if they do not in
    /// time.
    fn agreement(&mut self, patience: Duration) -> Result<observation::Counts, String> {
        let deadline = Instant::now() + patience;
        self.marks += 1;
        let mark = Mark::of(self.marks);
        self.arena.apply(&mark.edits());
        while !self.sites.iter_mut().all(|site| mark.shows(site)) {
            if Instant::now() > deadline {
                return Err(format!("a change does not arrive: {mark:?}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        let mut fronts = fronts(&self.arena);
        if matches!(self.reference, Reference::OwnIptables) {
            fronts.retain(is_same_in_both_modes);
        }
        // Few tries miss an endpoint now and then, so a difference is looked at with more.
        for tries in [4, 8, 16, 32].into_iter().cycle() {
            let sites = self.sites.each_mut();
            let [mut expected, found] = sites.map(|site| observe(site, &fronts, tries));
            if matches!(self.reference, Reference::OwnIptables) {
                expected.forgive_iptables(&found);
            }
            let differences = expected.differences(&found);
            if differences.is_empty() {
                return Ok(expected.counts());
            }
            if Instant::now() > deadline {
                return Err(differences.join("\n"));
            }
        }
        unreachable!("the numbers of tries never end")
    }

    fn logs(&self) -> String {
        ["reference", "weft"]
            .map(|name| self.arena.log(name))
            .join("\n----\n")
    }
}

/// False where upstream's two modes differ too: ports that no Service has are refused by nftables
/// only, and a NodePort without local endpoints is dropped by iptables on every address of the node.
fn is_same_in_both_modes(front: &Front) -> bool {
    let address = front.target.ip();
    let is_further = Site::NODE_ADDRESSES[2..].contains(&address.to_string().as_str());
    front.target.port() != UNKNOWN_PORT && !is_further && !address.is_loopback()
}

/// Nodes have the addresses of a site, so that a proxy knows its own.
fn with_addresses(edit: Edit) -> Edit {
    match edit {
        Edit::Put(name, mut object) if name.kind == "Node" && name.name == NODE => {
            let address = |address: &&str| json!({"type": "InternalIP", "address": address});
            let addresses = Site::NODE_ADDRESSES[..2].iter().map(address);
            object["status"]["addresses"] = addresses.collect();
            Edit::Put(name, object)
        }
        other => other,
    }
}
