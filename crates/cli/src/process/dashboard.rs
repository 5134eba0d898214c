//! The live page of `weft controller`: it shows the cluster and changes nothing.

use std::{net::SocketAddr, sync::Arc};

use futures::future::{BoxFuture, select_all};
use tokio::sync::watch;
use weft_dashboard::{
    Board, ClusterFeed, DashboardServer, Pages, Reach, State,
    state::{Mode, Process, ProcessState, now},
};
use weft_runtime::{
    Cluster, Component, ComponentScope, ControllerHandle, ControllerState, Failure, Manager,
    PendingReason, Phase,
};

/// Configuration of the page.
#[derive(Clone, Debug)]
pub(crate) struct Dashboard {
    /// Address of the listener.
    pub(crate) address: SocketAddr,
    /// From where it may be seen.
    pub(crate) reach: Reach,
    /// Name of the cluster.
    pub(crate) cluster: String,
}

impl Dashboard {
    /// Adds the page to a process that has all of its controllers.
    pub(crate) fn add(
        self,
        manager: &Manager,
        cluster: Cluster,
        server: &str,
    ) -> Result<(), Failure> {
        let board = Board::new(State::new(Mode::Cluster, &self.cluster, server));
        let pages = Pages::new(board.clone());
        let server = DashboardServer::bind(pages, self.address, self.reach)?;
        tracing::info!(url = server.url(), "serving the dashboard");
        manager.add_component(server)?;
        manager.add_component(ClusterFeed::new(cluster, board.clone()))?;
        manager.add_component(ControllerList {
            controllers: manager.controllers(),
            board,
        })?;
        Ok(())
    }
}

/// Shows the controllers of this process on the page.
struct ControllerList {
    controllers: Vec<ControllerHandle>,
    board: Board,
}

/// A controller's name and state.
type Followed<'a> = (&'a str, watch::Receiver<ControllerState>);

impl ControllerList {
    async fn follow(&self) {
        let mut followed: Vec<Followed> = self
            .controllers
            .iter()
            .map(|controller| (controller.name(), controller.state()))
            .collect();
        while !followed.is_empty() {
            self.show(&mut followed);
            let changes = followed
                .iter_mut()
                .map(|(_, state)| Box::pin(state.changed()));
            let (changed, index, _) = select_all(changes).await;
            if changed.is_err() {
                followed.remove(index);
            }
        }
    }

    fn show(&self, followed: &mut [Followed]) {
        let seen: Vec<(&str, ControllerState)> = followed
            .iter_mut()
            .map(|(name, state)| (*name, state.borrow_and_update().clone()))
            .collect();
        self.board.update(|state| {
            let before = std::mem::take(&mut state.processes);
            let processes = seen.iter().map(|(name, seen)| process(name, seen));
            state.processes = processes
                .map(|process| {
                    let known = before.iter().find(|known| known.name == process.name);
                    let same = known.filter(|known| known.state == process.state);
                    let since = same.map_or(process.since, |known| known.since);
                    Process { since, ..process }
                })
                .collect();
        });
    }
}

fn process(name: &str, state: &ControllerState) -> Process {
    Process {
        name: name.to_owned(),
        node: None,
        component: "controller".to_owned(),
        pid: Some(std::process::id()),
        state: match state {
            ControllerState::Running => ProcessState::Running,
            ControllerState::Stopped
            | ControllerState::Draining
            | ControllerState::Waiting(PendingReason::NotLeading | PendingReason::ClusterLeft) => {
                ProcessState::Stopped
            }
            ControllerState::Waiting(_) | ControllerState::Syncing => ProcessState::Starting,
            ControllerState::Degraded(_) | ControllerState::Failed(_) => ProcessState::Failed,
        },
        since: now(),
        detail: match state {
            ControllerState::Running | ControllerState::Stopped => String::new(),
            other => other.to_string(),
        },
        actions: Vec::new(),
    }
}

impl Component for ControllerList {
    fn name(&self) -> &'static str {
        "dashboard-controllers"
    }

    fn phase(&self) -> Phase {
        Phase::Always
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> BoxFuture<'static, Result<(), Failure>> {
        Box::pin(async move {
            scope.ready();
            tokio::select! {
                () = scope.stopped() => return Ok(()),
                () = self.follow() => {}
            }
            scope.stopped().await;
            Ok(())
        })
    }
}
