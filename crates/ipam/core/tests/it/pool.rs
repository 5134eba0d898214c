//! Replies of a pool to events.

use std::{collections::BTreeSet, time::Duration};

use weft_ipam::{
    ConfigFlaw, NodeConfig, PodSummary,
    pool::{
        AddRequest, CheckError, Event, Journal, Notice, Pool, Refusal, Reply, RequestId, Settings,
        State, Step,
    },
};
use weft_model::{IpFamily, Moment};

use crate::fixtures::{
    add, addresses, at, config, container, delete, identity, instant, key, listed, names, observe,
    pod, pool, pool_with, request, settings,
};

const FOUR: [(&str, &str); 4] = [
    ("a", "10.1.0.4"),
    ("b", "10.1.0.5"),
    ("c", "10.1.0.6"),
    ("d", "10.1.0.7"),
];

fn ready(mut pool: Pool, entries: &[(&str, &str)]) -> Pool {
    observe(&mut pool, &config(1, entries), at(0));
    assert!(pool.is_ready());
    pool
}

#[track_caller]
fn refusal(step: &Step) -> Refusal {
    match step.replies.as_slice() {
        [(_, Reply::Refused(refusal))] => refusal.clone(),
        other => panic!("not one refusal: {other:?}"),
    }
}

fn desired(name: &str, addresses: &[&str], now: Moment) -> Event {
    Event::Add(AddRequest {
        desired: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        ..request(1, name, now)
    })
}

#[test]
fn an_answer_carries_address_prefix_and_gateway() {
    let mut pool = ready(pool(), &FOUR);
    let step = add(&mut pool, "p0", at(1));
    let [(RequestId(1), Reply::Assigned(leases))] = step.replies.as_slice() else {
        panic!("{step:?}");
    };
    assert_eq!(leases[0].address.to_string(), "10.1.0.4");
    assert_eq!(leases[0].prefix, 16);
    assert_eq!(leases[0].gateway.unwrap().to_string(), "10.1.0.1");
    assert_eq!(step.records.len(), 1, "{:?}", step.records);
}

#[test]
fn the_same_attachment_gets_the_same_address_without_a_record() {
    let mut pool = ready(pool(), &FOUR);
    let first = addresses(&add(&mut pool, "p0", at(1)));
    let again = add(&mut pool, "p0", at(2));
    assert_eq!(addresses(&again), first);
    assert!(again.records.is_empty());
    let other = pool.handle(desired("p0", &["10.1.0.7"], at(3)), at(3));
    assert_eq!(addresses(&other), first);
}

#[test]
fn a_released_address_is_not_reused_before_its_cooldown_ends() {
    let mut pool = ready(pool(), &FOUR[..1]);
    assert_eq!(addresses(&add(&mut pool, "p0", at(1))), ["10.1.0.4"]);
    delete(&mut pool, "p0", at(2));
    let parked = add(&mut pool, "p1", at(8));
    assert!(parked.replies.is_empty(), "{parked:?}");
    assert!(pool.handle(Event::Tick, at(31)).replies.is_empty());
    assert_eq!(pool.wake(), Some(at(32)));
    let served = pool.handle(Event::Tick, at(32));
    assert_eq!(addresses(&served), ["10.1.0.4"]);
}

#[test]
fn the_address_that_was_used_the_longest_ago_goes_next() {
    let mut pool = ready(instant(), &FOUR);
    for name in ["p0", "p1", "p2", "p3"] {
        add(&mut pool, name, at(1));
    }
    for (name, second) in [("p2", 10), ("p0", 11), ("p3", 12), ("p1", 13)] {
        delete(&mut pool, name, at(second));
    }
    let order: Vec<String> = ["q0", "q1", "q2", "q3"]
        .iter()
        .flat_map(|name| addresses(&add(&mut pool, name, at(20))))
        .collect();
    assert_eq!(order, ["10.1.0.6", "10.1.0.4", "10.1.0.7", "10.1.0.5"]);
}

#[test]
fn blocks_are_filled_one_after_the_other_so_that_others_can_be_given_back() {
    let blocks = [("x", "10.1.0.0/30"), ("y", "10.1.0.16/30")];
    let mut pool = ready(instant(), &blocks);
    let taken: Vec<String> = (0..4)
        .flat_map(|index| addresses(&add(&mut pool, &format!("p{index}"), at(1))))
        .collect();
    assert_eq!(taken, ["10.1.0.0", "10.1.0.1", "10.1.0.2", "10.1.0.3"]);
    assert_eq!(pool.surplus(4), [names(&["y"]).into_iter().next().unwrap()]);
    assert!(pool.surplus(5).is_empty());
}

#[test]
fn an_empty_pool_lets_an_add_wait_and_counts_it() {
    let mut pool = ready(pool(), &[]);
    assert!(add(&mut pool, "p0", at(1)).replies.is_empty());
    assert!(add(&mut pool, "p0", at(1)).replies.is_empty());
    assert_eq!(pool.waiting(), 1);
    let step = observe(&mut pool, &config(2, &FOUR), at(2));
    assert_eq!(step.replies.len(), 2);
    assert_eq!(step.replies[0].1, step.replies[1].1);
    assert_eq!((pool.waiting(), pool.attached()), (0, 1));
}

#[test]
fn an_add_that_times_out_names_the_exhausted_family_and_holds_nothing() {
    let mut pool = ready(pool(), &[]);
    add(&mut pool, "p0", at(1));
    assert_eq!(pool.wake(), Some(at(26)));
    let step = pool.handle(Event::Tick, at(26));
    assert_eq!(refusal(&step), Refusal::Exhausted(IpFamily::V4));
    observe(&mut pool, &config(2, &FOUR), at(27));
    assert_eq!(pool.attached(), 0);
}

#[test]
fn an_add_whose_client_left_gets_nothing() {
    let mut pool = ready(pool(), &[]);
    add(&mut pool, "p0", at(1));
    pool.handle(Event::Cancel(RequestId(1)), at(2));
    let step = observe(&mut pool, &config(2, &FOUR), at(3));
    assert!(step.replies.is_empty() && step.records.is_empty());
    assert_eq!(pool.attached(), 0);
}

#[test]
fn a_delete_ends_a_waiting_add_and_refuses_a_late_one() {
    let mut pool = ready(pool(), &[]);
    add(&mut pool, "p0", at(1));
    let step = delete(&mut pool, "p0", at(2));
    assert_eq!(
        step.replies,
        [
            (RequestId(1), Reply::Refused(Refusal::DeletedWhileWaiting)),
            (RequestId(2), Reply::Released),
        ]
    );
    observe(&mut pool, &config(2, &FOUR), at(3));
    let late = add(&mut pool, "p0", at(4));
    assert_eq!(refusal(&late), Refusal::Deleted);
    assert_eq!(late.notices, [Notice::LateAdd(key("p0"))]);
    // The tombstone expires after ten minutes.
    assert_eq!(addresses(&add(&mut pool, "p0", at(602))).len(), 1);
}

#[test]
fn a_repeated_delete_succeeds_and_keeps_the_first_tombstone() {
    let mut pool = ready(pool(), &FOUR);
    add(&mut pool, "p0", at(1));
    assert_eq!(delete(&mut pool, "p0", at(2)).records.len(), 3);
    let again = delete(&mut pool, "p0", at(60));
    assert_eq!(again.replies, [(RequestId(2), Reply::Released)]);
    assert_eq!(pool.tombstones()[&key("p0")], at(602));
}

#[test]
fn a_delete_of_an_old_sandbox_leaves_the_new_one_alone() {
    let mut pool = ready(pool(), &FOUR);
    add(&mut pool, "old", at(1));
    let new = AddRequest {
        pod: pod("old"),
        ..request(3, "new", at(2))
    };
    let held = addresses(&pool.handle(Event::Add(new), at(2)));
    delete(&mut pool, "old", at(3));
    assert_eq!(pool.check(&key("new"), &[held[0].parse().unwrap()]), Ok(()));
    assert_eq!(
        pool.check(&key("old"), &[]),
        Err(CheckError::Unknown(key("old")))
    );
}

#[test]
fn desired_addresses_are_given_or_refused_as_a_whole() {
    let mut pool = ready(pool(), &FOUR);
    let step = pool.handle(desired("p0", &["10.1.0.6"], at(1)), at(1));
    assert_eq!(addresses(&step), ["10.1.0.6"]);
    for wanted in ["10.1.0.6", "10.9.9.9"] {
        let step = pool.handle(desired("p1", &["10.1.0.7", wanted], at(2)), at(2));
        assert_eq!(refusal(&step), Refusal::Desired(wanted.parse().unwrap()));
    }
    assert_eq!(pool.attached(), 1);
    assert_eq!(pool.address_counts(IpFamily::V4).available, 3);
}

#[test]
fn both_families_are_given_or_none() {
    let mut pool = pool();
    let mut dual = config(1, &FOUR[..2]);
    let v6 = container("nc6", "fd00::/64", &[("v6a", "fd00::4")]);
    dual.status.containers.push(v6);
    observe(&mut pool, &dual, at(0));
    assert_eq!(
        addresses(&add(&mut pool, "p0", at(1))),
        ["10.1.0.4", "fd00::4"]
    );
    assert!(add(&mut pool, "p1", at(2)).replies.is_empty());
    assert_eq!(pool.address_counts(IpFamily::V4).available, 1);
    let step = pool.handle(Event::Tick, at(60));
    assert_eq!(refusal(&step), Refusal::Exhausted(IpFamily::V6));
}

#[test]
fn a_subnet_of_the_other_family_without_addresses_makes_pods_wait_for_it() {
    let mut pool = pool();
    let mut dual = config(1, &FOUR);
    dual.status.containers[0]
        .subnets
        .push("fd00::/64".parse().unwrap());
    observe(&mut pool, &dual, at(0));
    assert!(add(&mut pool, "p0", at(1)).replies.is_empty());
}

#[test]
fn nothing_is_assigned_before_the_config_was_observed() {
    let mut pool = pool();
    assert!(add(&mut pool, "p0", at(1)).replies.is_empty());
    assert_eq!(
        refusal(&pool.handle(Event::Tick, at(26))),
        Refusal::NotReady
    );
    assert_eq!(
        delete(&mut pool, "p0", at(27)).replies,
        [(RequestId(2), Reply::Released)]
    );
}

#[test]
fn addresses_that_the_host_is_not_ready_for_wait_for_it() {
    let mut pool = pool_with(Settings {
        programmed_by_host: true,
        ..settings()
    });
    observe(&mut pool, &config(1, &FOUR[..2]), at(0));
    assert!(add(&mut pool, "p0", at(1)).replies.is_empty());
    let step = pool.handle(Event::Programmed("nc".into(), 0), at(2));
    assert!(step.replies.is_empty());
    let step = pool.handle(Event::Programmed("nc".into(), 1), at(3));
    assert_eq!(addresses(&step).len(), 1);
    // Addresses that are not usable yet are released first.
    let mut more = config(2, &FOUR[..3]);
    more.status.containers[0].version = 2;
    observe(&mut pool, &more, at(4));
    assert_eq!(pool.address_counts(IpFamily::V4).programming, 1);
    assert_eq!(pool.surplus(2), Vec::from_iter(names(&["c"])));
}

#[test]
fn a_vanished_address_stays_with_its_pod_and_goes_with_it() {
    let mut pool = ready(instant(), &FOUR[..2]);
    add(&mut pool, "p0", at(1));
    let step = observe(&mut pool, &config(2, &FOUR[1..2]), at(2));
    let address = "10.1.0.4".parse().unwrap();
    assert_eq!(step.notices, [Notice::Quarantined(address, key("p0"))]);
    assert!(
        observe(&mut pool, &config(3, &FOUR[1..2]), at(3))
            .notices
            .is_empty()
    );
    assert_eq!(addresses(&add(&mut pool, "p0", at(4))), ["10.1.0.4"]);
    delete(&mut pool, "p0", at(5));
    assert!(pool.states().all(|(held, _)| held != address));
}

#[test]
fn an_address_that_comes_back_under_another_name_is_still_its_pods() {
    let mut pool = ready(instant(), &FOUR[..1]);
    add(&mut pool, "p0", at(1));
    observe(&mut pool, &config(2, &[]), at(2));
    assert_eq!(pool.address_counts(IpFamily::V4).quarantined, 1);
    observe(&mut pool, &config(3, &[("z", "10.1.0.4")]), at(3));
    assert_eq!(pool.address_counts(IpFamily::V4).assigned, 1);
    assert!(add(&mut pool, "p1", at(4)).replies.is_empty());
    delete(&mut pool, "p0", at(5));
    assert_eq!(
        pool.address_counts(IpFamily::V4).assigned,
        1,
        "the waiting one has it"
    );
}

#[test]
fn invalid_entries_are_reported_and_everything_else_is_used() {
    let mut pool = pool();
    let step = observe(
        &mut pool,
        &config(1, &[("a", "10.1.0.4"), ("bad", "10.1.0.4.5")]),
        at(0),
    );
    let [Notice::Config(flaw @ ConfigFlaw::Entry { .. })] = step.notices.as_slice() else {
        panic!("{step:?}");
    };
    assert_eq!(
        flaw.to_string(),
        "nodenetworkconfig n1: ipAssignment bad skipped: \"10.1.0.4.5\" is neither an address nor a CIDR"
    );
    assert_eq!(pool.address_counts(IpFamily::V4).available, 1);
    for text in ["10.1.0.5/30", "", "::/0", "10.0.0.0/8", "x/8"] {
        let step = observe(
            &mut pool,
            &config(1, &[("a", "10.1.0.4"), ("bad", text)]),
            at(0),
        );
        assert!(
            matches!(
                step.notices.as_slice(),
                [Notice::Config(ConfigFlaw::Entry { .. })]
            ),
            "{text}: {step:?}"
        );
    }
}

#[test]
fn a_container_that_contradicts_itself_keeps_what_it_had() {
    let mut pool = ready(pool(), &FOUR[..1]);
    add(&mut pool, "p0", at(1));
    let twice = [("b", "10.1.0.5"), ("b", "10.1.0.6")];
    let overlapping = [("b", "10.1.0.8/29"), ("c", "10.1.0.12")];
    let inside = [("c", "10.1.0.12"), ("b", "10.1.0.8/29")];
    for (version, entries) in (2..).zip([twice, overlapping, inside]) {
        let mut flawed = config(version, &entries);
        flawed
            .status
            .containers
            .push(container("nc2", "10.2.0.0/16", &[("z", "10.2.0.9")]));
        let step = observe(&mut pool, &flawed, at(2));
        assert_eq!(step.notices.len(), 1, "{entries:?}: {step:?}");
        assert_eq!(pool.address_counts(IpFamily::V4).assigned, 1);
        assert_eq!(
            pool.address_counts(IpFamily::V4).available,
            1,
            "the other container"
        );
    }
}

#[test]
fn two_containers_cannot_bring_the_same_address() {
    let mut pool = pool();
    let mut twice = config(1, &FOUR[..1]);
    twice
        .status
        .containers
        .push(container("nc2", "10.1.0.0/16", &[("z", "10.1.0.4")]));
    let step = observe(&mut pool, &twice, at(0));
    assert!(
        matches!(
            step.notices.as_slice(),
            [Notice::Config(ConfigFlaw::Overlap { .. })]
        ),
        "{step:?}"
    );
    assert_eq!(pool.address_counts(IpFamily::V4).held(), 1);
}

#[test]
fn a_config_of_another_node_or_an_older_one_is_ignored() {
    let mut pool = ready(pool(), &FOUR);
    let mut foreign = config(5, &[]);
    foreign.owner = Some("former-node".into());
    let step = observe(&mut pool, &foreign, at(1));
    assert!(matches!(
        step.notices.as_slice(),
        [Notice::Config(ConfigFlaw::Foreign { .. })]
    ));
    let mut deleting = config(6, &[]);
    deleting.deleting = true;
    observe(&mut pool, &deleting, at(1));
    observe(&mut pool, &config(0, &[]), at(1));
    assert_eq!(pool.address_counts(IpFamily::V4).available, 4);
}

/// The config of an earlier Node, recreated for the next.
fn made_again() -> NodeConfig {
    NodeConfig {
        uid: "config-uid-2".into(),
        owner: Some("node-uid-2".into()),
        ..config(9, &[("n", "10.1.0.9")])
    }
}

#[test]
fn a_recreated_node_assigns_nothing_of_its_predecessor() {
    let mut pool = ready(instant(), &FOUR);
    let kept = addresses(&add(&mut pool, "p0", at(1)));
    pool.set_node("node-uid-2".into());
    assert!(!pool.is_ready());
    assert!(add(&mut pool, "p1", at(2)).replies.is_empty());
    // The watch may show the old one for minutes.
    let step = observe(&mut pool, &config(2, &FOUR), at(3));
    assert!(step.replies.is_empty() && !pool.is_ready());
    assert_eq!(addresses(&add(&mut pool, "p0", at(4))), kept);
    let step = observe(&mut pool, &made_again(), at(5));
    assert_eq!(addresses(&step), ["10.1.0.9"]);
    // A late observation of the old one ends nothing.
    observe(&mut pool, &config(3, &FOUR), at(6));
    assert!(pool.is_ready());
}

#[test]
fn a_config_that_goes_or_is_not_ours_any_more_closes_for_new_pods_only() {
    let deleting = NodeConfig {
        deleting: true,
        ..config(5, &FOUR)
    };
    let ownerless = NodeConfig {
        owner: None,
        ..config(5, &FOUR)
    };
    for spoilt in [&deleting, &ownerless] {
        let mut pool = ready(instant(), &FOUR);
        let kept = addresses(&add(&mut pool, "p0", at(1)));
        observe(&mut pool, spoilt, at(2));
        assert!(add(&mut pool, "p1", at(3)).replies.is_empty());
        assert_eq!(addresses(&add(&mut pool, "p0", at(4))), kept);
        let older = pool.handle(Event::Accepted(Box::new(config(4, &FOUR))), at(5));
        assert!(older.replies.is_empty(), "{older:?}");
        let step = observe(&mut pool, &config(6, &FOUR), at(6));
        // An owner may be set again; a deleted object never returns.
        assert_eq!(step.replies.is_empty(), spoilt.deleting);
        assert_eq!(pool.is_ready(), !spoilt.deleting);
    }
}

#[test]
fn an_attachment_from_before_the_config_was_made_again_is_not_honoured() {
    let mut pool = ready(pool(), &FOUR[..1]);
    add(&mut pool, "p0", at(1));
    let mut again = config(1, &[("n", "10.1.0.9")]);
    again.uid = "config-uid-2".into();
    observe(&mut pool, &again, at(2));
    assert_eq!(refusal(&add(&mut pool, "p0", at(3))), Refusal::FormerNode);
    assert_eq!(addresses(&add(&mut pool, "p1", at(3))), ["10.1.0.9"]);
}

#[test]
fn what_is_offered_is_not_assigned_until_it_is_taken_back() {
    let mut pool = ready(instant(), &FOUR[..2]);
    let step = pool.handle(Event::Offer(Vec::from_iter(names(&["a", "b"]))), at(1));
    assert_eq!(step.records.len(), 2);
    assert_eq!(pool.offered(), names(&["a", "b"]));
    add(&mut pool, "p0", at(2));
    // The watch not showing it yet proves nothing: the write may be in flight.
    assert!(
        observe(&mut pool, &config(2, &FOUR[..2]), at(3))
            .replies
            .is_empty()
    );
    let accepted = listed(config(3, &FOUR[..2]), &["b"]);
    let step = pool.handle(Event::Accepted(Box::new(accepted)), at(4));
    assert_eq!(addresses(&step), ["10.1.0.4"]);
    assert_eq!(pool.offered(), names(&["b"]));
}

#[test]
fn an_answer_that_comes_late_takes_nothing_back_that_was_listed_since() {
    let mut pool = ready(instant(), &FOUR[..2]);
    pool.handle(Event::Offer(Vec::from_iter(names(&["a", "b"]))), at(1));
    // Another writer wrote after us, and the watch was faster than our response.
    observe(&mut pool, &listed(config(5, &FOUR[..2]), &["a"]), at(2));
    pool.handle(Event::Accepted(Box::new(config(4, &FOUR[..2]))), at(3));
    assert_eq!(pool.offered(), names(&["a"]));
    assert_eq!(addresses(&add(&mut pool, "p0", at(4))), ["10.1.0.5"]);
    assert!(add(&mut pool, "p1", at(4)).replies.is_empty());
    pool.handle(Event::Accepted(Box::new(config(6, &FOUR[..2]))), at(5));
    assert_eq!(pool.offered(), names(&[]));
}

#[test]
fn an_offer_that_was_accepted_meanwhile_cannot_be_taken_back() {
    let mut pool = ready(instant(), &FOUR[..2]);
    pool.handle(Event::Offer(Vec::from_iter(names(&["a"]))), at(1));
    pool.handle(Event::Accepted(Box::new(config(3, &FOUR[1..2]))), at(2));
    assert_eq!(pool.address_counts(IpFamily::V4).held(), 1);
    assert!(pool.offered().is_empty());
}

#[test]
fn an_address_in_use_is_never_offered() {
    let mut pool = ready(instant(), &[("x", "10.1.0.0/30"), ("y", "10.1.0.4")]);
    add(&mut pool, "p0", at(1));
    add(&mut pool, "p1", at(1));
    pool.handle(Event::Offer(Vec::from_iter(names(&["x"]))), at(2));
    assert!(pool.offered().is_empty());
    let step = observe(
        &mut pool,
        &listed(
            config(2, &[("x", "10.1.0.0/30"), ("y", "10.1.0.4")]),
            &["x", "y"],
        ),
        at(3),
    );
    assert_eq!(step.notices, [Notice::OfferedInUse("x".into())]);
    assert_eq!(pool.offered(), names(&["y"]), "by any writer");
}

fn summary(name: &str) -> PodSummary {
    PodSummary {
        identity: pod(name),
        ..PodSummary::default()
    }
}

#[test]
fn an_attachment_whose_pod_is_gone_is_swept_after_three_looks_and_five_minutes() {
    let mut pool = ready(instant(), &FOUR);
    add(&mut pool, "gone", at(0));
    add(&mut pool, "there", at(0));
    let pods = vec![summary("there")];
    for second in [10, 20, 30] {
        pool.handle(Event::Sweep(pods.clone()), at(second));
    }
    assert_eq!(pool.attached(), 2, "not long enough");
    let step = pool.handle(Event::Sweep(pods), at(310));
    assert_eq!(step.notices, [Notice::Swept(key("gone"), pod("gone"))]);
    assert_eq!(pool.attached(), 1);
}

#[test]
fn a_pod_made_again_under_its_name_does_not_keep_the_old_addresses() {
    let mut pool = ready(instant(), &FOUR);
    add(&mut pool, "p0", at(0));
    let mut again = summary("p0");
    again.identity.uid = Some("another".into());
    for second in [0, 200, 400] {
        pool.handle(Event::Sweep(vec![again.clone()]), at(second));
    }
    assert_eq!(pool.attached(), 0);
}

#[test]
fn a_static_pod_is_known_by_the_uid_that_kubelet_gave_it() {
    let mut pool = ready(instant(), &FOUR);
    add(&mut pool, "etcd", at(0));
    let mirror = PodSummary {
        static_uid: pod("etcd").uid,
        ..summary("mirror")
    };
    for second in [0, 200, 400, 600] {
        pool.handle(Event::Sweep(vec![mirror.clone()]), at(second));
    }
    assert_eq!(pool.attached(), 1);
}

#[test]
fn lost_deletes_of_earlier_sandboxes_do_not_cost_the_node_its_addresses() {
    let mut pool = ready(instant(), &FOUR);
    for (index, second) in [(0, 0), (1, 10), (2, 20), (3, 30)] {
        let request = AddRequest {
            pod: pod("crashing"),
            ..request(index, &format!("sandbox-{index}"), at(second))
        };
        pool.handle(Event::Add(request), at(second));
    }
    for second in [60, 120, 180, 400] {
        pool.handle(Event::Sweep(vec![summary("crashing")]), at(second));
    }
    assert_eq!(
        pool.attachments().keys().cloned().collect::<Vec<_>>(),
        [key("sandbox-3")]
    );
}

#[test]
fn gc_releases_unlisted_attachments_except_young_ones() {
    let mut pool = ready(instant(), &FOUR);
    for (name, second) in [("old", 0), ("valid", 0), ("young", 200)] {
        add(&mut pool, name, at(second));
    }
    let collect = |network: &str| Event::Collect {
        network: network.into(),
        valid: [("valid".into(), "eth0".into())].into(),
    };
    pool.handle(collect("other"), at(300));
    assert_eq!(pool.attached(), 3);
    pool.handle(collect("podnet"), at(300));
    assert_eq!(
        pool.attachments().keys().cloned().collect::<Vec<_>>(),
        [key("valid"), key("young")]
    );
}

#[test]
fn gc_keeps_adopted_addresses() {
    let lost = Pool::restore(settings(), identity("boot"), Journal::Lost, at(0));
    let mut pool = lost.pool;
    observe(&mut pool, &config(1, &FOUR), at(0));
    let running = PodSummary {
        addresses: vec!["10.1.0.4".parse().unwrap()],
        ..summary("running")
    };
    pool.handle(Event::Sweep(vec![running]), at(1));
    for network in ["", "podnet"] {
        let collect = Event::Collect {
            network: network.into(),
            valid: BTreeSet::new(),
        };
        pool.handle(collect, at(1000));
        assert_eq!(pool.attached(), 1, "network {network:?}");
    }
}

#[test]
fn a_store_that_fails_closes_for_add_and_stays_open_for_delete() {
    let mut pool = ready(instant(), &FOUR);
    add(&mut pool, "kept", at(0));
    add(&mut pool, "lost", at(1));
    pool.handle(Event::StoreFailed(vec![key("lost")]), at(2));
    assert_eq!(pool.attached(), 1);
    assert_eq!(refusal(&add(&mut pool, "p2", at(3))), Refusal::Closed);
    assert_eq!(
        delete(&mut pool, "kept", at(4)).replies,
        [(RequestId(2), Reply::Released)]
    );
    pool.handle(Event::StoreRecovered, at(5));
    assert_eq!(addresses(&add(&mut pool, "p2", at(6))).len(), 1);
}

#[test]
fn every_state_has_exactly_its_transitions() {
    let owner = key("p");
    let until = at(9);
    let states = [
        State::Programming,
        State::Available { since: at(1) },
        State::Assigned {
            owner: owner.clone(),
        },
        State::Cooldown { until },
        State::Releasing { until: None },
        State::Quarantined {
            owner: owner.clone(),
        },
    ];
    let allowed = |state: &State| {
        (
            state.clone().assign(owner.clone()).is_ok(),
            state.clone().release(until).is_ok(),
            state.clone().offer().is_ok(),
            state.clone().reclaim(at(1)).is_ok(),
            state.clone().vanish().is_some(),
        )
    };
    assert_eq!(
        states.map(|state| allowed(&state)),
        [
            (true, false, true, false, false),
            (true, false, true, false, false),
            (false, true, false, false, true),
            (false, false, true, false, false),
            (false, false, true, true, false),
            (false, true, false, false, true),
        ]
    );
    let cooling = State::Cooldown { until }.offer().unwrap();
    assert_eq!(
        cooling.clone().reclaim(at(1)),
        Ok(State::Cooldown { until })
    );
    assert_eq!(
        cooling.reclaim(at(10)),
        Ok(State::Available { since: until })
    );
}

#[test]
fn waiting_is_bounded_by_the_clients_own_deadline() {
    let mut pool = ready(pool(), &[]);
    let hasty = AddRequest {
        deadline: at(0) + Duration::from_secs(3),
        ..request(7, "hasty", at(0))
    };
    pool.handle(Event::Add(hasty), at(0));
    assert_eq!(pool.wake(), Some(at(3)));
}
