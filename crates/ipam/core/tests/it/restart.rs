//! Pool contents after a crash, a reboot, a move to another machine, and a lost store.

use weft_ipam::{
    NodeConfig, PodSummary, needed,
    pool::{
        AddRequest, Event, Identity, Journal, Notice, Pool, Record, Refusal, Reply, Settings,
        State, Step,
    },
};
use weft_model::IpFamily;

use crate::fixtures::{
    add, addresses, at, config, delete, identity, key, names, observe, pod, pool, request,
    restarted, settings,
};

const TWO: [(&str, &str); 2] = [("a", "10.1.0.4"), ("b", "10.1.0.5")];

fn kept(steps: &[Step]) -> Vec<Record> {
    let mut records = vec![Record::Identity(identity("boot"))];
    records.extend(steps.iter().flat_map(|step| step.records.clone()));
    records
}

/// A pool with one attachment, one cooling address, one tombstone; and what it recorded.
fn used() -> (Pool, Vec<Record>) {
    let mut pool = pool();
    let steps = [
        observe(&mut pool, &config(1, &TWO), at(0)),
        add(&mut pool, "p0", at(1)),
        add(&mut pool, "p1", at(1)),
        delete(&mut pool, "p1", at(2)),
    ];
    let records = kept(&steps);
    (pool, records)
}

#[test]
fn a_restart_brings_back_attachments_cooldowns_and_tombstones() {
    let (before, records) = used();
    let mut after = restarted(settings(), &records, "boot", at(3));
    assert_eq!(
        addresses(&add(&mut after, "p0", at(3))),
        ["10.1.0.4"],
        "before the config"
    );
    observe(&mut after, &config(1, &TWO), at(4));
    assert_eq!(
        after.address_counts(IpFamily::V4),
        before.address_counts(IpFamily::V4)
    );
    assert_eq!(after.attachments(), before.attachments());
    let late = add(&mut after, "p1", at(5));
    assert!(matches!(
        late.replies[0].1,
        Reply::Refused(Refusal::Deleted)
    ));
    assert!(
        add(&mut after, "p2", at(31)).replies.is_empty(),
        "still cooling"
    );
    assert_eq!(addresses(&after.handle(Event::Tick, at(32))), ["10.1.0.5"]);
}

#[test]
fn a_snapshot_says_the_same_as_the_records() {
    let (before, records) = used();
    let one = restarted(settings(), &records, "boot", at(3));
    let other = restarted(settings(), &before.snapshot(), "boot", at(3));
    assert_eq!(one, other);
}

#[test]
fn records_survive_their_way_through_text() {
    let (_, records) = used();
    for record in records {
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(
            serde_json::from_str::<Record>(&text).unwrap(),
            record,
            "{text}"
        );
    }
}

#[test]
fn a_reboot_ends_every_attachment_and_keeps_addresses_cool_from_its_beginning() {
    let (_, records) = used();
    let mut after = restarted(settings(), &records, "next", at(10));
    assert_eq!((after.attached(), after.tombstones().len()), (0, 0));
    observe(&mut after, &config(1, &TWO), at(10));
    assert_eq!(after.address_counts(IpFamily::V4).cooling, 2);
    after.handle(Event::Tick, at(30));
    assert_eq!(after.address_counts(IpFamily::V4).available, 2);
    let slow = restarted(settings(), &records, "next", at(100));
    let states: Vec<&State> = slow.states().map(|(_, state)| state).collect();
    assert!(
        states
            .iter()
            .all(|state| **state == State::Cooldown { until: at(30) })
    );
}

#[test]
fn another_machine_forgets_everything() {
    let (_, records) = used();
    let other = Identity {
        machine: "other".into(),
        ..identity("boot")
    };
    let restored = Pool::restore(settings(), other, Journal::Kept(records), at(3));
    assert!(restored.rewrite);
    assert_eq!(restored.pool.attached(), 0);
    assert_eq!(restored.pool.states().count(), 0);
}

#[test]
fn a_clock_that_was_set_back_keeps_nothing_cooling_for_longer_than_a_cooldown() {
    let mut pool = pool();
    let steps = [
        observe(&mut pool, &config(1, &TWO), at(0)),
        add(&mut pool, "p0", at(5000)),
        delete(&mut pool, "p0", at(5001)),
    ];
    let mut after = restarted(settings(), &kept(&steps), "boot", at(7));
    observe(&mut after, &config(1, &TWO), at(7));
    assert_eq!(after.address_counts(IpFamily::V4).cooling, 1);
    // The hold-back after a lost store takes the longest.
    after.handle(Event::Tick, at(247));
    assert_eq!(after.address_counts(IpFamily::V4).cooling, 0);
    after.handle(Event::Tick, at(607));
    assert!(after.tombstones().is_empty());
}

#[test]
fn what_was_offered_before_a_crash_is_not_assigned_after_it() {
    let mut pool = pool();
    let steps = [
        observe(&mut pool, &config(1, &TWO), at(0)),
        pool.handle(Event::Offer(Vec::from_iter(names(&["a"]))), at(1)),
    ];
    let mut after = restarted(settings(), &kept(&steps), "boot", at(2));
    observe(&mut after, &config(1, &TWO), at(2));
    assert_eq!(addresses(&add(&mut after, "p0", at(3))), ["10.1.0.5"]);
    assert!(add(&mut after, "p1", at(3)).replies.is_empty());
    assert_eq!(after.offered(), names(&["a"]));
}

#[test]
fn an_attachment_whose_address_is_not_ours_any_more_is_quarantined_at_the_start() {
    let (_, records) = used();
    let mut after = restarted(settings(), &records, "boot", at(3));
    let step = observe(&mut after, &config(1, &TWO[1..]), at(3));
    assert_eq!(
        step.notices,
        [Notice::Quarantined("10.1.0.4".parse().unwrap(), key("p0"))]
    );
}

#[test]
fn a_lost_store_waits_for_the_pods_and_adopts_their_addresses() {
    let restored = Pool::restore(settings(), identity("boot"), Journal::Lost, at(0));
    assert!(restored.rewrite);
    let mut pool = restored.pool;
    observe(&mut pool, &config(1, &TWO), at(0));
    assert!(add(&mut pool, "new", at(1)).replies.is_empty());
    assert!(pool.awaits_pods());
    let running = PodSummary {
        identity: pod("running"),
        addresses: vec!["10.1.0.4".parse().unwrap()],
        ..PodSummary::default()
    };
    let step = pool.handle(Event::Sweep(vec![running]), at(2));
    let adopted = Notice::Adopted("10.1.0.4".parse().unwrap(), pod("running"));
    assert_eq!(step.notices, [adopted]);
    // The other may belong to a sandbox that kubelet has not reported yet.
    assert!(step.replies.is_empty(), "{step:?}");
    assert_eq!(pool.address_counts(IpFamily::V4).cooling, 1);
    assert_eq!(
        pool.handle(Event::Tick, at(26)).replies.len(),
        1,
        "too long"
    );
    assert!(add(&mut pool, "new", at(241)).replies.is_empty());
    let step = pool.handle(Event::Tick, at(242));
    assert_eq!(addresses(&step), ["10.1.0.5"]);
    // It is released when the pod is gone.
    for second in [310, 500, 700] {
        let there = PodSummary {
            identity: pod("new"),
            ..PodSummary::default()
        };
        pool.handle(Event::Sweep(vec![there]), at(second));
    }
    assert_eq!(pool.attached(), 1);
}

#[test]
fn after_a_lost_store_a_pod_that_kubelet_reports_late_keeps_its_address() {
    let mut pool = Pool::restore(settings(), identity("boot"), Journal::Lost, at(0)).pool;
    observe(&mut pool, &config(1, &TWO), at(0));
    let silent = PodSummary {
        identity: pod("running"),
        ..PodSummary::default()
    };
    pool.handle(Event::Sweep(vec![silent.clone()]), at(1));
    // The daemon restarts before kubelet reports.
    let mut pool = restarted(settings(), &pool.snapshot(), "boot", at(2));
    observe(&mut pool, &config(1, &TWO), at(2));
    let reported = PodSummary {
        addresses: vec!["10.1.0.4".parse().unwrap()],
        ..silent
    };
    let looks = [60, 120, 180, 241, 302].map(|second| {
        let step = pool.handle(Event::Sweep(vec![reported.clone()]), at(second));
        step.notices.len()
    });
    assert_eq!(looks, [1, 0, 0, 0, 0], "adopted once");
    assert_eq!(addresses(&add(&mut pool, "new", at(303))), ["10.1.0.5"]);
    assert!(add(&mut pool, "newer", at(303)).replies.is_empty());
    // The hold-back is over: from here on a stale status brings nothing back.
    delete(&mut pool, "new", at(304));
    let behind = PodSummary {
        identity: pod("behind"),
        addresses: vec!["10.1.0.5".parse().unwrap()],
        ..PodSummary::default()
    };
    let step = pool.handle(Event::Sweep(vec![reported, behind]), at(305));
    assert_eq!(step.notices, []);
    assert!(!pool.snapshot().contains(&Record::Lost(true)));
}

/// A block that is observed after the first sweep may have been this node's all along: the API
/// server's cache may be stale, and a block that returns under another name has the same addresses.
#[test]
fn after_a_lost_store_blocks_that_are_seen_later_rest_as_well() {
    let mut pool = Pool::restore(settings(), identity("boot"), Journal::Lost, at(0)).pool;
    observe(&mut pool, &config(1, &TWO[..1]), at(0));
    pool.handle(Event::Sweep(Vec::new()), at(1));
    let three = [("a", "10.1.0.4"), ("b", "10.1.0.5"), ("c", "10.1.0.192/28")];
    let step = pool.handle(Event::Add(request(1, "early", at(2))), at(2));
    assert!(step.replies.is_empty());
    let step = observe(&mut pool, &config(2, &three), at(3));
    assert!(step.replies.is_empty(), "{step:?}");
    let desired = AddRequest {
        desired: vec!["10.1.0.192".parse().unwrap()],
        ..request(2, "desired", at(4))
    };
    let step = pool.handle(Event::Add(desired), at(4));
    assert!(matches!(
        step.replies[0].1,
        Reply::Refused(Refusal::Desired(_))
    ));
    // Under new names, after the object was recreated.
    let again = [("x", "10.1.0.4"), ("y", "10.1.0.5"), ("z", "10.1.0.192/28")];
    let renamed = NodeConfig {
        uid: "config-uid-2".into(),
        ..config(3, &again)
    };
    let step = observe(&mut pool, &renamed, at(5));
    assert!(step.replies.is_empty(), "{step:?}");
    assert_eq!(pool.address_counts(IpFamily::V4).available, 0);
    // A restart in between does not end it, whatever was recorded of the new blocks.
    let mut pool = restarted(settings(), &pool.snapshot(), "boot", at(6));
    observe(&mut pool, &config(3, &again[1..]), at(6));
    observe(&mut pool, &renamed, at(7));
    assert_eq!(pool.address_counts(IpFamily::V4).available, 0);
    for second in [61, 121, 181] {
        pool.handle(Event::Sweep(Vec::new()), at(second));
        assert_eq!(
            pool.address_counts(IpFamily::V4).available,
            0,
            "at {second} s"
        );
    }
    for second in [247, 307] {
        pool.handle(Event::Sweep(Vec::new()), at(second));
    }
    assert_eq!(pool.address_counts(IpFamily::V4).available, 18);
    // From then on a new block is usable at once.
    let four = [again[0], again[1], again[2], ("w", "10.1.1.0/28")];
    let grown = NodeConfig {
        uid: "config-uid-2".into(),
        ..config(4, &four)
    };
    observe(&mut pool, &grown, at(308));
    assert_eq!(pool.address_counts(IpFamily::V4).available, 34);
}

#[test]
fn after_a_lost_store_an_address_rests_that_the_host_gets_ready_for_late() {
    let settings = Settings {
        programmed_by_host: true,
        ..settings()
    };
    let mut pool = Pool::restore(settings, identity("boot"), Journal::Lost, at(0)).pool;
    observe(&mut pool, &config(1, &TWO), at(0));
    pool.handle(Event::Sweep(Vec::new()), at(1));
    pool.handle(Event::Programmed("nc".into(), 1), at(2));
    assert_eq!(pool.address_counts(IpFamily::V4).available, 0);
    pool.handle(Event::Tick, at(241));
    assert_eq!(pool.address_counts(IpFamily::V4).available, 2);
}

/// More addresses are useless while all of them are held back, so none are requested because of it.
#[test]
fn addresses_held_back_after_a_loss_are_not_demand() {
    let mut pool = Pool::restore(settings(), identity("boot"), Journal::Lost, at(0)).pool;
    observe(&mut pool, &config(1, &[("a", "10.1.0.0/28")]), at(0));
    pool.handle(Event::Sweep(Vec::new()), at(1));
    assert_eq!(pool.address_counts(IpFamily::V4).cooling, 16);
    assert_eq!(needed(&pool, 3), 3);
    let two = [("a", "10.1.0.0/28"), ("b", "10.1.0.16/28")];
    observe(&mut pool, &config(2, &two), at(2));
    assert_eq!(needed(&pool, 3), 3, "and so on, without end");
    pool.handle(Event::Sweep(Vec::new()), at(241));
    add(&mut pool, "p", at(242));
    delete(&mut pool, "p", at(243));
    assert_eq!(needed(&pool, 3), 4, "as ever afterwards");
}

#[test]
fn two_owners_of_an_address_in_a_tampered_store_are_both_served_until_both_are_gone() {
    let (_, mut records) = used();
    let held = records.iter().find_map(|record| match record {
        Record::Attachment(_, Some(held)) => Some(held.clone()),
        _ => None,
    });
    records.push(Record::Attachment(key("twin"), held));
    let mut after = restarted(settings(), &records, "boot", at(3));
    observe(&mut after, &config(1, &TWO), at(3));
    delete(&mut after, "p0", at(4));
    assert_eq!(after.address_counts(IpFamily::V4).assigned, 1);
    delete(&mut after, "twin", at(5));
    assert_eq!(after.address_counts(IpFamily::V4).assigned, 0);
}

#[test]
fn a_crash_between_a_lost_store_and_the_first_sweep_loses_nothing() {
    let mut first = Pool::restore(settings(), identity("boot"), Journal::Lost, at(0)).pool;
    let written = first.snapshot();
    observe(&mut first, &config(1, &TWO), at(1));
    assert!(first.awaits_pods());
    let mut second = restarted(settings(), &written, "boot", at(2));
    observe(&mut second, &config(1, &TWO), at(3));
    assert!(second.awaits_pods(), "the pods were not listed yet");
    let looked = second.handle(Event::Sweep(Vec::new()), at(4));
    let mut written = written;
    written.extend(looked.records);
    let mut third = restarted(settings(), &written, "boot", at(5));
    observe(&mut third, &config(1, &TWO), at(6));
    assert!(third.is_ready(), "the pods were listed");
    assert_eq!(
        third.address_counts(IpFamily::V4).cooling,
        2,
        "for all that is left"
    );
    third.handle(Event::Tick, at(243));
    assert_eq!(third.address_counts(IpFamily::V4).cooling, 2);
    third.handle(Event::Tick, at(244));
    assert_eq!(third.address_counts(IpFamily::V4).available, 2);
}

#[test]
fn a_first_start_uses_its_addresses_at_once() {
    let mut pool = restarted(settings(), &[], "boot", at(0));
    observe(&mut pool, &config(1, &TWO), at(0));
    pool.handle(Event::Sweep(Vec::new()), at(1));
    assert_eq!(pool.address_counts(IpFamily::V4).available, 2);
}

#[test]
fn an_abandoned_attachment_can_be_requested_again() {
    let mut pool = pool();
    observe(&mut pool, &config(1, &TWO), at(0));
    add(&mut pool, "p0", at(1));
    let step = pool.handle(Event::Abandon(key("p0")), at(2));
    assert_eq!(step.records[0], Record::Attachment(key("p0"), None));
    assert_eq!(addresses(&add(&mut pool, "p0", at(3))), ["10.1.0.5"]);
}
