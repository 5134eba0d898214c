//! Machines: state machines that a driver feeds with changes and time.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::{sync::watch, time::Instant};
use weft_model::Moment;
use weft_runtime::{
    Change, ControllerHandle, ControllerState, Effects, Gate, GateState, Kinded as _, Machine,
    MachineBuilder, MachineScope, Metrics, Object as _, prometheus_text,
};

use crate::harness::{Harness, Note, configmaps, eventually, reaches};

type Notes = BTreeMap<String, String>;

enum Event {
    Note(Change<Note>),
    Ended(&'static str),
}

/// Events and polls of the machine, in order.
type Journal = Arc<Mutex<Vec<String>>>;

/// A machine that keeps the notes it receives and runs a test's function at every poll.
struct Scripted<P> {
    notes: Notes,
    polls: u32,
    journal: Journal,
    poll: P,
}

impl<P> Machine for Scripted<P>
where
    P: FnMut(u32, &Notes, &mut Effects<Event>) + Send + 'static,
{
    type Event = Event;

    fn handle(&mut self, event: Event, now: Moment) {
        match event {
            Event::Note(Change::Added { new, .. } | Change::Updated { new, .. }) => {
                self.notes
                    .insert(new.name().to_owned(), new.text().to_owned());
            }
            Event::Note(Change::Deleted { last, .. }) => drop(self.notes.remove(last.name())),
            Event::Note(_) => {}
            Event::Ended(what) => {
                let at = now.since_start().as_secs();
                self.journal.lock().unwrap().push(format!("{what} {at}"));
            }
        }
    }

    fn poll(&mut self, _now: Moment, effects: &mut Effects<Event>) {
        self.polls += 1;
        (self.poll)(self.polls, &self.notes, effects);
    }

    fn wake(&self, _now: Moment, _effects: &Effects<Event>) -> Option<Moment> {
        None
    }
}

struct Subject {
    handle: ControllerHandle,
    journal: Journal,
}

impl Subject {
    /// A machine with this function for its polls; a new one for every run.
    fn start<P>(
        builder: MachineBuilder<Event>,
        poll: impl Fn(MachineScope, Journal) -> P + Send + Sync + 'static,
    ) -> Self
    where
        P: FnMut(u32, &Notes, &mut Effects<Event>) + Send + 'static,
    {
        let journal = Journal::default();
        let kept = journal.clone();
        let handle = builder.build(move |scope| {
            std::future::ready(Ok(Scripted {
                notes: Notes::new(),
                polls: 0,
                poll: poll(scope, kept.clone()),
                journal: kept.clone(),
            }))
        });
        handle.start();
        Self { handle, journal }
    }

    fn journal(&self) -> Vec<String> {
        self.journal.lock().unwrap().clone()
    }

    async fn is_running(&self) {
        let mut state = self.handle.state();
        reaches(&mut state, |state| *state == ControllerState::Running).await;
    }
}

fn builder(harness: &Harness) -> MachineBuilder<Event> {
    MachineBuilder::new("scripted", &harness.cluster()).watches::<Note>(harness.spec(), Event::Note)
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_polled_once_it_has_everything_however_much_that_is() {
    let harness = Harness::embedded().await;
    // More than wait for a machine at a time.
    for number in 0..1500 {
        harness.create(&format!("note-{number}"), "").await;
    }
    let subject = Subject::start(builder(&harness), |_, journal| {
        move |_, notes: &Notes, _: &mut Effects<Event>| {
            journal.lock().unwrap().push(notes.len().to_string());
        }
    });
    subject.is_running().await;
    assert_eq!(subject.journal()[0], "1500");
    harness.delete("note-7").await;
    eventually("the change", || subject.journal().last().unwrap() == "1499").await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_does_not_act_on_a_cache_that_is_older_than_its_writes() {
    let harness = Harness::embedded().await;
    harness.create("mine", "old").await;
    let api = harness.notes();
    let builder = builder(&harness).read_own_writes(Duration::from_secs(3600));
    let subject = Subject::start(builder, move |scope, journal| {
        let api = api.clone();
        move |polls, notes: &Notes, effects: &mut Effects<Event>| {
            journal.lock().unwrap().push(notes["mine"].clone());
            if polls == 1 {
                let (api, scope) = (api.clone(), scope.clone());
                effects.call(async move {
                    // Until the test has cut the cache off.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let patch = Patch::Merge(json!({"data": {"text": "new"}}));
                    let params = PatchParams::default();
                    let written = api.patch("mine", &params, &patch).await.unwrap();
                    let version = written.metadata.resource_version.as_deref().unwrap();
                    scope.wrote(Note::resource_kind(), written.key(), version);
                    Event::Ended("written")
                });
            }
        }
    });
    subject.is_running().await;
    let stall = harness.server().faults().stall_watches(configmaps());
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(subject.journal(), ["old", "written 1"]);
    drop(stall);
    eventually("the next poll", || subject.journal().len() > 2).await;
    assert_eq!(subject.journal(), ["old", "written 1", "new"]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_calls_and_not_for_followers() {
    let harness = Harness::embedded().await;
    let subject = Subject::start(builder(&harness), |_, _| {
        |polls, _: &Notes, effects: &mut Effects<Event>| {
            if polls == 1 {
                effects.call(async {
                    tokio::time::sleep(Duration::from_secs(10)).await;
                    Event::Ended("call")
                });
                effects.follow(async {
                    tokio::time::sleep(Duration::from_secs(20)).await;
                    Event::Ended("happening")
                });
                assert!(!effects.is_idle());
            }
        }
    });
    subject.is_running().await;
    let report = subject.handle.stop().await;
    assert_eq!((report.aborted, report.took.as_secs()), (0, 10));
    assert_eq!(subject.journal(), ["call 10"]);
}

#[tokio::test(start_paused = true)]
async fn calls_that_need_the_lease_end_with_it() {
    let harness = Harness::embedded().await;
    let ends = Instant::now() + Duration::from_secs(5);
    let (_gate, states) = watch::channel(GateState::Open { until: Some(ends) });
    let subject = Subject::start(builder(&harness).leader_only(), |_, _| {
        |polls, _: &Notes, effects: &mut Effects<Event>| {
            if polls == 1 {
                effects.fenced(std::future::pending::<()>(), |ended| {
                    Event::Ended(ended.map_or("cut off", |()| "ended"))
                });
            }
        }
    });
    subject.handle.set_gate(Gate::new(states));
    eventually("the end", || !subject.journal().is_empty()).await;
    assert_eq!(Instant::now().duration_since(ends).as_secs(), 0);
    assert!(subject.journal()[0].starts_with("cut off"));
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_panics_is_replaced_by_a_new_one_that_gets_everything_again() {
    let harness = Harness::embedded().await;
    harness.create("note", "").await;
    let panics = AtomicBool::new(true);
    let subject = Subject::start(builder(&harness), move |_, journal| {
        let panics = panics.swap(false, Relaxed);
        move |polls, notes: &Notes, _: &mut Effects<Event>| {
            let line = format!("{polls} {}", notes.len());
            journal.lock().unwrap().push(line);
            assert!(!panics, "on purpose");
        }
    });
    let begun = Instant::now();
    let mut state = subject.handle.state();
    reaches(&mut state, |state| {
        *state == ControllerState::Failed("panicked".to_owned())
    })
    .await;
    eventually("another run", || subject.journal().len() == 2).await;
    assert_eq!(begun.elapsed().as_secs(), 1, "after a back-off");
    assert_eq!(subject.journal(), ["1 1", "1 1"]);
    assert_eq!(subject.handle.info().panicked, 1);
}

#[tokio::test(start_paused = true)]
async fn the_changes_of_a_machine_are_counted_as_a_workqueue() {
    let harness = Harness::embedded().await;
    harness.create("note", "").await;
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = Metrics::register(&mut registry);
    let builder = builder(&harness).queue_name("Notes").metrics(&metrics);
    let subject = Subject::start(builder, |_, _| |_, _: &Notes, _: &mut Effects<Event>| {});
    subject.is_running().await;
    // The note, and the end of the first list.
    let adds = "workqueue_adds_total{name=\"Notes\"} 2";
    assert!(prometheus_text(&registry).contains(adds));
    drop(subject);
    let gone = || !prometheus_text(&registry).contains("Notes");
    eventually("the series end with the machine", gone).await;
}
