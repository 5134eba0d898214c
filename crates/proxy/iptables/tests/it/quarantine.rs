//! Quarantine: a Service that the kernel refuses is left out, and everything else is written.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::json;
use weft_model::{IpFamily, ObjectKey};
use weft_proxy::{RuleOwner, Service, SyncError, quarantine::RETRY_AFTER};
use weft_testkit::{cluster::RandomCluster, lab};

use crate::{
    host::{PROGRAMS, everywhere, saved, sorted_rules, world as real_world},
    world::{OPTIONS, Refusals, World},
};

const MODES: [Refusals; 4] = [
    Refusals::Line,
    Refusals::Lines,
    Refusals::Commit,
    Refusals::Silent,
];

fn address(number: u32) -> String {
    let [_, _, high, low] = number.to_be_bytes();
    format!("{high}.{low}")
}

/// Service `s<number>` with a NodePort, and this many endpoints.
fn put(world: &mut World, number: u32, endpoints: u32) {
    put_in(world, "shop", number, endpoints);
}

fn put_in(world: &mut World, namespace: &str, number: u32, endpoints: u32) {
    let name = format!("s{number}");
    world.put(
        &json!({"kind": "Service", "metadata": {"namespace": namespace, "name": name},
        "spec": {"type": "NodePort", "clusterIP": format!("10.96.{}", address(number)),
                 "ports": [{"name": "http", "port": 80, "nodePort": 20_000 + number}]}}),
    );
    let endpoints = (0..endpoints).map(
        |endpoint| json!({"addresses": [format!("10.{}.{}", 100 + endpoint, address(number))]}),
    );
    world.put(&json!({"kind": "EndpointSlice",
        "metadata": {"namespace": namespace, "name": name,
                     "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 8080}]}));
}

/// A rule in the endpoint's own chain.
fn endpoint_rule(number: u32, endpoint: u32) -> String {
    format!(
        "--to-destination 10.{}.{}:8080",
        100 + endpoint,
        address(number)
    )
}

/// A rule of the NodePort in a chain to which all Services contribute.
fn shared_rule(number: u32) -> String {
    format!("--dport {} -j KUBE-EXT-", 20_000 + number)
}

/// A rule in the filter table, which is written before nat.
fn filter_rule(number: u32) -> String {
    format!("-d 10.96.{}/32 -p tcp", address(number))
}

fn world_of(count: u32, refusals: Refusals) -> World {
    let mut world = World::new(IpFamily::V4, OPTIONS);
    world.backend.kernel().refusals = refusals;
    for number in 0..count {
        put(&mut world, number, 1);
    }
    world
}

fn poison(world: &mut World, words: String) {
    world.backend.kernel().poison.insert(words);
}

const SECOND: Duration = Duration::from_secs(1);

fn writes(world: &mut World) -> usize {
    world.backend.kernel().inputs.len()
}

#[test]
fn one_refused_service_among_a_thousand_is_left_out_of_a_partial_sync() {
    let mut world = world_of(1000, Refusals::Line);
    world.guarded_sync(true).unwrap();
    poison(&mut world, endpoint_rule(500, 1));
    for number in [499, 500, 501] {
        put(&mut world, number, 2);
    }
    let (before, saves) = (writes(&mut world), world.backend.kernel().saves);
    let report = world.guarded_sync(false).unwrap();
    assert_eq!(world.held(), ["s500"]);
    let refusal = report.refusals[0].refusal().unwrap();
    let owner = ObjectKey::namespaced("shop", "s500");
    assert_eq!(refusal.owner, RuleOwner::Service(owner.clone()));
    assert_eq!(world.quarantine.take_changes().held, [owner]);
    // It has no rules any more, and the others have their new ones, at the cost of one more write.
    world.assert_as_fresh("after the refusal");
    assert!(!world.rules().to_string().contains("shop/s500:"));
    assert!(world.rules().to_string().contains(&endpoint_rule(501, 1)));
    assert!(!report.full && report.bytes < 4000, "{report:?}");
    assert_eq!(writes(&mut world) - before, 2);
    assert_eq!(
        world.backend.kernel().saves,
        saves,
        "nothing was read again"
    );
}

#[test]
fn a_first_sync_with_refused_services_reads_once_and_writes_the_rest() {
    let mut world = world_of(100, Refusals::Line);
    poison(&mut world, endpoint_rule(7, 0));
    poison(&mut world, shared_rule(70));
    let report = world.guarded_sync(true).unwrap();
    assert!(report.full);
    assert_eq!(world.held(), ["s7", "s70"]);
    assert_eq!(report.refusals.len(), 2);
    world.assert_as_fresh("after the first sync");
    let kernel = world.backend.kernel();
    assert_eq!((kernel.inputs.len(), kernel.saves), (3, 1));
}

#[test]
fn a_refused_line_of_a_shared_chain_belongs_to_its_service() {
    for refusals in MODES {
        let mut world = world_of(20, refusals);
        world.guarded_sync(true).unwrap();
        poison(&mut world, shared_rule(20));
        poison(&mut world, filter_rule(21));
        put(&mut world, 20, 1);
        // Without endpoints it has a rule in the filter table and no chain.
        put(&mut world, 21, 0);
        put(&mut world, 22, 0);
        world.guarded_sync(false).unwrap();
        assert_eq!(world.held(), ["s20", "s21"], "{refusals:?}");
        world.assert_as_fresh("after a refused shared line");
    }
}

#[test]
fn a_table_that_was_written_before_the_refused_one_is_set_right() {
    for refusals in MODES {
        let mut world = world_of(20, refusals);
        world.guarded_sync(true).unwrap();
        // Both tables change for it: it loses its endpoints in one and gets a NodePort in the other.
        poison(&mut world, shared_rule(30));
        put(&mut world, 30, 0);
        put(&mut world, 3, 0);
        world.guarded_sync(false).unwrap();
        put(&mut world, 30, 1);
        put(&mut world, 4, 0);
        world.guarded_sync(false).unwrap();
        assert_eq!(world.held(), ["s30"], "{refusals:?}");
        world.assert_as_fresh("after a refusal in the second table");
    }
}

#[test]
fn a_quarantined_service_is_not_tried_before_it_changes() {
    let mut world = world_of(20, Refusals::Line);
    poison(&mut world, endpoint_rule(5, 0));
    world.guarded_sync(true).unwrap();
    let before = writes(&mut world);
    for number in 6..12 {
        put(&mut world, number, 2);
        let report = world.guarded_sync(false).unwrap();
        assert!(!report.full && report.refusals.is_empty(), "{report:?}");
    }
    assert_eq!(writes(&mut world) - before, 6, "one write for each change");
    world.guarded_sync(true).unwrap();
    assert_eq!(world.held(), ["s5"]);
    world.backend.kernel().poison.clear();
    put(&mut world, 5, 2);
    let report = world.guarded_sync(false).unwrap();
    assert!(world.held().is_empty() && !report.full);
    assert!(world.rules().to_string().contains(&endpoint_rule(5, 1)));
    world.assert_as_fresh("healed");
}

#[test]
fn a_quarantined_service_that_goes_is_forgotten() {
    let mut world = world_of(5, Refusals::Line);
    poison(&mut world, endpoint_rule(3, 0));
    world.guarded_sync(true).unwrap();
    world
        .model
        .remove_service(&ObjectKey::namespaced("shop", "s3"));
    world.guarded_sync(false).unwrap();
    assert!(world.held().is_empty());
    world.assert_as_fresh("gone");
}

#[test]
fn a_quarantined_service_is_tried_again_after_a_while_with_a_full_sync() {
    for refusals in MODES {
        let mut world = world_of(20, refusals);
        for number in [5, 6] {
            poison(&mut world, endpoint_rule(number, 0));
        }
        world.guarded_sync(true).unwrap();
        assert_eq!(world.held(), ["s5", "s6"], "{refusals:?}");
        let kernel = world.backend.kernel();
        kernel.poison.remove(&endpoint_rule(5, 0));
        world.now += RETRY_AFTER / 2;
        world.guarded_sync(true).unwrap();
        assert_eq!(world.held(), ["s5", "s6"], "too early");
        world.quarantine.take_changes();
        world.now += RETRY_AFTER / 2;
        world.guarded_sync(true).unwrap();
        assert_eq!(world.held(), ["s6"]);
        let changes = world.quarantine.take_changes();
        assert_eq!(changes.accepted, [ObjectKey::namespaced("shop", "s5")]);
        assert!(changes.held.is_empty(), "refused again is not new");
        world.assert_as_fresh("after another try");
    }
}

#[test]
fn a_refusal_that_names_no_line_is_found_by_halves() {
    for refusals in [Refusals::Commit, Refusals::Silent] {
        // From nothing, all are suspects.
        let mut world = world_of(1000, refusals);
        poison(&mut world, endpoint_rule(321, 0));
        world.guarded_sync(true).unwrap();
        assert_eq!(world.held(), ["s321"], "{refusals:?}");
        world.assert_as_fresh("from nothing");
        assert!(writes(&mut world) <= 32, "{}", writes(&mut world));
        // Later, those that changed.
        for number in 0..16 {
            poison(&mut world, endpoint_rule(number, 1));
            put(&mut world, number + 8, 2);
        }
        let before = writes(&mut world);
        let report = world.guarded_sync(false).unwrap();
        assert_eq!(world.held().len(), 9, "{refusals:?}: {:?}", world.held());
        world.assert_as_fresh("among those that changed");
        let used = writes(&mut world) - before;
        assert!(used <= 64, "{used}");
        if refusals == Refusals::Commit {
            assert!(
                !report.full,
                "its table is known, so nothing had to be read"
            );
        }
    }
}

#[test]
fn services_in_force_are_not_suspects_when_a_new_one_is_refused_without_a_line() {
    let mut world = world_of(200, Refusals::Commit);
    world.guarded_sync(true).unwrap();
    poison(&mut world, endpoint_rule(300, 0));
    put(&mut world, 300, 1);
    world.backend.kernel().inputs.clear();
    // As after a restart: everything is read and compared.
    world.guarded_sync(true).unwrap();
    assert_eq!(world.held(), ["s300"]);
    let inputs = &world.backend.kernel().inputs;
    let removal = inputs.iter().find(|input| input.contains("-X KUBE-SVC"));
    assert_eq!(removal, None, "no other Service was taken away meanwhile");
    world.assert_as_fresh("after the search");
}

#[test]
fn a_refusal_without_an_owner_is_an_error_and_quarantines_nothing() {
    for refusals in MODES {
        let mut world = world_of(20, refusals);
        // A rule that is always there.
        poison(&mut world, "-A KUBE-POSTROUTING".to_owned());
        let error = world.guarded_sync(true).unwrap_err();
        assert!(error.refusal().is_some(), "{error:?}");
        assert!(world.held().is_empty(), "{refusals:?}");
        assert_eq!(world.desired.len(), 20);
        world.backend.kernel().poison.clear();
        // A busy lock, say.
        world.backend.kernel().failures = 2;
        let error = world.guarded_sync(false).unwrap_err();
        assert!(matches!(error, SyncError::Unavailable { .. }), "{error:?}");
        assert!(world.held().is_empty());
        let report = world.guarded_sync(false);
        assert!(report.is_err(), "the second failure");
        world.guarded_sync(true).unwrap();
        world.assert_as_fresh("in the end");
    }
}

/// Syncs as the loop does, until nothing waits for a trial. Returns how many that took.
fn settle(world: &mut World) -> usize {
    for round in 0..200 {
        let Some(next) = world.quarantine.next_trial() else {
            return round;
        };
        world.now = next.max(world.now + SECOND);
        world.guarded_sync(false).unwrap();
    }
    panic!("{} are never settled", world.held().len());
}

#[test]
fn a_burst_of_refused_services_stops_no_other_service() {
    // Attempts of the sync with the burst, and syncs until all are found.
    let limits = [
        (Refusals::Lines, 2, 0),
        (Refusals::Line, 65, 60),
        (Refusals::Commit, 65, 60),
        (Refusals::Silent, 65, 60),
    ];
    for (refusals, most_writes, most_syncs) in limits {
        let mut world = world_of(100, refusals);
        world.guarded_sync(true).unwrap();
        for number in 200..400 {
            poison(&mut world, shared_rule(number));
            put(&mut world, number, 1);
        }
        let before = writes(&mut world);
        world.guarded_sync(false).unwrap();
        let used = writes(&mut world) - before;
        assert!(used <= most_writes, "{refusals:?}: {used} writes");
        world.assert_as_fresh("after the burst");
        // Accepted Services keep their rules, and a new one does not wait for the search.
        put(&mut world, 500, 1);
        let before = writes(&mut world);
        world.guarded_sync(false).unwrap();
        let used = writes(&mut world) - before;
        assert!(used <= 10, "{refusals:?}: {used} writes");
        assert!(world.rules().to_string().contains(&shared_rule(500)));
        assert!(world.rules().to_string().contains(&shared_rule(99)));
        let syncs = settle(&mut world);
        assert!(syncs <= most_syncs, "{refusals:?}: {syncs} syncs");
        assert_eq!(world.held().len(), 200, "{refusals:?}");
        assert_eq!(world.desired.len(), 101, "{refusals:?}");
        world.assert_as_fresh("in the end");
    }
}

#[test]
fn a_first_sync_with_many_refused_services_writes_most_others_at_once_and_all_soon() {
    for refusals in MODES {
        let mut world = world_of(300, refusals);
        for number in 200..260 {
            poison(&mut world, endpoint_rule(number, 0));
        }
        world.guarded_sync(true).unwrap();
        world.assert_as_fresh("after the first sync");
        let written = world.desired.len();
        assert!(written >= 100, "{refusals:?}: {written}");
        settle(&mut world);
        assert_eq!(world.desired.len(), 240, "{refusals:?}");
        assert_eq!(world.held().len(), 60, "{refusals:?}");
        world.assert_as_fresh("in the end");
    }
}

#[test]
fn services_that_change_and_are_refused_all_the_time_delay_no_other_service() {
    for (refusals, most_writes) in [
        (Refusals::Lines, 200),
        (Refusals::Line, 700),
        (Refusals::Commit, 700),
        (Refusals::Silent, 700),
    ] {
        let mut world = world_of(20, refusals);
        world.guarded_sync(true).unwrap();
        for number in 200..400 {
            poison(&mut world, shared_rule(number));
        }
        let before = writes(&mut world);
        for round in 0..60 {
            let when = format!("{refusals:?}, round {round}");
            world.now += SECOND;
            for number in 200..400 {
                put(&mut world, number, 1 + round % 2);
            }
            // The first time all are alike; from then on it is known who was refused.
            if round > 0 {
                put(&mut world, 1000 + round, 1);
            }
            // A mistake in another namespace, corrected a round later.
            match round {
                30 => {
                    poison(&mut world, endpoint_rule(600, 1));
                    put_in(&mut world, "office", 600, 2);
                }
                31 => put_in(&mut world, "office", 600, 1),
                _ => {}
            }
            let at = writes(&mut world);
            world.guarded_sync(false).expect(&when);
            let used = writes(&mut world) - at;
            assert!(
                used <= if round == 0 { 65 } else { 20 },
                "{when}: {used} writes"
            );
            let text = world.rules().to_string();
            if round > 0 {
                assert!(text.contains(&shared_rule(1000 + round)), "{when}");
            }
            assert_eq!(text.contains(&shared_rule(600)), round >= 31, "{when}");
            if round % 10 == 1 {
                world.assert_as_fresh(&when);
            }
        }
        let used = writes(&mut world) - before;
        assert!(used <= most_writes, "{refusals:?}: {used} writes");
        // A Service that is no longer refused is served, at the latest after the longest wait.
        world.backend.kernel().poison.clear();
        world.now += RETRY_AFTER;
        settle(&mut world);
        world.now += RETRY_AFTER;
        world.guarded_sync(true).unwrap();
        settle(&mut world);
        assert!(world.held().is_empty(), "{refusals:?}: {:?}", world.held());
        world.assert_as_fresh("in the end");
    }
}

#[test]
fn a_service_that_is_refused_again_and_again_waits_twice_as_long_each_time() {
    let mut world = world_of(5, Refusals::Line);
    poison(&mut world, shared_rule(3));
    world.guarded_sync(true).unwrap();
    let start = world.now;
    let mut waits = Vec::new();
    for round in 0..15 {
        put(&mut world, 3, 2 + round % 2);
        world.guarded_sync(false).unwrap();
        let Some(next) = world.quarantine.next_trial() else {
            continue;
        };
        waits.push((next - world.now).as_secs());
        // A Service that goes and comes back waits as well.
        world
            .model
            .remove_service(&ObjectKey::namespaced("shop", "s3"));
        world.guarded_sync(false).unwrap();
        put(&mut world, 3, 2 + round % 2);
        world.guarded_sync(false).unwrap();
        assert_eq!(world.quarantine.next_trial(), Some(next));
        world.now = next;
        world.guarded_sync(false).unwrap();
    }
    let doubled = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1800, 1800];
    assert_eq!(waits[..doubled.len()], doubled, "{:?}", world.now - start);
}

#[test]
fn a_rule_refused_because_of_drift_is_written_by_a_full_sync() {
    for refusals in MODES {
        let mut world = world_of(20, refusals);
        world.guarded_sync(true).unwrap();
        // Another process flushes and makes the next rule fail until all is written again.
        let kernel = world.backend.kernel();
        kernel.disturb("*nat\n-F KUBE-SERVICES\n-F KUBE-NODEPORTS\nCOMMIT\n");
        kernel
            .poison
            .insert(format!("-I KUBE-SERVICES -d 10.96.{}", address(21)));
        put(&mut world, 21, 1);
        let report = world.guarded_sync(false).unwrap();
        assert!(
            report.full && report.partial_failure.is_some(),
            "{report:?}"
        );
        assert!(world.held().is_empty(), "{refusals:?}: {:?}", world.held());
        world.assert_as_fresh("after the drift");
    }
}

#[test]
fn random_refusals_leave_the_rest_as_it_should_be() {
    for refusals in MODES {
        for seed in 0..12 {
            let mut cluster = RandomCluster::new(seed);
            let mut world = World::new(IpFamily::V4, OPTIONS);
            let mut random = fastrand::Rng::with_seed(seed);
            world.backend.kernel().refusals = refusals;
            let mut full = true;
            for round in 0..40 {
                for edit in cluster.edit() {
                    world.edit(&edit);
                }
                let when = format!("{refusals:?}, seed {seed}, round {round}");
                let named = world.desired.keys().nth(random.usize(0..10)).cloned();
                match (random.u8(0..6), named) {
                    (0, Some(key)) => poison(&mut world, format!("\"{key}")),
                    (1, _) => world.backend.kernel().poison.clear(),
                    (2, _) => world.backend.kernel().failures = random.usize(0..3),
                    _ => {}
                }
                let result = world.guarded_sync(full);
                full = result.is_err();
                if result.is_err() {
                    continue;
                }
                world.assert_as_fresh(&when);
                let text = world.rules().to_string();
                for (key, _) in world.quarantine.held() {
                    assert!(!text.contains(&format!("\"{key}:")), "{when}: {key}");
                }
            }
            let kernel = world.backend.kernel();
            kernel.poison.clear();
            kernel.failures = 0;
            world.now += RETRY_AFTER;
            world.guarded_sync(true).unwrap();
            assert!(world.held().is_empty(), "{refusals:?}, seed {seed}");
            world.assert_as_fresh("in the end");
        }
    }
}

/// A value that no object becomes: iptables refuses `--seconds 0`.
fn without_affinity_time(service: &Service) -> Arc<Service> {
    let mut service = service.clone();
    for port in &mut service.ports {
        Arc::make_mut(&mut port.frontend).affinity = Some(0);
    }
    Arc::new(service)
}

#[test]
fn the_real_kernel_gets_everything_but_the_service_that_it_refuses() {
    lab::with_programs(&PROGRAMS, |_| {
        for (family, variant) in everywhere() {
            let when = format!("{family} {variant}");
            let mut world = real_world(family, variant, OPTIONS);
            let mut cluster = RandomCluster::new(40);
            while world.desired.len() < 5 {
                for edit in cluster.add_service() {
                    world.edit(&edit);
                }
                world.derive();
            }
            world.changed.clear();
            let served = |service: &&Arc<Service>| {
                let mut ports = service.ports.iter();
                ports.any(weft_proxy::ServicePort::has_internal_endpoints)
            };
            let good = world.desired.values().find(served).unwrap().clone();
            let key = good.key.clone();
            // At the start, before anything is written.
            let poisoned = without_affinity_time(&good);
            world.desired.insert(key.clone(), poisoned.clone());
            world
                .guarded_sync(true)
                .unwrap_or_else(|error| panic!("{when}: {error:?}"));
            assert_eq!(world.held(), [key.name.to_string()], "{when}");
            assert_kernel(&mut world, &when);
            // It is corrected, and broken again: by partial syncs both times.
            for (service, held) in [(good, false), (poisoned, true)] {
                world
                    .quarantine
                    .change(&mut world.desired, &key, Some(&service));
                world.changed = BTreeSet::from([key.clone()]);
                let report = world.guarded_sync(false);
                let report = report.unwrap_or_else(|error| panic!("{when}: {error:?}"));
                assert_eq!(world.held().len(), usize::from(held), "{when}");
                assert!(!report.full, "{when}: {:?}", report.refusals);
                assert_kernel(&mut world, &when);
            }
        }
    });
}

fn assert_kernel(world: &mut World<weft_iptables::HostKernel>, when: &str) {
    let (real, fresh) = (saved(world.backend.kernel()), world.fresh().to_string());
    assert_eq!(sorted_rules(&real), sorted_rules(&fresh), "{when}");
}
