//! The cached table, and its correction by lists.

use std::time::Duration;

use weft_routes::{Mark, Moment, Route, TableCache};

use crate::world::{node, plan, policy, route, via};

fn there(i: u8) -> Route {
    via(
        route(&format!("10.120.{i}.0/24"), &format!("n{i}")),
        &format!("10.0.{i}.1"),
    )
}

fn at(seconds: u64) -> Moment {
    Moment::seconds(seconds)
}

fn listed(routes: Vec<Route>) -> TableCache {
    let mut cache = TableCache::new(Duration::from_secs(5));
    assert!(cache.listed(routes, at(0), []).is_empty());
    cache
}

#[test]
fn our_own_mutations_are_not_drift() {
    let mut cache = listed(vec![there(1), there(2)]);
    let fresh = node("n3", &["10.120.3.0/24"], &["10.0.3.1"]);
    let stays = node("n1", &["10.120.1.0/24"], &["10.0.1.1"]);
    let mut routes = cache.routes().to_vec();
    routes[1].mark = Mark::Ours;
    let plan = plan([fresh, stays], &routes, &policy());
    assert_eq!(plan.counts(), (1, 0, 1), "{plan}");
    for step in &plan.steps {
        cache.applied(step, at(10));
    }
    let drift = cache.listed(vec![there(1), there(3)], at(100), []);
    assert!(drift.is_empty(), "{drift:?}");
}

#[test]
fn a_list_says_what_appeared_vanished_and_changed() {
    let mut cache = listed(vec![there(1), there(2), there(3)]);
    let moved = via(route("10.120.2.0/24", "n2"), "10.0.2.99");
    let drift = cache.listed(vec![there(1), moved.clone(), there(4)], at(100), []);
    assert_eq!(drift.appeared, [there(4)]);
    assert_eq!(drift.vanished, [there(3)]);
    assert_eq!(drift.changed, [(there(2), moved)]);
    assert_eq!(cache.routes().len(), 3);
}

#[test]
fn a_list_that_lags_behind_a_fresh_mutation_does_not_undo_it() {
    let fresh = node("n3", &["10.120.3.0/24"], &["10.0.3.1"]);
    let step = plan([fresh], &[], &policy()).steps.remove(0);
    let mut cache = listed(vec![]);
    cache.applied(&step, at(10));
    assert!(cache.listed(vec![], at(12), []).is_empty());
    assert_eq!(cache.routes().len(), 1);
    let late = cache.listed(vec![], at(60), []);
    assert_eq!(late.vanished.len(), 1);
}

#[test]
fn a_destination_with_a_mutation_under_way_stays_as_cached() {
    let mut cache = listed(vec![there(1)]);
    let busy = there(1).destination;
    assert!(cache.listed(vec![], at(100), [&busy]).is_empty());
    assert_eq!(cache.routes(), [there(1)]);
}

#[test]
fn a_route_is_ours_once_it_led_to_a_live_node_and_stays_so_for_the_next_process() {
    let mut cache = listed(vec![there(1), there(2)]);
    cache.adopt(&[there(1)]);
    assert_eq!(marks(&cache), [Mark::Ours, Mark::None]);
    let record: Vec<_> = cache.record().cloned().collect();
    let mut next = TableCache::new(Duration::ZERO).with_record(record);
    next.listed(vec![there(1), there(2)], at(0), []);
    assert_eq!(marks(&next), [Mark::Ours, Mark::None]);
    next.listed(vec![there(2)], at(100), []);
    assert_eq!(next.record().count(), 0, "what is gone is forgotten");
}

#[test]
fn a_list_settles_what_was_doubtful() {
    let mut cache = listed(vec![]);
    let destination = there(1).destination;
    let step = step(1);
    cache.doubt(&step, at(8));
    assert!(cache.is_doubtful(&destination));
    cache.listed(vec![], at(7), []);
    assert!(cache.has_doubts(), "the list was asked for before");
    cache.listed(vec![], at(10), []);
    assert!(!cache.has_doubts());
}

#[test]
fn a_route_that_may_have_been_made_is_ours_if_it_was() {
    let mut cache = listed(vec![]);
    cache.doubt(&step(1), at(8));
    cache.listed(vec![there(1)], at(10), []);
    assert_eq!(marks(&cache), [Mark::Ours]);
}

#[test]
fn a_route_that_lost_its_target_is_recognised_by_its_destination() {
    let record: Vec<_> = there(1)
        .next_hop
        .map(|hop| (net(1), hop))
        .into_iter()
        .collect();
    let mut cache = TableCache::new(Duration::ZERO).with_record(record);
    let nowhere = |number| Route {
        blackhole: true,
        next_hop: None,
        target: weft_routes::RouteTarget::Unknown,
        ..there(number)
    };
    cache.listed(vec![nowhere(1), nowhere(2)], at(0), []);
    assert_eq!(marks(&cache), [Mark::Ours, Mark::None]);
    cache.listed(vec![nowhere(1)], at(9), []);
    assert_eq!(marks(&cache), [Mark::Ours], "and not forgotten by a list");
}

fn marks(cache: &TableCache) -> Vec<Mark> {
    cache.routes().iter().map(|route| route.mark).collect()
}

fn net(number: u8) -> ipnet::IpNet {
    there(number).destination.net().unwrap()
}

fn step(number: u8) -> weft_routes::Step {
    let fresh = node(
        &format!("n{number}"),
        &[&format!("10.120.{number}.0/24")],
        &[&format!("10.0.{number}.1")],
    );
    plan([fresh], &[], &policy()).steps.remove(0)
}
