//! Units: components that start, stop and restart as controllers do, and commands to them.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;
use weft_runtime::{
    Component, ComponentRun, ComponentScope, ControlServer, ControllerHandle, ControllerState,
    Manager, Phase, SocketError, Unit, socket_get, socket_post,
};

use crate::harness::{Harness, eventually, reaches};

/// Behaviour of one run.
#[derive(Clone, Copy)]
enum Behaviour {
    /// Runs until it is stopped.
    Good,
    Fails,
    Panics,
    /// Ends without a stop.
    Returns,
    /// Ignores the stop.
    IgnoresStop,
}

/// Runs through its list of behaviours, repeating the last one.
struct Scripted {
    plan: Vec<Behaviour>,
    begun: Arc<AtomicU32>,
    running: Arc<AtomicU32>,
}

impl Component for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn phase(&self) -> Phase {
        Phase::Always
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun {
        Box::pin(async move {
            let number = self.begun.fetch_add(1, Relaxed) as usize;
            let behaviour = self.plan.get(number).or(self.plan.last()).copied();
            self.running.fetch_add(1, Relaxed);
            let running = self.running.clone();
            let _ended = scopeguard(move || {
                running.fetch_sub(1, Relaxed);
            });
            match behaviour.unwrap() {
                Behaviour::Fails => Err("it broke".into()),
                Behaviour::Panics => panic!("on purpose"),
                Behaviour::Returns => Ok(()),
                Behaviour::Good => {
                    scope.ready();
                    scope.stopped().await;
                    Ok(())
                }
                Behaviour::IgnoresStop => {
                    scope.ready();
                    std::future::pending().await
                }
            }
        })
    }
}

struct Guard<F: FnMut()>(F);

impl<F: FnMut()> Drop for Guard<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn scopeguard<F: FnMut()>(act: F) -> Guard<F> {
    Guard(act)
}

struct Subject {
    handle: ControllerHandle,
    begun: Arc<AtomicU32>,
    running: Arc<AtomicU32>,
}

impl Subject {
    async fn new(plan: &[Behaviour]) -> (Self, Harness) {
        let harness = Harness::embedded().await;
        let (begun, running) = (Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default());
        let component = Scripted {
            plan: plan.to_vec(),
            begun: begun.clone(),
            running: running.clone(),
        };
        let handle = Unit::new(component, &harness.cluster()).handle();
        let subject = Self {
            handle,
            begun,
            running,
        };
        (subject, harness)
    }

    async fn reaches(&self, state: &ControllerState) {
        reaches(&mut self.handle.state(), |now| now == state).await;
    }

    fn runs(&self) -> (u32, u32) {
        (self.begun.load(Relaxed), self.running.load(Relaxed))
    }
}

fn failed(error: &str) -> ControllerState {
    ControllerState::Failed(error.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_unit_starts_stops_and_restarts() {
    let (subject, _harness) = Subject::new(&[Behaviour::Good]).await;
    assert_eq!(*subject.handle.state().borrow(), ControllerState::Stopped);
    subject.handle.start();
    subject.reaches(&ControllerState::Running).await;
    assert_eq!(subject.runs(), (1, 1));
    subject.handle.restart().await;
    subject.reaches(&ControllerState::Running).await;
    assert_eq!(subject.runs(), (2, 1));
    assert_eq!(subject.handle.stop().await.aborted, 0);
    assert_eq!(*subject.handle.state().borrow(), ControllerState::Stopped);
    assert_eq!(subject.runs(), (2, 0));
    assert_eq!(subject.handle.stop().await.aborted, 0, "twice is once");
    subject.handle.start();
    subject.reaches(&ControllerState::Running).await;
    assert_eq!(subject.handle.info().starts, 3);
}

#[tokio::test(start_paused = true)]
async fn a_failed_run_is_followed_by_another_after_a_growing_pause() {
    let plan = [
        Behaviour::Fails,
        Behaviour::Panics,
        Behaviour::Returns,
        Behaviour::Good,
    ];
    let (subject, _harness) = Subject::new(&plan).await;
    let begun = Instant::now();
    subject.handle.start();
    subject.reaches(&failed("it broke")).await;
    subject.reaches(&failed("panicked")).await;
    subject.reaches(&failed("ended without a stop")).await;
    subject.reaches(&ControllerState::Running).await;
    assert_eq!(begun.elapsed().as_secs(), 1 + 2 + 4);
    let info = subject.handle.info();
    assert_eq!((info.failed, info.panicked), (3, 1));
    assert_eq!(info.last_error.as_deref(), Some("ended without a stop"));
}

#[tokio::test(start_paused = true)]
async fn a_failed_unit_is_started_at_once_on_request_and_stays_stopped_after_a_stop() {
    let (subject, _harness) =
        Subject::new(&[Behaviour::Fails, Behaviour::Fails, Behaviour::Good]).await;
    subject.handle.start();
    subject.reaches(&failed("it broke")).await;
    subject.handle.stop().await;
    assert_eq!(*subject.handle.state().borrow(), ControllerState::Stopped);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(subject.runs(), (1, 0), "stopped means stopped");
    let again = Instant::now();
    subject.handle.start();
    subject.reaches(&failed("it broke")).await;
    subject.handle.restart().await;
    subject.reaches(&ControllerState::Running).await;
    assert_eq!(again.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_does_not_end_is_dropped_after_the_grace_time() {
    let (subject, _harness) = Subject::new(&[Behaviour::IgnoresStop]).await;
    subject.handle.start();
    subject.reaches(&ControllerState::Running).await;
    let report = subject.handle.stop_within(Duration::from_secs(3)).await;
    assert_eq!((report.aborted, report.took.as_secs()), (1, 3));
    assert_eq!(subject.runs(), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_unit_leaves_with_its_cluster() {
    let (subject, harness) = Subject::new(&[Behaviour::Good]).await;
    let cluster = harness.cluster();
    let begun = subject.begun.clone();
    let component = Scripted {
        plan: vec![Behaviour::Good],
        begun: begun.clone(),
        running: subject.running.clone(),
    };
    let unit = Unit::new(component, &cluster).handle();
    unit.start();
    reaches(&mut unit.state(), |now| *now == ControllerState::Running).await;
    cluster.leave().await;
    assert_eq!(subject.runs(), (1, 0));
    assert!(unit.state().borrow().to_string().contains("cluster left"));
}

#[tokio::test(start_paused = true)]
async fn a_unit_that_runs_once_reports_its_failure_and_is_not_restarted() {
    let harness = Harness::embedded().await;
    let begun = Arc::<AtomicU32>::default();
    let component = Scripted {
        plan: vec![Behaviour::Fails],
        begun: begun.clone(),
        running: Arc::default(),
    };
    let (unit, failure) = Unit::once(component, &harness.cluster());
    unit.handle().start();
    assert_eq!(failure.await.unwrap().to_string(), "it broke");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(begun.load(Relaxed), 1);
    assert_eq!(*unit.handle().state().borrow(), failed("it broke"));
}

async fn state(socket: &Path) -> String {
    let all: Vec<Value> = socket_get(socket, "/debug/controllers").await.unwrap();
    all[0]["state"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn commands_on_the_control_socket_are_answered_when_they_are_done() {
    let (subject, harness) = Subject::new(&[Behaviour::Good]).await;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/control.sock");
    let manager = Manager::builder("test", harness.cluster()).build().unwrap();
    manager.add(subject.handle.clone()).unwrap();
    let server = ControlServer::bind(&manager, &socket).unwrap();
    manager.add_component(server).unwrap();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = manager.clone();
    let task = tokio::spawn(async move { running.run(async { drop(stopped.await) }).await });
    subject.reaches(&ControllerState::Running).await;
    let answer: Value = socket_post(&socket, "/debug/controllers/scripted/stop")
        .await
        .unwrap();
    assert_eq!(
        (answer["state"].as_str(), subject.runs()),
        (Some("stopped"), (1, 0))
    );
    let answer: Value = socket_post(&socket, "/debug/controllers/scripted/start")
        .await
        .unwrap();
    assert_eq!(answer["name"], "scripted");
    subject.reaches(&ControllerState::Running).await;
    let _: Value = socket_post(&socket, "/debug/controllers/scripted/restart")
        .await
        .unwrap();
    eventually("a third run", || subject.runs() == (3, 1)).await;
    subject.reaches(&ControllerState::Running).await;
    assert_eq!(state(&socket).await, "running");
    for wrong in ["scripted/kill", "unknown/stop"] {
        let page = format!("/debug/controllers/{wrong}");
        let refused = socket_post::<Value>(&socket, &page).await;
        assert!(
            matches!(refused, Err(SocketError::Refused(_))),
            "{refused:?}"
        );
    }
    stop.send(()).unwrap();
    task.await.unwrap().unwrap();
    assert_eq!(subject.runs(), (3, 0));
}
