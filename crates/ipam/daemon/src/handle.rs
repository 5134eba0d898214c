//! Handle for requests to the actor that owns the pool.

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
    NodeConfig, PodSummary, Uid,
    pool::{Key, PodIdentity, Pool, Reply, RequestId},
};
use weft_model::{Moment, SharedStr};

/// The daemon is stopping and answers no requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the daemon is stopping")]
pub struct Stopping;

/// Progress of the daemon's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Startup {
    /// No ADD could be served yet.
    Pending,
    /// ADDs could be served at least once.
    Complete,
}

/// A consistent view of the daemon's state.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// Addresses and their owners.
    pub pool: &'a Pool,
    /// UID of this machine's Node; `None` before it was observed.
    pub node: Option<&'a Uid>,
    /// Container runtime of the Node, such as `containerd://2.3.7`.
    pub container_runtime: &'a str,
    /// The last observed NodeNetworkConfig.
    pub config: Option<&'a NodeConfig>,
    /// Progress of the start.
    pub startup: Startup,
    /// Pods that need addresses; `None` before the first complete list.
    pub pods: Option<&'a [PodSummary]>,
    /// True if the watch of pods is up to date.
    pub synced: bool,
    /// True if one of the node's subnets is nearly exhausted.
    pub exhausted: bool,
    /// True if the store accepts records.
    pub store_open: bool,
    /// Time of the snapshot.
    pub now: Moment,
}

/// Sends the result of a read, once everything it may contain is durable.
pub(crate) type SendReply = Box<dyn FnOnce() + Send>;

pub(crate) enum Message {
    Add(Box<Add>),
    Delete {
        id: RequestId,
        key: Key,
        answer: oneshot::Sender<Reply>,
    },
    Cancel(RequestId),
    Collect {
        network: SharedStr,
        valid: BTreeSet<(SharedStr, SharedStr)>,
        answer: oneshot::Sender<u64>,
    },
    Read(Box<dyn FnOnce(&Snapshot<'_>) -> SendReply + Send>),
}

pub(crate) struct Add {
    pub(crate) id: RequestId,
    pub(crate) key: Key,
    pub(crate) pod: PodIdentity,
    pub(crate) desired: Vec<IpAddr>,
    pub(crate) wait: Duration,
    pub(crate) answer: oneshot::Sender<Reply>,
}

/// Handle for requests to a daemon of this process. Clones share the daemon.
#[derive(Clone, Debug)]
pub struct DaemonHandle {
    messages: mpsc::UnboundedSender<Message>,
    tickets: Arc<AtomicU64>,
}

impl DaemonHandle {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Message>) {
        let (messages, received) = mpsc::unbounded_channel();
        let handle = Self {
            messages,
            tickets: Arc::default(),
        };
        (handle, received)
    }

    fn id(&self) -> RequestId {
        RequestId(self.tickets.fetch_add(1, Relaxed))
    }

    fn send(&self, message: Message) -> Result<(), Stopping> {
        self.messages.send(message).map_err(|_| Stopping)
    }

    /// Requests addresses and waits for them. Dropping the future cancels the request.
    pub async fn add(
        &self,
        key: Key,
        pod: PodIdentity,
        desired: Vec<IpAddr>,
        wait: Duration,
    ) -> Result<Reply, Stopping> {
        let id = self.id();
        let (answer, answered) = oneshot::channel();
        self.send(Message::Add(Box::new(Add {
            id,
            key,
            pod,
            desired,
            wait,
            answer,
        })))?;
        let mut waiting = Waiting {
            handle: self,
            id: Some(id),
        };
        // Dropped in this order: the actor must find the receiver gone when it gets the
        // cancellation.
        let mut answered = answered;
        let reply = (&mut answered).await;
        waiting.id = None;
        reply.map_err(|_| Stopping)
    }

    /// Releases the addresses of a key.
    pub async fn delete(&self, key: Key) -> Result<Reply, Stopping> {
        let id = self.id();
        let (answer, answered) = oneshot::channel();
        self.send(Message::Delete { id, key, answer })?;
        answered.await.map_err(|_| Stopping)
    }

    /// Releases every attachment of a network that is not listed; returns their number.
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

    /// Reads a consistent snapshot. The result is sent once everything in it is durable.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Snapshot<'_>) -> T + Send + 'static,
    ) -> Result<T, Stopping> {
        let (answer, answered) = oneshot::channel();
        self.send(Message::Read(Box::new(move |snapshot| {
            let seen = read(snapshot);
            Box::new(move || drop(answer.send(seen)))
        })))?;
        answered.await.map_err(|_| Stopping)
    }
}

/// Cancels a request when its client disconnects.
struct Waiting<'a> {
    handle: &'a DaemonHandle,
    id: Option<RequestId>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            // A stopped daemon has forgotten the request anyway.
            let _ended = self.handle.send(Message::Cancel(id));
        }
    }
}
