//! Lower bounds for calls and waiting times, computed from the steps of a trace.

use std::time::Duration;

use weft_testkit::clouds::HcloudLatency;

use super::trace::{Event, Machine, Step};

/// Interval at which a client polls an action.
const POLL: Duration = Duration::from_millis(500);

/// A change of the route table that a trace requires.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Change {
    at: f64,
    /// The node that waits for it; None for a delete.
    waits: Option<Machine>,
    /// Two if a route has to be deleted before it is added, because the API cannot replace routes.
    actions: u32,
}

/// Calls that are necessary if each change is made once: the change, its polls, and one lookup of the
/// machine of every node that joins or changes its address.
pub(super) fn calls(events: &[Event], latency: &HcloudLatency) -> f64 {
    let actions: u32 = changes(events).iter().map(|change| change.actions).sum();
    let asked = changes(events)
        .iter()
        .filter(|one| one.waits.is_some())
        .count();
    let asked = u32::try_from(asked).expect("a trace has some hundred events");
    f64::from(actions) * (1.0 + polls(latency)) + f64::from(asked)
}

/// Number of polls until an action has ended.
fn polls(latency: &HcloudLatency) -> f64 {
    (latency.action.as_secs_f64() / POLL.as_secs_f64())
        .ceil()
        .max(1.0)
}

/// Waiting times of nodes, in seconds, if every change is made as soon as the client knows that the
/// provider, which makes one change at a time, is free. Deletes, for which no node waits, are made
/// when no other change is due.
pub(super) fn waits(events: &[Event], latency: &HcloudLatency) -> Vec<f64> {
    let read = latency.list.as_secs_f64();
    let happened = (latency.mutation + latency.action).as_secs_f64();
    let known = latency.mutation.as_secs_f64() + polls(latency) * (POLL.as_secs_f64() + read);
    let ready = |change: &Change| change.at + change.waits.map_or(0.0, |_| read);
    let (wanted, deletes): (Vec<Change>, Vec<Change>) = changes(events)
        .into_iter()
        .partition(|change| change.waits.is_some());
    let (mut wanted, mut deletes) = (wanted.iter().peekable(), deletes.iter().peekable());
    let mut free = 0.0;
    let mut waits = Vec::new();
    loop {
        let next = match (wanted.peek(), deletes.peek()) {
            (Some(one), Some(delete)) if f64::max(free, ready(delete)) < ready(one) => {
                deletes.next()
            }
            (Some(_), _) => wanted.next(),
            (None, _) => deletes.next(),
        };
        let Some(change) = next else {
            return waits;
        };
        let last = f64::max(free, ready(change)) + f64::from(change.actions - 1) * known;
        free = last + known;
        if change.waits.is_some() {
            waits.push(last + happened - change.at);
        }
    }
}

fn changes(events: &[Event]) -> Vec<Change> {
    let change = |at: Duration, waits, actions| Change {
        at: at.as_secs_f64(),
        waits,
        actions,
    };
    events
        .iter()
        .filter_map(|event| match event.step {
            Step::Identify(machine) => Some(change(event.at, Some(machine), 1)),
            Step::ReportAddress(machine) => Some(change(event.at, Some(machine), 2)),
            Step::Delete(_) => Some(change(event.at, None, 1)),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(steps: &[(u64, Step)]) -> Vec<Event> {
        let event = |(at, step): &(u64, Step)| Event {
            at: Duration::from_secs(*at),
            step: step.clone(),
        };
        steps.iter().map(event).collect()
    }

    #[test]
    fn a_lone_join_waits_for_its_own_calls_and_a_second_for_the_first() {
        let [one, other] = [1, 2].map(|number| Machine::new(number, 1));
        let real = HcloudLatency::REAL;
        let alone = events(&[(5, Step::Identify(one)), (9, Step::Heartbeat(one))]);
        let [wait] = waits(&alone, &real)[..] else {
            panic!("one node waits");
        };
        assert!((wait - 1.23).abs() < 1e-9, "{wait}");
        let both = events(&[(5, Step::Identify(one)), (5, Step::Identify(other))]);
        let [_, wait] = waits(&both, &real)[..] else {
            panic!("two nodes wait");
        };
        assert!((wait - 2.54).abs() < 1e-9, "{wait}");
    }

    #[test]
    fn a_delete_that_can_wait_delays_no_node() {
        let [old, older, new] = [1, 2, 3].map(|number| Machine::new(number, 1));
        let steps = [
            (5, Step::Delete(old)),
            (5, Step::Delete(older)),
            (6, Step::Identify(new)),
        ];
        let [wait] = waits(&events(&steps), &HcloudLatency::REAL)[..] else {
            panic!("one node waits");
        };
        // The first delete is under way until 6.31 s, the second one waits.
        assert!((wait - 1.46).abs() < 1e-9, "{wait}");
    }

    #[test]
    fn calls_are_changes_polls_and_a_lookup_for_each_node() {
        let machine = Machine::new(1, 1);
        let events = events(&[
            (1, Step::Identify(machine)),
            (2, Step::ReportAddress(machine)),
            (3, Step::Delete(machine)),
        ]);
        assert_eq!(calls(&events, &HcloudLatency::REAL).to_string(), "14");
        assert_eq!(calls(&events, &HcloudLatency::NONE).to_string(), "10");
    }
}
