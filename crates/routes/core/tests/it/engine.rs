//! The controller in watch mode, driven step by step: its commands and their times.

use std::time::Duration;

use weft_model::SharedStr;
use weft_routes::{
    ConditionChange, Engine, Mark, Moment, Node, Policy, ProviderError, RateLimit, Reason, Route,
    RouteCommand, RouteController, Step, Ticket, Timing,
};

use crate::world::{marked, node, policy, route, via};

struct Bench {
    engine: Engine,
    now: Moment,
}

fn numbered(i: u8) -> Node {
    node(
        &format!("n{i}"),
        &[&format!("10.120.{i}.0/24")],
        &[&format!("10.0.{i}.1")],
    )
}

fn there(i: u8) -> Route {
    let line = route(&format!("10.120.{i}.0/24"), &format!("n{i}"));
    marked(via(line, &format!("10.0.{i}.1")), Mark::Ours)
}

impl Bench {
    /// Past its first list and pass, with these nodes routed.
    fn steady(routed: impl IntoIterator<Item = u8> + Clone) -> Self {
        Self::with(routed, policy(), 10)
    }

    fn with(routed: impl IntoIterator<Item = u8> + Clone, policy: Policy, parallel: usize) -> Self {
        let engine = Engine::new(policy, Timing::default(), parallel, 1);
        let mut bench = Self {
            engine,
            now: Moment::START,
        };
        let nodes = routed.clone().into_iter().map(numbered).collect();
        bench.engine.nodes_listed(nodes, bench.now);
        assert_eq!(bench.poll(), [RouteCommand::List]);
        let routes = routed.into_iter().map(there).collect();
        bench.engine.listed(Ok(routes), bench.now);
        bench.go(Moment::seconds(10));
        bench
    }

    /// The commands of now, without notices.
    fn poll(&mut self) -> Vec<RouteCommand> {
        let mut commands = self.engine.poll(self.now);
        commands.retain(|command| !matches!(command, RouteCommand::Notify(_)));
        commands
    }

    /// Polls whenever it wants to be, up to a moment.
    fn go(&mut self, to: Moment) -> Vec<(Moment, RouteCommand)> {
        let mut all = Vec::new();
        loop {
            let now = self.now;
            all.extend(self.poll().into_iter().map(|command| (now, command)));
            match self.engine.wake(self.now) {
                Some(at) if at <= to => self.now = at.max(self.now),
                _ => break,
            }
        }
        self.now = to;
        all
    }

    fn wait(&mut self, millis: u64) -> Vec<(Moment, RouteCommand)> {
        let to = self.now + Duration::from_millis(millis);
        self.go(to)
    }

    fn apply(&mut self, node: Node) {
        self.engine.node_applied(node, self.now);
    }

    /// Lets one mutation after the other succeed, each with time for retries, until there are no
    /// more. The nodes of all of them, those that were begun before included.
    fn finish(&mut self, begun: Vec<(Moment, Ticket, Step)>) -> Vec<String> {
        let mut all = begun;
        while let Some((_, ticket, _)) = all.last() {
            self.end(*ticket, Ok(()));
            match mutations(self.wait(60_000)) {
                next if next.is_empty() => break,
                next => all.extend(next),
            }
        }
        let nodes = all.iter().filter_map(|(_, _, step)| step.node());
        nodes.map(ToString::to_string).collect()
    }

    fn end(&mut self, ticket: Ticket, result: Result<(), ProviderError>) {
        self.engine.mutated(ticket, result, self.now);
    }
}

fn mutations(commands: Vec<(Moment, RouteCommand)>) -> Vec<(Moment, Ticket, Step)> {
    let mutations = commands
        .into_iter()
        .filter_map(|(at, command)| match command {
            RouteCommand::Mutate(ticket, step) => Some((at, ticket, step)),
            _ => None,
        });
    mutations.collect()
}

fn lists(commands: &[(Moment, RouteCommand)]) -> Vec<Moment> {
    let lists = commands
        .iter()
        .filter(|(_, command)| *command == RouteCommand::List);
    lists.map(|(at, _)| *at).collect()
}

fn condition(node: &str, reason: Reason) -> RouteCommand {
    RouteCommand::Write(ConditionChange {
        node: SharedStr::new(node),
        reason,
    })
}

#[test]
fn a_node_on_an_idle_controller_is_routed_after_the_debounce_and_without_a_list() {
    let mut bench = Bench::steady(0..3);
    bench.apply(node("n9", &[], &[]));
    assert!(bench.wait(5_000).is_empty(), "not ready to route");
    bench.apply(numbered(9));
    let began = bench.now;
    let commands = bench.wait(5_000);
    assert_eq!(commands.len(), 1, "{commands:?}");
    let (at, ticket, step) = mutations(commands).remove(0);
    assert_eq!(at.since(began), Duration::from_millis(250));
    assert_eq!(step.destination().text(), "10.120.9.0/24");
    bench.end(ticket, Ok(()));
    assert_eq!(bench.poll(), [condition("n9", Reason::RouteCreated)]);
}

#[test]
fn passes_keep_their_distance_and_a_storm_starves_no_node() {
    let mut bench = Bench::steady([]);
    let began = bench.now;
    let mut starts = Vec::new();
    for i in 0..60 {
        bench.apply(numbered(i));
        starts.extend(
            mutations(bench.wait(100))
                .into_iter()
                .map(|(at, ticket, _)| {
                    bench.end(ticket, Ok(()));
                    at.since(began).as_millis()
                }),
        );
    }
    starts.dedup();
    assert_eq!(starts, [250, 1250, 2250, 3250, 4250, 5250]);
}

#[test]
fn what_waits_for_a_gateway_is_tried_at_once_when_the_table_changed() {
    for (error, waits) in [
        (ProviderError::NotReady(SharedStr::new("link down")), false),
        (ProviderError::Forbidden, true),
    ] {
        let mut bench = Bench::steady([]);
        bench.apply(numbered(1));
        let until = bench.now + Duration::from_secs(300);
        while bench.now < until {
            for (_, ticket, _) in mutations(bench.wait(100)) {
                bench.end(ticket, Err(error.clone()));
            }
        }
        bench.engine.table_changed(bench.now);
        let again = mutations(bench.wait(1_000));
        assert_eq!(again.is_empty(), waits, "{error}");
    }
}

#[test]
fn a_failed_create_is_tried_again_for_itself_and_says_so_on_the_node() {
    let mut bench = Bench::steady([]);
    bench.apply(numbered(1));
    bench.apply(numbered(2));
    let first = mutations(bench.wait(1_000));
    assert_eq!(first.len(), 2);
    let failed = bench.now;
    bench.end(first[0].1, Err(ProviderError::Retry(SharedStr::new("502"))));
    bench.end(first[1].1, Ok(()));
    assert_eq!(
        bench.poll(),
        [
            condition("n1", Reason::NoRouteCreated),
            condition("n2", Reason::RouteCreated)
        ]
    );
    let again = mutations(bench.wait(5_000));
    assert_eq!(again.len(), 1);
    assert!(again[0].0.since(failed) <= Duration::from_secs(1));
    bench.end(again[0].1, Ok(()));
    assert_eq!(bench.poll(), [condition("n1", Reason::RouteCreated)]);
    assert!(bench.wait(60_000).is_empty());
}

#[test]
fn a_route_that_keeps_failing_is_tried_less_and_less() {
    let mut bench = Bench::steady([]);
    bench.apply(numbered(1));
    let mut attempts = Vec::new();
    let until = bench.now + Duration::from_secs(600);
    while bench.now < until {
        for (at, ticket, _) in mutations(bench.wait(100)) {
            attempts.push(at);
            bench.end(
                ticket,
                Err(ProviderError::NotReady(SharedStr::new("detached"))),
            );
        }
    }
    assert!((10..=18).contains(&attempts.len()), "{}", attempts.len());
    let before = bench.now;
    let changed = Node {
        triggers: vec![SharedStr::new("attached")],
        ..numbered(1)
    };
    bench.apply(changed);
    let (at, ..) = mutations(bench.wait(2_000)).remove(0);
    assert!(
        at.since(before) <= Duration::from_secs(1),
        "a change counts at once"
    );
}

#[test]
fn a_route_that_the_provider_refuses_every_time_delays_no_other() {
    for refusal in [
        ProviderError::Invalid(SharedStr::new("422")),
        ProviderError::NotReady(SharedStr::new("409")),
        ProviderError::Retry(SharedStr::new("500")),
    ] {
        let mut bench = Bench::steady([]);
        bench.apply(numbered(1));
        let mut attempts = 0;
        for number in 2..60 {
            let joined = bench.now;
            bench.apply(numbered(number));
            let mut waits = true;
            while waits {
                for (at, ticket, step) in mutations(bench.wait(100)) {
                    let is_poison = step.node().unwrap().as_str() == "n1";
                    attempts += usize::from(is_poison);
                    waits &= is_poison;
                    let result = if is_poison {
                        Err(refusal.clone())
                    } else {
                        Ok(())
                    };
                    bench.end(ticket, result);
                    assert!(is_poison || at.since(joined) <= Duration::from_secs(2));
                }
                assert!(
                    bench.now.since(joined) < Duration::from_secs(10),
                    "{refusal}: n{number}"
                );
            }
            bench.wait(5_000).into_iter().for_each(drop);
        }
        assert!(
            (1..=20).contains(&attempts),
            "{refusal}: {attempts} attempts"
        );
    }
}

#[test]
fn a_conflict_is_answered_by_reading_the_table() {
    let mut bench = Bench::steady([]);
    bench.apply(numbered(1));
    let (_, ticket, _) = mutations(bench.wait(1_000)).remove(0);
    bench.end(ticket, Err(ProviderError::Conflict));
    let commands = bench.wait(5_000);
    assert_eq!(lists(&commands).len(), 1, "{commands:?}");
    assert!(mutations(commands).is_empty(), "nothing before the answer");
    bench.engine.listed(Ok(vec![there(1)]), bench.now);
    let after = bench.wait(5_000);
    assert_eq!(
        after
            .into_iter()
            .map(|(_, command)| command)
            .collect::<Vec<_>>(),
        [condition("n1", Reason::RouteCreated)]
    );
}

#[test]
fn a_steady_hour_costs_two_lists_and_nothing_else_whatever_the_watch_does() {
    let mut bench = Bench::steady(0..20);
    let end = bench.now + Duration::from_secs(3600);
    let mut listed = 0;
    while bench.now < end {
        bench
            .engine
            .nodes_listed((0..20).map(numbered).collect(), bench.now);
        let commands = bench.wait(60_000);
        for at in lists(&commands) {
            listed += 1;
            let routes = (0..20).map(there).collect();
            bench.engine.listed(Ok(routes), at);
        }
        assert!(mutations(commands).is_empty());
    }
    assert_eq!(listed, 2);
}

#[test]
fn drift_is_found_by_verification_and_repaired() {
    let mut bench = Bench::steady(0..3);
    let commands = bench.wait(1_800_000);
    assert_eq!(lists(&commands).len(), 1);
    bench.engine.listed(Ok(vec![there(0), there(1)]), bench.now);
    let repaired = mutations(bench.wait(1_000));
    assert_eq!(repaired.len(), 1);
    assert_eq!(repaired[0].2.destination().text(), "10.120.2.0/24");
}

#[test]
fn a_node_that_goes_while_its_route_is_being_made_leaves_nothing_behind() {
    let mut bench = Bench::steady([]);
    bench.apply(numbered(1));
    let (_, ticket, _) = mutations(bench.wait(1_000)).remove(0);
    bench.engine.node_deleted("n1", bench.now);
    assert!(bench.wait(5_000).is_empty());
    bench.end(ticket, Ok(()));
    let after = mutations(bench.wait(5_000));
    assert_eq!(after.len(), 1);
    assert!(after[0].2.wanted().is_none(), "{}", after[0].2);
}

#[test]
fn what_a_plan_wanted_without_knowing_the_end_of_a_mutation_is_dropped() {
    let mut bench = Bench::with([], policy(), 1);
    bench.apply(numbered(1));
    let (_, ticket, _) = mutations(bench.wait(900)).remove(0);
    // A pass while the create is under way plans it once more, and the next pass, which knows
    // better, has to keep its distance.
    bench.apply(numbered(2));
    assert!(mutations(bench.wait(400)).is_empty());
    bench.end(ticket, Ok(()));
    let next = mutations(bench.wait(10));
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].2.destination().text(), "10.120.2.0/24");
}

#[test]
fn mutations_of_one_destination_never_overlap_in_time() {
    let mut bench = Bench::steady([]);
    bench.apply(numbered(1));
    let (_, ticket, _) = mutations(bench.wait(1_000)).remove(0);
    bench.engine.node_deleted("n1", bench.now);
    let heir = Node {
        name: SharedStr::new("heir"),
        ..node("heir", &["10.120.1.0/24"], &["10.0.77.1"])
    };
    bench.apply(heir);
    assert!(mutations(bench.wait(5_000)).is_empty());
    bench.end(ticket, Ok(()));
    let next = mutations(bench.wait(5_000));
    assert_eq!(next.len(), 1);
    assert!(
        next[0]
            .2
            .to_string()
            .starts_with("~ 10.120.1.0/24 via 10.0.77.1")
    );
}

#[test]
fn no_more_mutations_run_at_once_than_the_provider_takes() {
    let mut bench = Bench::with([], policy(), 3);
    for i in 0..10 {
        bench.apply(numbered(i));
    }
    let running = mutations(bench.wait(1_000));
    assert_eq!(running.len(), 3);
    bench.end(running[0].1, Ok(()));
    assert_eq!(mutations(bench.wait(1_000)).len(), 1);
}

#[test]
fn a_spent_budget_lets_creates_through_before_deletes() {
    let mut bench = Bench::steady(0..4);
    let rate = RateLimit {
        limit: 3600,
        remaining: 100,
        reset_after: Duration::from_secs(3500),
    };
    bench.engine.rate_observed(rate, bench.now);
    bench.engine.node_deleted("n0", bench.now);
    bench.apply(numbered(9));
    let soon = mutations(bench.wait(5_000));
    assert_eq!(soon.len(), 1);
    assert!(soon[0].2.wanted().is_some());
    bench.end(soon[0].1, Ok(()));
    let later = mutations(bench.wait(300_000));
    assert_eq!(later.len(), 1);
    assert!(later[0].2.wanted().is_none());
}

#[test]
fn a_rate_limit_holds_everything_back_and_blames_no_route() {
    let mut bench = Bench::steady([]);
    bench.apply(numbered(1));
    bench.apply(numbered(2));
    let first = mutations(bench.wait(1_000));
    let after = Some(Duration::from_secs(30));
    for (_, ticket, _) in &first {
        bench.end(*ticket, Err(ProviderError::RateLimited { after }));
    }
    assert!(bench.wait(29_000).is_empty());
    assert_eq!(mutations(bench.wait(2_000)).len(), 2);
}

#[test]
fn a_dead_provider_is_asked_with_growing_pauses_and_events_go_on_without_it() {
    let mut bench = Bench::steady(0..2);
    bench.go(Moment::seconds(1810));
    let dead = || Err(ProviderError::Retry(SharedStr::new("down")));
    bench.engine.listed(dead(), bench.now);
    let mut asked = Vec::new();
    let until = bench.now + Duration::from_secs(300);
    while bench.now < until {
        for at in lists(&bench.wait(100)) {
            asked.push(at);
            bench.engine.listed(dead(), at);
        }
    }
    assert!((5..=12).contains(&asked.len()), "{}", asked.len());
    bench.apply(numbered(9));
    assert_eq!(mutations(bench.wait(1_000)).len(), 1);
}

#[test]
fn nothing_is_written_when_only_observing() {
    let policy = Policy {
        observe_only: true,
        ..policy()
    };
    let mut bench = Bench::with([], policy, 10);
    bench.apply(numbered(1));
    assert!(bench.wait(60_000).is_empty());
}

#[test]
fn a_delete_of_what_is_gone_already_is_done() {
    let mut bench = Bench::steady(0..2);
    bench.engine.node_deleted("n1", bench.now);
    let (_, ticket, _) = mutations(bench.wait(1_000)).remove(0);
    bench.end(ticket, Err(ProviderError::Gone));
    assert!(bench.wait(60_000).is_empty());
    assert_eq!(bench.engine.cache().routes().len(), 1);
}

#[test]
fn room_that_a_delete_makes_is_used_at_once() {
    let mut bench = Bench::steady(0..2);
    bench.apply(numbered(9));
    let (_, ticket, _) = mutations(bench.wait(1_000)).remove(0);
    bench.end(ticket, Err(ProviderError::Quota));
    assert!(mutations(bench.wait(30_000)).is_empty());
    bench.engine.node_deleted("n1", bench.now);
    let (_, ticket, step) = mutations(bench.wait(1_000)).remove(0);
    assert!(step.wanted().is_none());
    bench.end(ticket, Ok(()));
    assert_eq!(mutations(bench.wait(100)).len(), 1);
}

#[test]
fn a_waiting_route_goes_before_later_ones_with_lower_ranges() {
    let mut bench = Bench::with(0..1, policy(), 1);
    let mut served = Vec::new();
    for i in [50, 40, 30, 20] {
        bench.apply(numbered(i));
        // Each is planned before the next one joins, and none is finished.
        served.extend(mutations(bench.wait(2_000)));
    }
    assert_eq!(bench.finish(served), ["n50", "n40", "n30", "n20"]);
}

#[test]
fn a_delete_that_makes_room_still_goes_before_a_waiting_route() {
    let mut bench = Bench::with(0..2, policy(), 1);
    bench.apply(numbered(50));
    let [(_, first, _)] = &mutations(bench.wait(2_000))[..] else {
        panic!("one at a time");
    };
    let first = *first;
    bench.apply(node("wide", &["10.120.64.0/18"], &["10.0.9.1"]));
    bench.wait(2_000);
    // Something of ours turns up inside of the range that waits.
    let stale = via(route("10.120.70.0/24", "gone"), "10.0.8.1");
    let mut routes: Vec<Route> = (0..2).map(there).collect();
    routes.push(marked(stale, Mark::Ours));
    bench.engine.table_changed(bench.now);
    assert_eq!(lists(&bench.wait(1_000)).len(), 1);
    bench.engine.listed(Ok(routes), bench.now);
    bench.end(first, Ok(()));
    let next = mutations(bench.wait(2_000));
    assert!(
        next[0].2.node().is_none(),
        "the delete comes first: {next:?}"
    );
}

#[test]
fn a_failed_route_keeps_its_place_while_other_nodes_join() {
    let mut bench = Bench::with(0..1, policy(), 1);
    bench.apply(numbered(50));
    let [(_, first, _)] = &mutations(bench.wait(2_000))[..] else {
        panic!("one at a time");
    };
    let first = *first;
    for i in [40, 30] {
        bench.apply(numbered(i));
        bench.wait(2_000);
    }
    bench.end(first, Err(ProviderError::Retry("busy".into())));
    let served = mutations(bench.wait(60_000));
    // Another goes on while it waits for its retry, and then it is first again.
    assert_eq!(bench.finish(served), ["n40", "n50", "n30"]);
}
