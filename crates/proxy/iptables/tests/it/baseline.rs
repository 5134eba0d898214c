//! Audits and syncs that compare the kernel's hashes of chains: they read the rules as text once
//! and find every foreign write.

use serde_json::json;
use weft_model::{IpFamily, ObjectKey};
use weft_proxy::{AuditReport, Backend as _, ReadBudget, Scope, objects::Object};
use weft_ruleset::{ChainName, Table};
use weft_testkit::cluster::RandomCluster;

use crate::world::{OPTIONS, Simulated, World};

/// In step with its kernel; from here on, no more text may be read.
fn world(seed: u64) -> (World, RandomCluster) {
    let mut cluster = RandomCluster::new(seed);
    let mut world = World::new(IpFamily::V4, OPTIONS);
    for _ in 0..12 {
        for edit in cluster.add_service() {
            world.edit(&edit);
        }
    }
    world.sync();
    world.backend.kernel().saves = 0;
    (world, cluster)
}

fn add_service(world: &mut World, cluster: &mut RandomCluster) {
    for edit in cluster.add_service() {
        world.edit(&edit);
    }
    world.sync();
}

/// A chain of a Service that was written after `before` was saved.
fn new_chain(world: &mut World, before: &weft_ruleset::Ruleset) -> ChainName {
    let rules = world.rules();
    let mut chains = rules.user_chains(Table::Nat).map(|(chain, _)| chain);
    chains
        .find(|chain| before.chain(Table::Nat, *chain).is_none())
        .unwrap()
}

fn repaired(world: &mut World) -> Vec<String> {
    match world.backend.audit(ReadBudget::Available).unwrap() {
        AuditReport::Read { repaired, .. } => repaired.iter().map(ToString::to_string).collect(),
        other => panic!("not read: {other:?}"),
    }
}

fn assert_unread(world: &mut World) {
    assert_eq!(world.backend.kernel().saves, 0);
}

#[test]
fn a_foreign_write_between_ours_and_the_new_baseline_is_found() {
    let (mut world, _) = world(1);
    let before = world.rules();
    add(&mut world, 1);
    world.sync();
    let chain = new_chain(&mut world, &before);
    let flush = format!("*nat\n-F {chain}\nCOMMIT\n");
    world.backend.kernel().disturb(&flush);
    assert_eq!(repaired(&mut world), [format!("nat {chain} differs")]);
    world.assert_as_fresh("after the audit");
    assert_unread(&mut world);
}

#[test]
fn a_rule_that_others_add_to_a_chain_that_we_edited_is_found() {
    let (mut world, mut cluster) = world(2);
    for noted in [false, true] {
        add_service(&mut world, &mut cluster);
        if noted {
            assert_eq!(
                world.backend.audit(ReadBudget::Available).unwrap(),
                AuditReport::Unchanged
            );
        }
        let foreign = "*nat\n-I KUBE-SERVICES -d 10.1.2.3/32 -j RETURN\nCOMMIT\n";
        world.backend.kernel().disturb(foreign);
        add_service(&mut world, &mut cluster);
        assert_eq!(repaired(&mut world), ["nat KUBE-SERVICES differs"]);
        world.assert_as_fresh("after the audit");
    }
    assert_unread(&mut world);
}

#[test]
fn our_own_writes_are_not_taken_for_foreign_ones() {
    let (mut world, mut cluster) = world(3);
    add_service(&mut world, &mut cluster);
    world
        .backend
        .kernel()
        .disturb("*filter\n-I FORWARD -s 10.0.0.0/8 -j ACCEPT\nCOMMIT\n");
    add_service(&mut world, &mut cluster);
    assert_eq!(repaired(&mut world), [""; 0]);
    assert_unread(&mut world);
}

#[test]
fn a_jump_that_goes_while_others_insert_rules_beside_it_is_found() {
    let (mut world, _) = world(4);
    let jumps = weft_iptables::fixed::jumps();
    assert!(jumps.len() > 10);
    for jump in jumps {
        let (table, from, rule) = (jump.table, jump.from, jump.rule);
        let foreign = format!(
            "*{table}\n-I {from} -s 10.0.0.0/8 -j RETURN\n-D {from} {rule}\n\
             -A {from} -s 10.1.0.0/16 -j RETURN\nCOMMIT\n"
        );
        world.backend.kernel().disturb(&foreign);
        assert_eq!(
            repaired(&mut world),
            [format!("{table} {from} lacks a jump")]
        );
        let line = format!("-A {from} {rule}");
        assert!(world.rules().to_string().contains(&line), "{line}");
    }
    assert_unread(&mut world);
}

#[test]
fn a_failed_partial_sync_and_the_full_one_behind_it_read_no_text() {
    let (mut world, mut cluster) = world(5);
    for removal in [false, true] {
        world.backend.kernel().failures = 1;
        if removal {
            let key: ObjectKey = world.desired.keys().next().unwrap().clone();
            world.model.remove_service(&key);
            world.sync();
        } else {
            add_service(&mut world, &mut cluster);
        }
        world.assert_as_fresh("after the failure");
        assert_eq!(
            world.backend.audit(ReadBudget::Available).unwrap(),
            AuditReport::Unchanged
        );
    }
    assert_unread(&mut world);
}

#[test]
fn a_failure_that_leaves_one_table_written_is_mended_without_text() {
    let (mut world, _) = world(6);
    add(&mut world, 1);
    world.sync();
    let foreign = "*nat\n-F KUBE-SERVICES\nCOMMIT\n";
    world.backend.kernel().disturb(foreign);
    // Its rule in nat is gone, and deleting it fails, when its new rule in filter is written.
    let slice = ObjectKey::namespaced("shop", "service-1");
    world.model.remove_slice(&slice);
    let before = world.rules().to_string();
    assert!(!before.contains("shop/service-1:http has no endpoints"));
    let report = world.sync();
    let failure = report.partial_failure.unwrap();
    let refused = failure.input().unwrap();
    assert!(refused.contains("shop/service-1:http has no endpoints"));
    let mended = world.backend.kernel().inputs.last().unwrap();
    assert!(!mended.contains("shop/service-1:http has no endpoints"));
    world.assert_as_fresh("after the failure");
    assert_unread(&mut world);
}

#[test]
fn after_failures_of_both_syncs_nothing_is_taken_for_granted() {
    let (mut world, mut cluster) = world(7);
    for edit in cluster.add_service() {
        world.edit(&edit);
    }
    world.derive();
    world.backend.kernel().failures = 2;
    let scope = Scope::Changed(&world.changed);
    let outcome = world.backend.sync(&world.desired, &world.settings, scope);
    assert!(outcome.is_err());
    assert_eq!(
        world.backend.audit(ReadBudget::Available).unwrap(),
        AuditReport::Postponed
    );
    let foreign = "*nat\n-F KUBE-MARK-MASQ\nCOMMIT\n";
    world.backend.kernel().disturb(foreign);
    assert!(world.sync().full);
    world.assert_as_fresh("after both");
    assert_unread(&mut world);
}

#[test]
fn changed_settings_are_written_without_reading_text() {
    let (mut world, _) = world(8);
    world.settings.masquerade_all = true;
    world.sync();
    world.assert_as_fresh("masquerade all");
    // Then the chain against packets to loopback addresses is kubelet's alone.
    world.settings.localhost_node_ports = false;
    world.sync();
    let foreign = "*filter\n-F KUBE-FIREWALL\nCOMMIT\n";
    world.backend.kernel().disturb(foreign);
    assert_eq!(repaired(&mut world), [""; 0]);
    world.assert_as_fresh("without loopback");
    world.settings.localhost_node_ports = true;
    world.sync();
    world.assert_as_fresh("with loopback again");
    assert_unread(&mut world);
}

#[test]
fn a_chain_that_others_left_over_is_removed() {
    let (mut world, _) = world(9);
    let foreign = "*nat\n:KUBE-SVC-LEFTOVER - [0:0]\n:KUBE-SEP-LEFTOVER - [0:0]\n\
                   -A KUBE-SVC-LEFTOVER -j KUBE-SEP-LEFTOVER\nCOMMIT\n";
    world.backend.kernel().disturb(foreign);
    let found = ["KUBE-SEP-LEFTOVER", "KUBE-SVC-LEFTOVER"];
    let found = found.map(|chain| format!("nat {chain} is left over"));
    assert_eq!(repaired(&mut world), found);
    world.assert_as_fresh("after the audit");
    assert_unread(&mut world);
}

#[test]
fn rules_in_another_order_are_read_once_and_are_not_a_difference() {
    let (mut world, _) = world(10);
    let text = world.rules().to_string();
    let rule = text
        .lines()
        .filter_map(|line| line.strip_prefix("-A KUBE-SERVICES "))
        .rfind(|rule| rule.contains("cluster IP"))
        .unwrap();
    let table = if text.split("*nat").next().unwrap().contains(rule) {
        "filter"
    } else {
        "nat"
    };
    let moved = format!("*{table}\n-D KUBE-SERVICES {rule}\n-I KUBE-SERVICES {rule}\nCOMMIT\n");
    world.backend.kernel().disturb(&moved);
    assert_eq!(repaired(&mut world), [""; 0]);
    let listed = &mut world.backend.kernel().listed;
    assert_eq!(std::mem::take(listed), [weft_iptables::fixed::SERVICES]);
    // Foreign writes elsewhere do not cause another reading.
    let foreign = "*mangle\n-A INPUT -s 10.0.0.0/8 -j ACCEPT\nCOMMIT\n";
    world.backend.kernel().disturb(foreign);
    assert_eq!(repaired(&mut world), [""; 0]);
    assert_eq!(world.backend.kernel().listed, []);
    assert_unread(&mut world);
}

/// Input that gives all chains of a proxy the rules that they have now.
fn backup(world: &mut World) -> String {
    let text = world.rules().to_string();
    let built_in = |line: &str| {
        let name = line.strip_prefix(':').or(line.strip_prefix("-A "));
        name.is_some_and(|name| !name.starts_with("KUBE-"))
    };
    let lines = text.lines().filter(|line| !built_in(line));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Restores a backup from before a change, and from before the change was noted or after that.
fn restore_an_old_backup(change: impl Fn(&mut World)) {
    for noted in [false, true] {
        let (mut world, _) = world(12);
        for index in 0..4 {
            add(&mut world, index);
        }
        world.sync();
        world.backend.audit(ReadBudget::Available).unwrap();
        let old = backup(&mut world);
        change(&mut world);
        world.sync();
        if noted {
            world.backend.audit(ReadBudget::Available).unwrap();
        }
        world.backend.kernel().disturb(&old);
        assert!(!repaired(&mut world).is_empty());
        world.assert_as_fresh("after the audit");
        assert_unread(&mut world);
    }
}

#[test]
fn an_old_backup_that_others_restore_is_found() {
    let slice = ObjectKey::namespaced("shop", "service-1");
    // Rules inserted, deleted, and both; chains written and removed.
    restore_an_old_backup(|world| add(world, 20));
    restore_an_old_backup(|world| world.model.remove_service(&slice));
    restore_an_old_backup(|world| world.model.remove_slice(&slice));
    restore_an_old_backup(|world| world.settings.masquerade_all = true);
    // The shared chains rewritten.
    restore_an_old_backup(|world| (20..100).for_each(|index| add(world, index)));
}

#[test]
fn a_write_of_others_during_an_audit_is_found_by_the_next_one() {
    for raw in [true, false] {
        let found = (0..400).find(|steps| {
            let (mut world, _) = world(13);
            if !raw {
                world.backend.kernel().salt = None;
            }
            let kernel = world.backend.kernel();
            kernel.disturb("*nat\n-F KUBE-POSTROUTING\n-F KUBE-SERVICES\nCOMMIT\n");
            let foreign = "*filter\n-F KUBE-FORWARD\n-F OUTPUT\nCOMMIT\n".to_owned();
            kernel.intrusion = Some((*steps, foreign));
            assert!(!repaired(&mut world).is_empty());
            if world.backend.kernel().intrusion.is_some() {
                return true;
            }
            world.backend.audit(ReadBudget::Available).unwrap();
            world.assert_as_fresh(&format!("after {steps} steps"));
            false
        });
        assert!(found.is_some_and(|steps| steps > 2), "{found:?}");
    }
}

#[test]
fn a_hash_that_was_taken_while_others_wrote_is_not_kept() {
    // Wherever in the first sync it happens.
    for steps in 0..400 {
        let mut cluster = RandomCluster::new(11);
        let mut world = World::new(IpFamily::V4, OPTIONS);
        for edit in cluster.add_service() {
            world.edit(&edit);
        }
        let foreign = "*nat\n-A KUBE-MARK-MASQ -j ACCEPT\nCOMMIT\n".to_owned();
        world.backend.kernel().intrusion = Some((steps, foreign));
        world.sync();
        if world.backend.kernel().intrusion.is_some() {
            assert!(steps > 20, "{steps}");
            return;
        }
        world.backend.audit(ReadBudget::Available).unwrap();
        world.assert_as_fresh(&format!("after {steps} steps"));
    }
    panic!("the first sync takes more steps than that");
}

#[test]
fn more_changed_chains_than_are_worth_reading_are_written_by_a_sync_and_read_by_an_audit() {
    let mut world = World::new(IpFamily::V4, OPTIONS);
    for index in 0..120 {
        add(&mut world, index);
    }
    world.sync();
    let all = spoiled_endpoints(&mut world);
    world.backend.kernel().saves = 0;
    world.backend.kernel().disturb(&all);
    assert!(repaired(&mut world).len() > 500);
    world.assert_as_fresh("after the audit");
    assert_eq!(world.backend.kernel().saves, 1);
    world.backend.kernel().disturb(&all);
    let full = Scope::Full;
    let synced = world.backend.sync(&world.desired, &world.settings, full);
    assert!(synced.unwrap().bytes > 10_000);
    world.assert_as_fresh("after the sync");
    assert_eq!(world.backend.kernel().saves, 1);
}

fn add(world: &mut World, index: usize) {
    let name = format!("service-{index}");
    let ip = format!("10.96.0.{}", index + 1);
    let endpoints: Vec<_> = (1..6)
        .map(|n| json!({"addresses": [format!("10.244.{n}.{}", index + 1)]}))
        .collect();
    let service = json!({"kind": "Service", "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIP": ip, "ports": [{"name": "http", "port": 80}]}});
    let slice = json!({"kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": name,
                     "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": 8080}]});
    for object in [service, slice] {
        world.model.set(&Object::decode(&object).unwrap().unwrap());
    }
}

/// A rule too many for every endpoint.
fn spoiled_endpoints(world: &mut World) -> String {
    let rules = world.rules();
    let chains = rules.user_chains(Table::Nat).map(|(chain, _)| chain);
    let endpoints = chains.filter(|chain| chain.as_str().starts_with("KUBE-SEP-"));
    let lines: Vec<String> = endpoints
        .map(|chain| format!("-A {chain} -j RETURN\n"))
        .collect();
    format!("*nat\n{}COMMIT\n", lines.concat())
}

/// A random foreign write.
fn disturbance(kernel: &Simulated, random: &mut fastrand::Rng) -> String {
    let table = [Table::Filter, Table::Nat][random.usize(..2)];
    let all: Vec<ChainName> = kernel.rules.chains(table).map(|(chain, _)| chain).collect();
    let chain = all[random.usize(..all.len())];
    let rules = kernel.rules.rules(table, chain);
    let line = match random.u8(0..5) {
        0 => format!("-F {chain}"),
        1 => format!("-I {chain} -s 10.9.9.9/32 -j RETURN"),
        2 => format!("-A {chain} -s 10.9.9.9/32 -j RETURN"),
        3 if !rules.is_empty() => format!("-D {chain} {}", rules[random.usize(..rules.len())]),
        _ => format!(":KUBE-SVC-{:016X} - [0:0]", random.u64(..)),
    };
    format!("*{table}\n{line}\nCOMMIT\n")
}

#[test]
fn the_next_audit_finds_any_foreign_write() {
    let mut compared = 0;
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut world, mut cluster) = world(seed);
        let mut backups = Vec::new();
        for round in 0..40 {
            backups.push(backup(&mut world));
            let input = match random.u8(..4) {
                0 => backups[random.usize(..backups.len())].clone(),
                _ => disturbance(world.backend.kernel(), &mut random),
            };
            let kernel = world.backend.kernel();
            if kernel.intrusion.is_none() && random.bool() {
                let most = [5, 120][random.usize(..2)];
                kernel.intrusion = Some((random.usize(..most), input));
            }
            kernel.failures = random.usize(..8).saturating_sub(6);
            for edit in cluster.edit() {
                world.edit(&edit);
            }
            world.derive();
            let scope = match random.u8(..8) {
                0 => Scope::Full,
                _ => Scope::Changed(&world.changed),
            };
            let synced = world.backend.sync(&world.desired, &world.settings, scope);
            if synced.is_err() {
                continue;
            }
            world.changed.clear();
            if random.bool() {
                world.backend.kernel().failures = 0;
                let budget = if random.bool() {
                    ReadBudget::Available
                } else {
                    ReadBudget::Spent
                };
                // Repairs cannot fail unless another process removes a chain at the wrong moment.
                let _ = world.backend.audit(budget);
            }
            if random.u8(..4) > 0 {
                continue;
            }
            world.backend.kernel().intrusion = None;
            world.backend.kernel().failures = 0;
            let audit = world.backend.audit(ReadBudget::Available).unwrap();
            if audit == AuditReport::Postponed {
                continue;
            }
            let kernel = world.backend.kernel();
            let text = weft_iptables::differences(kernel, &world.desired, &world.settings, OPTIONS);
            let (findings, _) = text.unwrap();
            assert!(findings.is_empty(), "seed {seed}, {round}: {findings:?}");
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}
