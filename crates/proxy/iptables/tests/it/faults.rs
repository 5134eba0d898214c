//! Foreign writes and failures of any kind: the next audit or full sync ends in the right state.

use std::sync::Arc;

use weft_iptables::Kernel as _;
use weft_model::IpFamily;
use weft_proxy::{AuditReport, Backend as _, ReadBudget, Scope, Service};
use weft_ruleset::{ChainName, Table};
use weft_testkit::cluster::RandomCluster;

use crate::world::{OPTIONS, World};

/// Kernels with raw hashes and without: both must come to the same.
const RAW: [bool; 2] = [true, false];

/// A world with Services that is in step with its kernel.
fn world(seed: u64, raw: bool) -> World {
    world_of(seed, raw).0
}

fn world_of(seed: u64, raw: bool) -> (World, RandomCluster) {
    let mut cluster = RandomCluster::new(seed);
    let mut world = empty(raw);
    for _ in 0..12 {
        for edit in cluster.add_service() {
            world.edit(&edit);
        }
    }
    world.sync();
    world.assert_as_fresh("before");
    (world, cluster)
}

fn empty(raw: bool) -> World {
    let mut world = World::new(IpFamily::V4, OPTIONS);
    let kernel = world.backend.kernel();
    kernel.salt = kernel.salt.filter(|_| raw);
    world
}

fn audit(world: &mut World) -> Vec<String> {
    match world.backend.audit(ReadBudget::Available).unwrap() {
        AuditReport::Read { repaired, .. } => repaired.iter().map(ToString::to_string).collect(),
        other => panic!("not read: {other:?}"),
    }
}

#[test]
fn a_flush_of_any_table_is_found_and_repaired() {
    for raw in RAW {
        for table in Table::ALL {
            let mut world = world(1, raw);
            let chains: Vec<ChainName> = world.rules().user_chains(table).map(|(c, _)| c).collect();
            let built_in: Vec<ChainName> = world.rules().chains(table).map(|(c, _)| c).collect();
            let flushed = built_in.iter().map(|chain| format!("-F {chain}"));
            let removed = chains.iter().map(|chain| format!("-X {chain}"));
            let lines: Vec<String> = flushed.chain(removed).collect();
            let input = format!("*{table}\n{}\nCOMMIT\n", lines.join("\n"));
            world.backend.kernel().disturb(&input);
            assert!(!audit(&mut world).is_empty(), "{table}");
            world.assert_as_fresh(table.as_str());
        }
    }
}

#[test]
fn every_chain_that_is_emptied_is_repaired_and_only_that_one() {
    for raw in RAW {
        let chains: Vec<(Table, ChainName)> = {
            let mut world = world(2, raw);
            let rules = world.rules();
            let all = Table::ALL.into_iter();
            let all = all.flat_map(|table| rules.user_chains(table).map(move |(c, _)| (table, c)));
            all.filter(|(table, chain)| !rules.rules(*table, *chain).is_empty())
                .collect()
        };
        assert!(chains.len() > 40, "{}", chains.len());
        let mut world = world(2, raw);
        for (table, chain) in chains {
            let kernel = world.backend.kernel();
            kernel.disturb(&format!("*{table}\n-F {chain}\nCOMMIT\n"));
            kernel.inputs.clear();
            assert_eq!(audit(&mut world), [format!("{table} {chain} differs")]);
            let input = world.backend.kernel().inputs.concat();
            let chain_lines = input.lines().filter(|line| line.starts_with(':')).count();
            assert_eq!(chain_lines, 1, "{input}");
            world.assert_as_fresh(chain.as_str());
        }
    }
}

#[test]
fn a_rule_too_many_or_too_few_is_repaired() {
    for raw in RAW {
        let mut world = world(3, raw);
        let disturbances = [
            "*nat\n-A KUBE-SERVICES -j RETURN\nCOMMIT\n",
            "*nat\n-I KUBE-SERVICES -d 10.0.0.1/32 -j RETURN\nCOMMIT\n",
            "*filter\n-A KUBE-FORWARD -j DROP\nCOMMIT\n",
            "*nat\n-A KUBE-MARK-MASQ -j ACCEPT\nCOMMIT\n",
            "*nat\n-D POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\nCOMMIT\n",
            "*filter\n-D INPUT -j KUBE-FIREWALL\nCOMMIT\n",
            "*nat\n:KUBE-SVC-LEFTOVER - [0:0]\nCOMMIT\n",
        ];
        for disturbance in disturbances {
            world.backend.kernel().disturb(disturbance);
            assert_eq!(audit(&mut world).len(), 1, "{disturbance}");
            world.assert_as_fresh(disturbance);
        }
    }
}

#[test]
fn rules_of_others_are_left_alone() {
    for raw in RAW {
        let mut world = world(4, raw);
        let foreign = "*filter\n:CNI-FORWARD - [0:0]\n-A CNI-FORWARD -s 10.0.0.0/8 -j ACCEPT\n\
                   -I FORWARD -j CNI-FORWARD\nCOMMIT\n";
        world.backend.kernel().disturb(foreign);
        assert_eq!(audit(&mut world), [""; 0]);
        world.sync();
        let text = world.rules().to_string();
        assert!(text.contains("-A CNI-FORWARD -s 10.0.0.0/8 -j ACCEPT"));
    }
}

#[test]
fn an_audit_reads_only_after_a_foreign_write_and_if_allowed() {
    for raw in RAW {
        let mut world = world(5, raw);
        assert_eq!(
            world.backend.audit(ReadBudget::Available).unwrap(),
            AuditReport::Unchanged
        );
        world
            .backend
            .kernel()
            .disturb("*nat\n-F KUBE-SERVICES\nCOMMIT\n");
        assert_eq!(
            world.backend.audit(ReadBudget::Spent).unwrap(),
            AuditReport::Postponed
        );
        assert_eq!(audit(&mut world), ["nat KUBE-SERVICES differs"]);
        assert_eq!(
            world.backend.audit(ReadBudget::Available).unwrap(),
            AuditReport::Unchanged
        );
    }
}

#[test]
fn a_write_of_ours_does_not_hide_a_write_of_others() {
    for raw in RAW {
        let mut cluster = RandomCluster::new(6);
        let mut world = empty(raw);
        world.sync();
        world
            .backend
            .kernel()
            .disturb("*nat\n-F KUBE-POSTROUTING\nCOMMIT\n");
        for edit in cluster.add_service() {
            world.edit(&edit);
        }
        world.sync();
        assert_eq!(audit(&mut world), ["nat KUBE-POSTROUTING differs"]);
        world.assert_as_fresh("after both");
    }
}

#[test]
fn a_failed_partial_sync_is_followed_by_a_full_one_at_once() {
    for raw in RAW {
        let (mut world, mut cluster) = world_of(7, raw);
        world.backend.kernel().failures = 1;
        for edit in cluster.add_service() {
            world.edit(&edit);
        }
        let report = world.sync();
        assert!(report.full && report.partial_failure.is_some());
        let failure = report.partial_failure.unwrap();
        assert!(failure.input().is_some(), "the refused input is kept");
        world.assert_as_fresh("after the failure");
    }
}

#[test]
fn drift_that_a_partial_sync_runs_into_is_repaired_by_the_full_one() {
    for raw in RAW {
        let mut world = world(8, raw);
        let kernel = world.backend.kernel();
        kernel.disturb("*nat\n-F KUBE-SERVICES\n-F KUBE-NODEPORTS\nCOMMIT\n");
        // Deleting a rule that is not there fails loudly.
        let served = |service: &&Arc<Service>| service.ports.iter().any(|port| port.has_endpoints);
        let key = world.desired.values().find(served).unwrap().key.clone();
        world.model.remove_service(&key);
        let report = world.sync();
        assert!(report.partial_failure.is_some());
        world.assert_as_fresh("after the drift");
    }
}

#[test]
fn random_failures_lose_nothing_in_the_end() {
    for raw in RAW {
        for seed in 0..10 {
            let mut cluster = RandomCluster::new(seed);
            let mut world = empty(raw);
            let mut failing = fastrand::Rng::with_seed(seed);
            let mut full = true;
            for _ in 0..80 {
                for edit in cluster.edit() {
                    world.edit(&edit);
                }
                world.derive();
                world.backend.kernel().failures = failing.usize(0..3);
                let scope = if full {
                    Scope::Full
                } else {
                    Scope::Changed(&world.changed)
                };
                let result = world.backend.sync(&world.desired, &world.settings, scope);
                // As the loop does it: what changed is kept until a sync worked.
                full = result.is_err();
                if !full {
                    world.changed.clear();
                }
            }
            world.backend.kernel().failures = 0;
            let scope = Scope::Changed(&world.changed);
            world
                .backend
                .sync(&world.desired, &world.settings, scope)
                .unwrap();
            world.assert_as_fresh(&format!("seed {seed}"));
        }
    }
}

#[test]
fn the_simulated_kernel_can_fail() {
    let mut world = World::new(IpFamily::V4, OPTIONS);
    assert!(
        world
            .backend
            .kernel()
            .restore("*nat\n-X NONE\nCOMMIT\n")
            .is_err()
    );
}
