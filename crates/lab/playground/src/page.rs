//! The live page of a playground: state from API objects, and from inside the nodes.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use weft_apiserver::Matcher;
use weft_cns::{StatusResponse, path::STATUS};
use weft_dashboard::{
    ActionError, Board, ClusterFeed, Control, DashboardServer, Pages, State, Token,
    state::{Action, Check, Cost, Mode, Note, Pool, Process, ProcessState, Route, Savings},
};

use crate::{
    agent::{Agent, AgentState, AgentStatus},
    kernel::{self, Sync},
    program::blocking,
    traffic::Stream,
    world::World,
};

/// Interval at which nodes are read.
const LOOK: Duration = Duration::from_secs(1);
/// Seconds between two lists of a polling controller, such as upstream's route controller.
const POLLING: f64 = 10.0;

/// The served page; dropping it stops the server.
#[derive(Debug)]
pub struct Page {
    /// URL with the token that allows actions.
    pub url: String,
    stop: CancellationToken,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// State of a node that is not in API objects.
#[derive(Clone, Debug, Default)]
struct Inside {
    routes: Vec<kernel::Route>,
    pool: Option<Pool>,
}

type Insides = Arc<Mutex<BTreeMap<String, Inside>>>;

impl Page {
    /// Serves the page of a world. With a stream of requests it shows their results.
    pub fn serve(world: Arc<World>, stream: Option<Stream>) -> io::Result<Self> {
        let listener = world.take_page_listener();
        let listener = listener
            .ok_or_else(|| io::Error::other("cannot serve the page: it is served already"))?;
        let server = format!("https://{}", world.api_address);
        let board = Board::new(State::new(Mode::Playground, "playground", &server));
        let token = Token::random().map_err(io::Error::other)?;
        let pages = Pages::new(board.clone()).control(Hands(world.clone()), token);
        let server = DashboardServer::on(pages, listener)?;
        let (url, stop) = (server.url(), CancellationToken::new());
        let insides = Insides::default();
        let feed = {
            let insides = insides.clone();
            ClusterFeed::new(world.cluster().clone(), board.clone())
                .completing(move |state| complete(state, &insides))
        };
        let ended = stop.clone();
        tokio::spawn(async move {
            let look = Look {
                world,
                board,
                insides,
                stream,
                begun: Instant::now(),
                seen: BTreeMap::new(),
                savings: Savings::default(),
            };
            let serving = server.serve(ended.clone().cancelled_owned());
            tokio::select! {
                () = ended.cancelled() => {}
                () = feed.run() => {}
                () = look.run() => {}
                served = serving => if let Err(error) = served {
                    tracing::error!(%error, "live page server failed");
                }
            }
        });
        Ok(Self { url, stop })
    }
}

/// Adds the state from inside the nodes to the state from objects.
fn complete(state: &mut State, insides: &Insides) {
    let insides = insides.lock();
    let names: BTreeMap<String, String> = state
        .nodes
        .iter()
        .flat_map(|node| {
            node.addresses
                .iter()
                .map(|address| (address.clone(), node.name.clone()))
        })
        .collect();
    for node in &mut state.nodes {
        let Some(inside) = insides.get(&node.name) else {
            continue;
        };
        let routes = inside.routes.iter().map(|route| Route {
            destination: route.destination.clone(),
            node: names.get(&route.via).cloned(),
            via: route.via.clone(),
        });
        node.routes = routes.collect();
        if inside.pool.is_some() {
            node.pool = inside.pool;
        }
    }
}

/// Reads the nodes at intervals and updates the page.
struct Look {
    world: Arc<World>,
    board: Board,
    insides: Insides,
    stream: Option<Stream>,
    begun: Instant,
    /// By node: number of starts of the proxy, and the number of the last sync on the timeline.
    seen: BTreeMap<String, (u32, u64)>,
    savings: Savings,
}

impl Look {
    async fn run(mut self) {
        loop {
            self.once().await;
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn once(&mut self) {
        let mut found = BTreeMap::new();
        let mut notes = Vec::new();
        for node in self.world.nodes() {
            let (name, socket) = (node.name.clone(), node.socket());
            let looked = blocking(move || look_at(&name, &socket)).await;
            let starts = node.agent("proxy").map_or(0, |agent| agent.status().starts);
            notes.extend(self.news(&node.name, starts, &looked));
            found.insert(node.name, looked.inside);
        }
        *self.insides.lock() = found;
        let stats = self.world.server().stats();
        let agents = Matcher::any().user_agent("weft/");
        self.savings.calls_made = stats.count(&agents) as u64;
        self.savings.calls_polling =
            polling_calls(stats.open_watches(&agents), self.begun.elapsed());
        let processes = self
            .world
            .agents()
            .iter()
            .map(|agent| process(&agent.status()))
            .collect();
        let check = self.stream.as_ref().map(check);
        self.board.update(|state| {
            state.processes = processes;
            state.savings = Some(self.savings);
            state.checks = check.into_iter().collect();
            complete(state, &self.insides);
            for note in notes {
                state.timeline.push(note);
            }
        });
    }

    /// Notes on the syncs of a proxy since the last call.
    fn news(&mut self, node: &str, starts: u32, looked: &Looked) -> Vec<Note> {
        let seen = self.seen.entry(node.to_owned()).or_default();
        if seen.0 != starts {
            *seen = (starts, 0);
        }
        let fresh: Vec<&Sync> = looked
            .syncs
            .iter()
            .filter(|sync| sync.number > seen.1 && sync.bytes > 0)
            .collect();
        seen.1 = looked.syncs.last().map_or(seen.1, |sync| sync.number);
        let size = kernel::element_size(&looked.syncs);
        let everything = |sync: &Sync| size * sync.elements;
        for sync in &fresh {
            self.savings.bytes_written += sync.bytes;
            self.savings.bytes_full += everything(sync).max(sync.bytes);
        }
        fresh
            .into_iter()
            .map(|sync| note(node, sync, everything(sync)))
            .collect()
    }
}

/// State read from a node.
struct Looked {
    inside: Inside,
    syncs: Vec<Sync>,
}

fn look_at(node: &str, socket: &Path) -> Looked {
    Looked {
        inside: Inside {
            routes: kernel::routes(node).unwrap_or_default(),
            pool: pool(socket).ok(),
        },
        syncs: kernel::syncs(node).unwrap_or_default(),
    }
}

/// Reads the address pool from the IPAM daemon of a node.
fn pool(socket: &Path) -> io::Result<Pool> {
    let stream = std::os::unix::net::UnixStream::connect(socket)?;
    let status = kernel::get(stream, STATUS)?;
    let status: StatusResponse = serde_json::from_slice(&status).map_err(io::Error::other)?;
    let counts = status.pool;
    Ok(Pool {
        assigned: Some(counts.assigned),
        free: Some(counts.available),
        pending: Some(counts.pending_programming + counts.pending_release),
        cooling: Some(counts.cooling),
        requested: Some(counts.requested),
        demand: Some(counts.demand),
    })
}

fn note(node: &str, sync: &Sync, everything: u64) -> Note {
    let kind = if sync.full {
        "full sync"
    } else {
        "partial sync"
    };
    Note {
        at: sync.at,
        what: format!("{} Services: {kind}", sync.family),
        place: Some(node.to_owned()),
        component: "proxy".to_owned(),
        cost: Some(Cost {
            milliseconds: Some(sync.milliseconds),
            bytes: Some(sync.bytes),
            changes: Some(format!("{} of {} elements", sync.written, sync.elements)),
            avoided_bytes: Some(everything.saturating_sub(sync.bytes)),
            ..Cost::default()
        }),
    }
}

/// Number of list calls that polling instead of watching would have made.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a count of seconds and watches"
)]
fn polling_calls(watches: usize, elapsed: Duration) -> u64 {
    (watches as f64 * elapsed.as_secs_f64() / POLLING) as u64
}

fn check(stream: &Stream) -> Check {
    let tally = stream.take();
    Check {
        name: "pod to Service".to_owned(),
        ok: tally.failed == 0 && tally.answered > 0,
        detail: format!(
            "{} answers from {} pods on {} nodes in the last second, {} failed",
            tally.answered,
            tally.pods.len(),
            tally.nodes.len(),
            tally.failed
        ),
    }
}

fn process(status: &AgentStatus) -> Process {
    let (state, actions) = match status.state {
        AgentState::Running => (ProcessState::Running, vec![Action::Stop, Action::Restart]),
        AgentState::Stopped => (ProcessState::Stopped, vec![Action::Start]),
        AgentState::Failed => (ProcessState::Failed, vec![Action::Stop]),
    };
    Process {
        name: status.name.clone(),
        node: status.node.clone(),
        component: status.component.clone(),
        pid: status.pid.and_then(|pid| u32::try_from(pid).ok()),
        state,
        since: status.since,
        detail: match status.starts {
            0 | 1 => String::new(),
            starts => format!("started {starts} times"),
        },
        actions,
    }
}

/// Executes the actions of the page.
struct Hands(Arc<World>);

impl Control for Hands {
    fn act<'a>(
        &'a self,
        process: &'a str,
        action: Action,
    ) -> BoxFuture<'a, Result<(), ActionError>> {
        Box::pin(async move {
            let agents = self.0.agents();
            let agent: Option<&Agent> = agents.iter().find(|agent| agent.status().name == process);
            let agent = agent.ok_or_else(|| ActionError::UnknownProcess(process.to_owned()))?;
            let done = match action {
                Action::Start => agent.start(),
                Action::Stop => {
                    agent.stop().await;
                    Ok(())
                }
                Action::Restart => agent.restart().await,
            };
            done.map_err(|error| ActionError::Failed(error.into()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_matched_to_nodes_by_address_and_pools_come_from_the_daemon() {
        let mut state = State::new(Mode::Playground, "p", "https://127.0.0.1:1");
        for (name, address) in [("node-1", "172.30.0.11"), ("node-2", "172.30.0.12")] {
            state.nodes.push(weft_dashboard::state::Node {
                name: name.to_owned(),
                addresses: vec![address.to_owned()],
                ..Default::default()
            });
        }
        let pool = Pool {
            assigned: Some(3),
            ..Pool::default()
        };
        let inside = Inside {
            routes: vec![kernel::Route {
                destination: "10.244.1.0/24".to_owned(),
                via: "172.30.0.12".to_owned(),
            }],
            pool: Some(pool),
        };
        let insides = Arc::new(Mutex::new(BTreeMap::from([("node-1".to_owned(), inside)])));
        complete(&mut state, &insides);
        assert_eq!(state.nodes[0].routes[0].node.as_deref(), Some("node-2"));
        assert_eq!(state.nodes[0].pool, Some(pool));
        assert!(state.nodes[1].routes.is_empty());
    }

    #[test]
    fn polling_is_a_list_of_each_kind_every_ten_seconds() {
        assert_eq!(polling_calls(13, Duration::from_secs(25)), 32);
    }
}
