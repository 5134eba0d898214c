//! Failures of netlink at any call, after which the kernel's state becomes right again.

use std::time::Duration;

use serde_json::{Value, json};
use weft_host::nftables::Reason;
use weft_model::{IpFamily, ObjectKey, error_text};
use weft_proxy::{AuditReport, Backend as _, ReadBudget, Scope};

use crate::{
    simulated::{Contents, Fault, SendLimit, Simulated},
    world::{World, written},
};

const FAMILY: IpFamily = IpFamily::V4;

/// Every kind of failure. Refusals name an element of a Service, if the commit has one there.
const FAULTS: [Fault; 9] = [
    Fault::NotDone,
    Fault::AnswerLost,
    Fault::Refused(Reason::Busy),
    Fault::Refused(Reason::Exists),
    Fault::Refused(Reason::Missing),
    Fault::Refused(Reason::Full),
    Fault::Refused(Reason::Resources),
    Fault::Refused(Reason::Owned),
    Fault::Refused(Reason::Invalid),
];

fn service(name: &str, number: u8, more: &Value) -> Value {
    let mut spec = json!({"clusterIP": format!("10.96.0.{number}"), "type": "NodePort",
        "ports": [{"name": "http", "port": 80, "nodePort": 30000 + u16::from(number)}]});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"kind": "Service", "metadata": {"namespace": "shop", "name": name}, "spec": spec})
}

fn slice(name: &str, endpoints: std::ops::Range<u8>) -> Value {
    let endpoints: Vec<Value> = endpoints
        .map(|number| json!({"addresses": [format!("10.244.0.{number}")]}))
        .collect();
    json!({"kind": "EndpointSlice",
           "metadata": {"namespace": "shop", "name": format!("{name}-x"),
                        "labels": {"kubernetes.io/service-name": name}},
           "addressType": "IPv4", "endpoints": endpoints,
           "ports": [{"name": "http", "protocol": "TCP", "port": 8080}]})
}

/// Changes of the cluster, step by step.
fn history() -> Vec<Vec<Value>> {
    let sticky = json!({"sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 30}}});
    vec![
        vec![
            service("web", 1, &json!({})),
            slice("web", 1..6),
            service("sticky", 2, &sticky),
            slice("sticky", 1..4),
            service("large", 3, &json!({})),
            slice("large", 10..60),
        ],
        vec![slice("web", 1..5)],
        vec![slice("large", 20..70), slice("web", 2..9)],
        vec![
            service("more", 4, &json!({})),
            slice("more", 1..3),
            slice("sticky", 3..5),
        ],
        vec![slice("large", 20..22), slice("more", 1..1)],
    ]
}

/// Runs the history with a failure at a commit, and tries again as the loop does. Returns what the
/// kernel holds after each step, and whether the failure happened.
fn run(fault: Option<(usize, Fault)>) -> (Vec<Contents>, bool) {
    let mut world = World::on(Simulated::default(), FAMILY);
    world.backend.kernel().fault = fault;
    let mut states = Vec::new();
    for objects in history() {
        for object in &objects {
            world.put(object);
        }
        let mut tries = 0;
        while let Err(error) = world.guarded_sync() {
            tries += 1;
            assert!(tries < 3, "{fault:?}: {error:?}");
        }
        // A Service that was refused by chance is tried again after a while.
        if !world.held().is_empty() {
            world.now += Duration::from_hours(2);
            let tried = world.quarantine.sync(
                &mut world.backend,
                &mut world.desired,
                &world.settings,
                Scope::Full,
                world.now,
            );
            tried.unwrap();
        }
        assert_eq!(world.held(), Vec::<String>::new(), "{fault:?}");
        states.push(world.backend.kernel().contents());
    }
    let happened = world.backend.kernel().fault.is_none();
    // What a new process finds is what it would write.
    let mut kernel = std::mem::take(world.backend.kernel());
    kernel.fault = None;
    let report = world.restart(kernel);
    assert_eq!(written(&report), 0, "{fault:?}");
    (states, happened)
}

/// The maps and sets whose content does not depend on the way there.
fn comparable(states: &[Contents]) -> Vec<String> {
    states.iter().map(Contents::fronts).collect()
}

#[test]
fn whatever_fails_at_whatever_commit_the_next_state_is_right() {
    let (right, _) = run(None);
    let right = comparable(&right);
    for fault in FAULTS {
        let mut commit = 0;
        loop {
            let (states, happened) = run(Some((commit, fault)));
            if !happened {
                break;
            }
            assert_eq!(comparable(&states), right, "{fault:?} at commit {commit}");
            commit += 1;
        }
        assert!(commit > 15, "{fault:?}: {commit} commits");
    }
}

#[test]
fn dumps_that_are_interrupted_again_and_again_are_read_later() {
    let mut world = World::on(Simulated::default(), FAMILY);
    for object in &history()[0] {
        world.put(object);
    }
    world.sync();
    let right = world.backend.kernel().contents();
    let commits = world.backend.kernel().commits;
    for failing in 1..25 {
        world.backend.kernel().failing_reads = failing;
        let mut failures = 0;
        // As the loop: after an audit that failed, full syncs until one works.
        let audited = world.backend.audit(ReadBudget::Available);
        assert!(audited.is_err(), "{audited:?}");
        let (desired, settings) = (world.desired.clone(), world.settings.clone());
        let sync = |world: &mut World<Simulated>| {
            let synced = world.backend.sync(&desired, &settings, Scope::Full);
            synced.is_err()
        };
        while sync(&mut world) {
            failures += 1;
        }
        assert_eq!(failures, failing - 1);
        let audited = world.backend.audit(ReadBudget::Available).unwrap();
        assert!(
            matches!(&audited, AuditReport::Read { repaired, .. } if repaired.is_empty()),
            "{audited:?}"
        );
    }
    assert_eq!(world.backend.kernel().contents(), right);
    assert_eq!(
        world.backend.kernel().commits,
        commits,
        "nothing was written"
    );
}

#[test]
fn chains_that_cannot_be_removed_fail_no_sync_and_are_removed_later() {
    let mut world = World::on(Simulated::default(), FAMILY);
    world.put(&service("web", 1, &json!({})));
    // Each number of endpoints has a chain, and many of them are unused in the end.
    for endpoints in 1..80 {
        world.put(&slice("web", 1..1 + endpoints));
        let report = world.sync();
        assert_eq!(report.cleanup_failure, None);
    }
    let picks = |world: &mut World<Simulated>| {
        let contents = world.backend.kernel().contents();
        contents
            .chain_names()
            .filter(|name| name.starts_with("pick-"))
            .count()
    };
    assert!(picks(&mut world) < 80, "unused ones go when they are many");
    let desired = world.desired.clone();
    let settings = world.settings.clone();
    world.put(&slice("web", 1..3));
    world.sync();
    // Nothing but the removal is left to do: the full sync commits once.
    world.backend.kernel().fault = Some((0, Fault::Refused(Reason::Busy)));
    let mut current = desired;
    current.extend(world.desired.clone());
    let report = world
        .backend
        .sync(&current, &settings, Scope::Full)
        .unwrap();
    let expected = "cannot commit a change: it is in use";
    assert_eq!(report.cleanup_failure.as_deref(), Some(expected));
    assert!(picks(&mut world) > 1);
    let report = world
        .backend
        .sync(&current, &settings, Scope::Full)
        .unwrap();
    assert_eq!(report.cleanup_failure, None);
    assert_eq!(picks(&mut world), 1);
}

#[test]
fn a_table_of_our_name_that_another_program_made_is_left_alone() {
    let mut world = World::on(Simulated::default(), FAMILY);
    world.put(&service("web", 1, &json!({})));
    world.put(&slice("web", 1..3));
    let theirs = Contents::default();
    world.backend.kernel().table = Some(theirs.clone());
    let error = world.try_sync().unwrap_err();
    assert_eq!(
        error_text(&error),
        "cannot read the kernel's rules: cannot use the nftables table weft of IPv4: another program created it"
    );
    assert_eq!(world.backend.kernel().table, Some(theirs));
    world.backend.kernel().table = None;
    world.try_sync().unwrap();
    let key = ObjectKey::namespaced("shop", "web");
    assert!(world.desired.contains_key(&key));
    assert!(world.backend.kernel().contents().chain_names().count() > 10);
}

#[test]
fn a_service_of_too_many_endpoints_is_left_out_and_named_and_the_others_are_written() {
    let sticky = json!({"sessionAffinity": "ClientIP"});
    let many = |last: u32| {
        let address = |n: u32| format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255);
        let endpoints: Vec<Value> = (0..last)
            .map(|number| json!({"addresses": [address(0x10000 + number)]}))
            .collect();
        let mut slice = slice("huge", 1..1);
        slice["endpoints"] = endpoints.into();
        slice
    };
    let mut world = World::on(Simulated::default(), FAMILY);
    world.put(&service("huge", 1, &sticky));
    world.put(&many(65_536));
    world.put(&service("web", 2, &json!({})));
    world.put(&slice("web", 1..3));
    let report = world.guarded_sync().unwrap();
    assert_eq!(world.held(), ["huge"]);
    let refusal = error_text(&report.refusals[0]);
    assert_eq!(
        refusal,
        "rules were refused: shop/huge:http has 65536 endpoints: expected at most 65535 with session affinity"
    );
    assert!(!world.backend.kernel().contents().fronts().contains("huge"));
    assert!(
        world
            .backend
            .kernel()
            .contents()
            .fronts()
            .contains("shop/web:http")
    );
    world.put(&slice("huge", 1..3));
    world.guarded_sync().unwrap();
    assert_eq!(world.held(), Vec::<String>::new());
    assert!(
        world
            .backend
            .kernel()
            .contents()
            .fronts()
            .contains("shop/huge:http")
    );
}

/// Another proxy's rules may still serve what is not written yet, and ours come before them.
#[test]
fn addresses_without_a_service_are_dropped_only_once_all_services_are_written() {
    let complete = {
        let mut world = first_sync(None);
        world.guarded_sync().unwrap();
        world.backend.kernel().contents()
    };
    assert_eq!(complete.count("service-networks"), 1);
    let mut interrupted = 0;
    for commit in 0.. {
        let mut world = first_sync(Some((commit, Fault::NotDone)));
        let is_complete = world.try_sync().is_ok();
        let found = world.backend.kernel().contents();
        let is_part = found.count("services") < complete.count("services");
        if is_part {
            assert_eq!(found.count("service-networks"), 0, "commit {commit}");
            interrupted += usize::from(found.count("services") > 0);
        }
        if is_complete {
            break;
        }
    }
    assert!(
        interrupted > 0,
        "no state with a part of the Services was seen"
    );
}

/// A proxy before its first sync: the `kubernetes` Service, which is written first, and others.
fn first_sync(fault: Option<(usize, Fault)>) -> World<Simulated> {
    let mut world = World::on(Simulated::default(), FAMILY);
    world.settings.service_networks = vec!["10.96.0.0/16".parse().unwrap()];
    world.backend.kernel().fault = fault;
    let mut kubernetes = service("kubernetes", 9, &json!({}));
    kubernetes["metadata"]["namespace"] = "default".into();
    world.put(&kubernetes);
    for object in &history()[0] {
        world.put(object);
    }
    world
}

/// Fronts with a name and flags are larger than what the average element takes.
fn load_by_bytes(limit: SendLimit) -> (World<Simulated>, Result<(), String>) {
    let mut world = World::on(Simulated::default(), FAMILY);
    let kernel = world.backend.kernel();
    kernel.element_limit = Some(usize::MAX);
    kernel.send_limit = Some(limit);
    for number in 1..=200 {
        let name = format!("{number}-{}", "n".repeat(55));
        world.put(&service(&name, number, &json!({})));
        world.put(&slice(&name, 1..number % 70));
    }
    let outcome = world
        .try_sync()
        .map(drop)
        .map_err(|error| error_text(&error));
    (world, outcome)
}

#[test]
fn commits_are_as_large_as_the_socket_sends_and_no_larger() {
    let limit = 100_000;
    let (mut world, outcome) = load_by_bytes(SendLimit {
        believed: limit,
        actual: limit,
        least: limit,
    });
    outcome.unwrap();
    let bytes = world.backend.kernel().bytes.clone();
    assert!(bytes.iter().all(|bytes| *bytes <= limit), "{bytes:?}");
    assert!(bytes.len() > 3, "{bytes:?}");
    // A table that is lost is written again, with the chains of all numbers of endpoints first.
    let kernel = world.backend.kernel();
    kernel.table = None;
    kernel.lose_elements();
    let right = world.backend.kernel().commits;
    world.backend.audit(ReadBudget::Available).unwrap();
    let kernel = world.backend.kernel();
    assert!(kernel.commits > right);
    assert!(kernel.bytes.iter().all(|bytes| *bytes <= limit));
    assert_eq!(kernel.contents().count("node-ports"), 200);
}

#[test]
fn a_socket_that_sends_less_than_it_said_gets_smaller_commits() {
    let (mut world, outcome) = load_by_bytes(SendLimit {
        believed: 8 << 20,
        actual: 70_000,
        least: 16_384,
    });
    outcome.unwrap();
    assert_eq!(world.backend.kernel().contents().count("services"), 200);
    let refused = |bytes: &&usize| **bytes > 70_000;
    let bytes = world.backend.kernel().bytes.clone();
    let refused = bytes.iter().filter(refused).count();
    assert!((1..8).contains(&refused), "{bytes:?}");
    // It is remembered: what follows is not too large.
    world.put(&slice("1-x", 1..3));
    world.sync();
    let bytes = &world.backend.kernel().bytes;
    assert!(*bytes.last().unwrap() <= 70_000);
}

#[test]
fn a_socket_that_sends_nothing_large_enough_fails_the_sync_and_ends() {
    let (mut world, outcome) = load_by_bytes(SendLimit {
        believed: 8 << 20,
        actual: 5_000,
        least: 16_384,
    });
    let error = outcome.unwrap_err();
    assert!(
        error.contains("more than the socket sends at once"),
        "{error}"
    );
    let attempts = world.backend.kernel().commits;
    assert!(attempts < 20, "{attempts}");
}
