//! Upstream's reconciler at a fixed interval, used with the feature gate off.

use std::time::Duration;

use weft_model::SharedStr;
use weft_routes::{
    Moment, Policy, ProviderError, Reason, Route, RouteCommand, RouteController, RouteReconciler,
    Ticker, Ticket,
};

use crate::world::{addresses, node, route};

fn reconciler() -> RouteReconciler<Ticker> {
    let policy = Policy::upstream(["10.120.0.0/16".parse().unwrap()]);
    RouteReconciler::new(policy, Ticker::new(Duration::from_secs(10)), 1)
}

fn poll(reconciler: &mut RouteReconciler<Ticker>, now: Moment) -> Vec<RouteCommand> {
    let mut commands = reconciler.poll(now);
    commands.retain(|command| !matches!(command, RouteCommand::Notify(_)));
    commands
}

fn tickets(commands: &[RouteCommand]) -> Vec<Ticket> {
    let tickets = commands.iter().filter_map(|command| match command {
        RouteCommand::Mutate(ticket, _) => Some(*ticket),
        _ => None,
    });
    tickets.collect()
}

fn reasons(commands: &[RouteCommand]) -> Vec<Reason> {
    let reasons = commands.iter().filter_map(|command| match command {
        RouteCommand::Write(change) => Some(change.reason),
        _ => None,
    });
    reasons.collect()
}

#[test]
fn nothing_begins_before_the_nodes_are_known() {
    let mut reconciler = reconciler();
    assert!(poll(&mut reconciler, Moment::START).is_empty());
    assert_eq!(reconciler.wake(Moment::START), None);
    reconciler.nodes_listed(vec![], Moment::seconds(3));
    assert_eq!(
        poll(&mut reconciler, Moment::seconds(3)),
        [RouteCommand::List]
    );
}

#[test]
fn passes_begin_a_period_apart_and_never_two_at_once() {
    let mut reconciler = reconciler();
    reconciler.nodes_listed(vec![], Moment::START);
    assert_eq!(poll(&mut reconciler, Moment::START), [RouteCommand::List]);
    reconciler.listed(Ok(vec![]), Moment::seconds(4));
    assert!(poll(&mut reconciler, Moment::seconds(4)).is_empty());
    assert_eq!(
        reconciler.wake(Moment::seconds(4)),
        Some(Moment::seconds(10))
    );
    assert_eq!(
        poll(&mut reconciler, Moment::seconds(10)),
        [RouteCommand::List]
    );
    assert!(poll(&mut reconciler, Moment::seconds(25)).is_empty());
    reconciler.listed(Ok(vec![]), Moment::seconds(25));
    assert_eq!(
        poll(&mut reconciler, Moment::seconds(25)),
        [RouteCommand::List]
    );
}

#[test]
fn a_failed_create_waits_for_the_next_pass_and_the_node_is_unavailable() {
    let mut reconciler = reconciler();
    let n1 = node("n1", &["10.120.0.0/24"], &["10.0.1.1"]);
    reconciler.nodes_listed(vec![n1], Moment::START);
    poll(&mut reconciler, Moment::START);
    reconciler.listed(Ok(vec![]), Moment::START);
    let ticket = tickets(&poll(&mut reconciler, Moment::START))[0];
    let error = ProviderError::Retry(SharedStr::new("502"));
    reconciler.mutated(ticket, Err(error), Moment::seconds(1));
    let after = poll(&mut reconciler, Moment::seconds(1));
    assert_eq!(reasons(&after), [Reason::NoRouteCreated]);
    assert_eq!(
        reconciler.wake(Moment::seconds(1)),
        Some(Moment::seconds(10))
    );
}

#[test]
fn conflicts_are_tried_five_times_within_a_second() {
    let mut reconciler = reconciler();
    let n1 = node("n1", &["10.120.0.0/24"], &["10.0.1.1"]);
    reconciler.nodes_listed(vec![n1], Moment::START);
    poll(&mut reconciler, Moment::START);
    reconciler.listed(Ok(vec![]), Moment::START);
    let mut now = Moment::START;
    let mut attempts = 0;
    loop {
        let commands = poll(&mut reconciler, now);
        for ticket in tickets(&commands) {
            attempts += 1;
            reconciler.mutated(ticket, Err(ProviderError::Conflict), now);
        }
        if reasons(&commands) == [Reason::NoRouteCreated] {
            break;
        }
        if tickets(&commands).is_empty() {
            now = reconciler.wake(now).unwrap();
        }
    }
    assert_eq!(attempts, 5);
    assert!(now < Moment::seconds(1));
}

#[test]
fn providers_that_record_addresses_see_all_deletes_before_the_first_create() {
    let mut reconciler = reconciler();
    let n1 = node("n1", &["10.120.0.0/24"], &["10.0.1.1"]);
    reconciler.nodes_listed(vec![n1], Moment::START);
    poll(&mut reconciler, Moment::START);
    let old = Route {
        target_addresses: Some(addresses(&["10.0.1.9"])),
        ..route("10.120.0.0/24", "n1")
    };
    reconciler.listed(Ok(vec![old]), Moment::START);
    let first = poll(&mut reconciler, Moment::START);
    assert_eq!(tickets(&first).len(), 1, "{first:?}");
    reconciler.mutated(tickets(&first)[0], Ok(()), Moment::seconds(1));
    let second = poll(&mut reconciler, Moment::seconds(1));
    assert_eq!(tickets(&second).len(), 1, "{second:?}");
}

#[test]
fn at_most_two_hundred_mutations_run_at_once() {
    let mut reconciler = reconciler();
    let nodes = (0..250)
        .map(|i| {
            node(
                &format!("n{i}"),
                &[&format!("10.120.{i}.0/24")],
                &["10.0.1.1"],
            )
        })
        .collect();
    reconciler.nodes_listed(nodes, Moment::START);
    poll(&mut reconciler, Moment::START);
    reconciler.listed(Ok(vec![]), Moment::START);
    assert_eq!(tickets(&poll(&mut reconciler, Moment::START)).len(), 200);
}
