//! Where requests come in: the way from sockets to the one who owns the pool.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use weft_ipam::{
    NodeConfig, PodSketch,
    pool::{Key, PodIdentity, Pool, Reply, Ticket},
};
use weft_model::{Moment, SharedStr};

/// The daemon ends, and answers nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("daemon is stopping")]
pub struct Stopping;

/// What can be seen of a daemon.
#[derive(Debug)]
pub struct Picture<'a> {
    /// Who has which address.
    pub pool: &'a Pool,
    /// The NodeNetworkConfig as it was seen last.
    pub config: Option<&'a NodeConfig>,
    /// The pods that need addresses, if a complete list was seen.
    pub pods: Option<&'a [PodSketch]>,
    /// Whether pods are followed at present.
    pub synced: bool,
    /// Whether one of the node's subnets is nearly out of addresses.
    pub exhausted: bool,
    /// Whether the store takes records.
    pub store_open: bool,
    /// The present moment.
    pub now: Moment,
}

/// Sends what was read, once everything that it may show is durable.
pub(crate) type Send = Box<dyn FnOnce() + std::marker::Send>;

pub(crate) enum Message {
    Add(Box<Add>),
    Delete {
        ticket: Ticket,
        key: Key,
        answer: oneshot::Sender<Reply>,
    },
    Cancel(Ticket),
    Collect {
        network: SharedStr,
        valid: BTreeSet<(SharedStr, SharedStr)>,
        answer: oneshot::Sender<u64>,
    },
    Look(Box<dyn FnOnce(&Picture<'_>) -> Send + std::marker::Send>),
}

pub(crate) struct Add {
    pub(crate) ticket: Ticket,
    pub(crate) key: Key,
    pub(crate) pod: PodIdentity,
    pub(crate) desired: Vec<IpAddr>,
    pub(crate) wait: Duration,
    pub(crate) answer: oneshot::Sender<Reply>,
}

/// Asks a daemon of this process. Clones ask the same one.
#[derive(Clone, Debug)]
pub struct Desk {
    messages: mpsc::UnboundedSender<Message>,
    tickets: Arc<AtomicU64>,
}

impl Desk {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Message>) {
        let (messages, received) = mpsc::unbounded_channel();
        let desk = Self {
            messages,
            tickets: Arc::default(),
        };
        (desk, received)
    }

    fn ticket(&self) -> Ticket {
        Ticket(self.tickets.fetch_add(1, Relaxed))
    }

    fn send(&self, message: Message) -> Result<(), Stopping> {
        self.messages.send(message).map_err(|_| Stopping)
    }

    /// Asks for addresses and waits for them. Whoever drops this gets none.
    pub async fn add(
        &self,
        key: Key,
        pod: PodIdentity,
        desired: Vec<IpAddr>,
        wait: Duration,
    ) -> Result<Reply, Stopping> {
        let ticket = self.ticket();
        let (answer, answered) = oneshot::channel();
        self.send(Message::Add(Box::new(Add {
            ticket,
            key,
            pod,
            desired,
            wait,
            answer,
        })))?;
        let mut waiting = Waiting {
            desk: self,
            ticket: Some(ticket),
        };
        // Dropped in this order: the actor must find nobody to answer when it is told.
        let mut answered = answered;
        let reply = (&mut answered).await;
        waiting.ticket = None;
        reply.map_err(|_| Stopping)
    }

    /// Gives back what a key holds.
    pub async fn delete(&self, key: Key) -> Result<Reply, Stopping> {
        let ticket = self.ticket();
        let (answer, answered) = oneshot::channel();
        self.send(Message::Delete {
            ticket,
            key,
            answer,
        })?;
        answered.await.map_err(|_| Stopping)
    }

    /// Gives back what no listed attachment of a network holds, and says how many that were.
    pub async fn collect(
        &self,
        network: SharedStr,
        valid: BTreeSet<(SharedStr, SharedStr)>,
    ) -> Result<u64, Stopping> {
        let (answer, answered) = oneshot::channel();
        self.send(Message::Collect {
            network,
            valid,
            answer,
        })?;
        answered.await.map_err(|_| Stopping)
    }

    /// Looks at everything in one piece. The answer comes when all that it shows is durable.
    pub async fn look<T: std::marker::Send + 'static>(
        &self,
        look: impl FnOnce(&Picture<'_>) -> T + std::marker::Send + 'static,
    ) -> Result<T, Stopping> {
        let (answer, answered) = oneshot::channel();
        self.send(Message::Look(Box::new(move |picture| {
            let seen = look(picture);
            Box::new(move || drop(answer.send(seen)))
        })))?;
        answered.await.map_err(|_| Stopping)
    }
}

/// Takes a request back when whoever made it has gone.
struct Waiting<'a> {
    desk: &'a Desk,
    ticket: Option<Ticket>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            // A daemon that has ended has forgotten it anyway.
            let _ended = self.desk.send(Message::Cancel(ticket));
        }
    }
}
