//! Keeps a board in step with a cluster's objects.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};
use weft_runtime::{Cluster, Component, ComponentRun, ComponentScope, Phase};

use crate::{
    Board,
    state::{Mode, State, now},
};

mod changes;
mod derivation;
mod follow;
pub mod objects;
mod sources;

pub use derivation::derive;
pub use objects::Objects;
pub use sources::{Source, SyncState};

use follow::Followed;

/// Delay after a change, so that a burst is derived once.
const GATHER: Duration = Duration::from_millis(50);
/// Shortest time between two updates, as in `stream`.
const PAUSE: Duration = Duration::from_millis(250);
/// Upper bound of the share of one core that deriving may take, as 1/20: a large cluster takes a
/// while to derive.
const SHARE: u32 = 20;

/// Watches a cluster and derives nodes, pods, pools, Services and the reachability of the API
/// server for a board. Pools come from NodeNetworkConfigs.
///
/// The rest of the board has other writers. In mode `cluster` there are none, so the feed writes
/// the timeline and the checks as well.
pub struct ClusterFeed {
    cluster: Cluster,
    board: Board,
    complete: Option<Complete>,
}

type Complete = Box<dyn Fn(&mut State) + Send + Sync>;

impl ClusterFeed {
    /// A feed from a cluster to a board.
    pub fn new(cluster: Cluster, board: Board) -> Self {
        Self {
            cluster,
            board,
            complete: None,
        }
    }

    /// Adds to every state what objects do not contain, before the board shows it: the routes of a
    /// kernel, for example, or the pool as a node's daemon sees it.
    #[must_use]
    pub fn completing(mut self, complete: impl Fn(&mut State) + Send + Sync + 'static) -> Self {
        self.complete = Some(Box::new(complete));
        self
    }

    /// Runs until dropped.
    pub async fn run(&self) {
        let cluster = &self.cluster;
        let mut nodes = Followed::new(cluster, "nodes").unless(objects::Node::shows_the_same);
        let mut pods = Followed::<objects::Pod>::new(cluster, "pods");
        let mut services = Followed::<objects::Service>::new(cluster, "services");
        let mut slices = Followed::<objects::Slice>::new(cluster, "endpoint slices");
        let mut configs =
            Followed::<objects::NodeConfig>::if_served(cluster, "node network configs");
        let mut earliest = Instant::now();
        let mut due = None;
        loop {
            tokio::select! {
                () = nodes.changed() => {}
                () = pods.changed() => {}
                () = services.changed() => {}
                () = slices.changed() => {}
                () = configs.changed() => {}
                () = sleep_until(due.unwrap_or(earliest)), if due.is_some() => {
                    let began = Instant::now();
                    self.show(&Objects {
                        sources: vec![
                            nodes.source(),
                            pods.source(),
                            services.source(),
                            slices.source(),
                            configs.source(),
                        ],
                        nodes: nodes.objects(),
                        pods: pods.objects(),
                        services: services.objects(),
                        slices: slices.objects(),
                        configs: configs.objects(),
                    });
                    earliest = Instant::now() + PAUSE.max(began.elapsed() * SHARE);
                    due = None;
                    continue;
                }
            }
            due.get_or_insert((Instant::now() + GATHER).max(earliest));
        }
    }

    fn show(&self, objects: &Objects) {
        let derived = derive(objects);
        let complete = objects.sources.iter().all(Source::is_complete);
        let known = !self.board.read().nodes.is_empty();
        self.board.update(|state| {
            if state.mode == Mode::Cluster {
                if complete && known {
                    for note in changes::between(state, &derived, now()) {
                        state.timeline.push(note);
                    }
                }
                state.checks = derived.checks;
            }
            if state.cluster.reachable != derived.cluster.reachable {
                state.cluster.reachable = derived.cluster.reachable;
                state.cluster.since = now();
            }
            state.nodes = derived.nodes;
            state.services = derived.services;
            if let Some(complete) = &self.complete {
                complete(state);
            }
        });
    }
}

impl Component for ClusterFeed {
    fn name(&self) -> &'static str {
        "dashboard-feed"
    }

    fn phase(&self) -> Phase {
        Phase::Cache
    }

    fn run(self: Arc<Self>, scope: ComponentScope) -> ComponentRun {
        Box::pin(async move {
            scope.ready();
            tokio::select! {
                () = scope.stopped() => {}
                () = Self::run(&self) => {}
            }
            Ok(())
        })
    }
}
