//! The connection pool of one or more listeners: connection count, and idle connections by age.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{Limits, descriptors::descriptor_limit};

/// The connections that one or more listeners share, up to a limit.
///
/// When it is reached, the connection that has been idle for the longest time is closed in favour
/// of a new one. A connection is idle while the server waits for its client: for a request, for
/// the rest of a body, or for the client to take a response. If the server works on a request of
/// every connection, new ones wait to be accepted.
#[derive(Clone)]
pub struct ConnectionPool {
    pool: Arc<Pool>,
}

struct Pool {
    name: &'static str,
    limits: Limits,
    capacity: usize,
    permits: Arc<Semaphore>,
    idle: Mutex<IdleConnections>,
    became_idle: Notify,
    evicted: AtomicU64,
    timed_out: AtomicU64,
    /// The last report of a full pool, since a flood would fill the log as well.
    reported: Mutex<Option<Instant>>,
}

/// Connections whose client has to do something, the longest idle first.
#[derive(Default)]
struct IdleConnections {
    next: u64,
    by_turn: BTreeMap<u64, CancellationToken>,
}

/// Figures of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Connections that may be open at once.
    pub capacity: usize,
    /// Connections that are open now.
    pub open: usize,
    /// Idle connections closed in favour of new ones, so far.
    pub evicted: u64,
    /// Connections closed because a time limit was over, so far.
    pub timed_out: u64,
}

/// Between two reports of a full pool.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

impl ConnectionPool {
    /// A pool without connections; the name appears in logs.
    pub fn new(name: &'static str, limits: Limits) -> Self {
        let capacity = limits
            .capacity(descriptor_limit())
            .min(Semaphore::MAX_PERMITS);
        Self {
            pool: Arc::new(Pool {
                name,
                limits,
                capacity,
                permits: Arc::new(Semaphore::new(capacity)),
                idle: Mutex::default(),
                became_idle: Notify::new(),
                evicted: AtomicU64::new(0),
                timed_out: AtomicU64::new(0),
                reported: Mutex::new(None),
            }),
        }
    }

    /// The name of its listeners in logs.
    pub fn name(&self) -> &'static str {
        self.pool.name
    }

    /// The limits that each connection has.
    pub fn limits(&self) -> &Limits {
        &self.pool.limits
    }

    /// Current size, and connections closed so far.
    pub fn stats(&self) -> PoolStats {
        let pool = &self.pool;
        PoolStats {
            capacity: pool.capacity,
            open: pool.capacity - pool.permits.available_permits(),
            evicted: pool.evicted.load(Relaxed),
            timed_out: pool.timed_out.load(Relaxed),
        }
    }

    /// Waits for room and takes it. In a full pool an idle connection makes room.
    pub(crate) async fn open(&self, stop: CancellationToken) -> Connection {
        let permit = self.permit().await;
        let connection = Connection {
            pool: self.pool.clone(),
            evicted: CancellationToken::new(),
            stop,
            activity: Arc::new(Mutex::new(Activity {
                requests: 0,
                waiting: 0,
                turn: None,
                since: Instant::now(),
                served: false,
                closed: false,
            })),
            _permit: permit,
        };
        let mut activity = connection.activity.lock();
        self.pool.place(&mut activity, &connection.evicted);
        drop(activity);
        connection
    }

    async fn permit(&self) -> OwnedSemaphorePermit {
        let pool = &self.pool;
        loop {
            // Before the look at the idle ones, so that none is missed that becomes idle after it.
            let became_idle = pool.became_idle.notified();
            if let Ok(permit) = pool.permits.clone().try_acquire_owned() {
                return permit;
            }
            if self.evict() {
                // Its task ends soon; another one may end sooner, which is as good.
                if let Ok(permit) = pool.permits.clone().acquire_owned().await {
                    return permit;
                }
            }
            tokio::select! {
                () = became_idle => {}
                permit = pool.permits.clone().acquire_owned() => if let Ok(permit) = permit {
                    return permit;
                }
            }
        }
    }

    /// Closes the connection that has been idle for the longest time, if there is one.
    pub(crate) fn evict(&self) -> bool {
        let longest = self.pool.idle.lock().by_turn.pop_first();
        let Some((_, evicted)) = longest else {
            self.report_full("new connections wait");
            return false;
        };
        self.report_full("idle connections are closed");
        evicted.cancel();
        self.pool.evicted.fetch_add(1, Relaxed);
        true
    }

    /// Logs that the pool is full, at most once in an interval.
    fn report_full(&self, consequence: &'static str) {
        let now = Instant::now();
        let mut reported = self.pool.reported.lock();
        if reported.is_some_and(|last| now.duration_since(last) < REPORT_INTERVAL) {
            return;
        }
        *reported = Some(now);
        let PoolStats {
            capacity, evicted, ..
        } = self.stats();
        let listener = self.pool.name;
        tracing::warn!(
            listener,
            capacity,
            evicted,
            consequence,
            "connection limit reached"
        );
    }
}

impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ConnectionPool");
        debug
            .field("name", &self.name())
            .field("stats", &self.stats());
        debug.finish_non_exhaustive()
    }
}

/// An accepted connection's place in its pool; dropping it gives the place back.
pub struct Connection {
    pool: Arc<Pool>,
    evicted: CancellationToken,
    pub(crate) stop: CancellationToken,
    activity: Arc<Mutex<Activity>>,
    _permit: OwnedSemaphorePermit,
}

struct Activity {
    /// Requests in progress; HTTP/2 has several at once.
    requests: usize,
    /// Those of them that wait for the client: to send the rest of a body, or to take the rest of
    /// a response.
    waiting: usize,
    /// The place among the idle ones, unless a request is being worked on.
    turn: Option<u64>,
    /// The last time at which it became idle, or at which its client sent or took something.
    since: Instant,
    /// At least one request was received.
    served: bool,
    closed: bool,
}

impl Connection {
    pub(crate) fn limits(&self) -> &Limits {
        &self.pool.limits
    }

    /// Resolves when another connection needs the place.
    pub(crate) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    pub(crate) fn tracker(&self) -> RequestTracker {
        RequestTracker {
            pool: self.pool.clone(),
            evicted: self.evicted.clone(),
            activity: self.activity.clone(),
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.activity.lock().requests > 0
    }

    /// Time of the next idle check; `None` if it has been idle for too long.
    pub(crate) fn next_idle_check(&self, now: Instant) -> Option<Instant> {
        let limits = &self.pool.limits;
        let activity = self.activity.lock();
        let limit = if activity.waiting < activity.requests {
            return Some(now + limits.header.min(limits.idle));
        } else if activity.requests > 0 {
            limits.stall
        } else if activity.served {
            limits.idle
        } else {
            limits.header
        };
        let deadline = activity.since + limit;
        (now < deadline).then_some(deadline)
    }

    /// Resolves when the connection has to end: its listener stops, or another one needs its place.
    pub async fn has_to_end(&self) {
        tokio::select! {
            () = self.evicted() => {}
            () = self.stop.cancelled() => {}
        }
    }

    pub(crate) fn count_timeout(&self) {
        self.pool.timed_out.fetch_add(1, Relaxed);
    }

    /// Runs a handshake, for instance of TLS, within the header limit. `None` means that the
    /// connection is to be dropped: it failed, took too long, or its place is needed.
    pub async fn handshake<T, E: fmt::Display>(
        &self,
        handshake: impl Future<Output = Result<T, E>>,
    ) -> Option<T> {
        tokio::select! {
            () = self.evicted() => None,
            () = self.stop.cancelled() => None,
            outcome = timeout(self.pool.limits.header, handshake) => match outcome {
                Ok(Ok(stream)) => Some(stream),
                Ok(Err(error)) => {
                    tracing::debug!(listener = self.pool.name, %error, "handshake failed");
                    None
                }
                Err(_) => {
                    self.count_timeout();
                    None
                }
            },
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut activity = self.activity.lock();
        // The body of a response may outlive the connection that it was for.
        activity.closed = true;
        self.pool.remove_idle(&mut activity);
    }
}

impl Pool {
    /// Puts a connection at the end of the idle ones, or takes it out, as its requests want it.
    fn place(&self, activity: &mut Activity, evicted: &CancellationToken) {
        self.remove_idle(activity);
        if activity.closed || activity.waiting < activity.requests {
            return;
        }
        activity.since = Instant::now();
        let mut idle = self.idle.lock();
        idle.next += 1;
        let turn = idle.next;
        idle.by_turn.insert(turn, evicted.clone());
        activity.turn = Some(turn);
        drop(idle);
        self.became_idle.notify_one();
    }

    fn remove_idle(&self, activity: &mut Activity) {
        if let Some(turn) = activity.turn.take() {
            self.idle.lock().by_turn.remove(&turn);
        }
    }
}

/// Marks a connection's requests, so that it is idle without any.
#[derive(Clone)]
pub(crate) struct RequestTracker {
    pool: Arc<Pool>,
    evicted: CancellationToken,
    activity: Arc<Mutex<Activity>>,
}

impl RequestTracker {
    /// Begins a request, which lasts until the result is dropped.
    pub(crate) fn begin(&self) -> RequestInProgress {
        let mut activity = self.activity.lock();
        activity.requests += 1;
        activity.served = true;
        self.pool.place(&mut activity, &self.evicted);
        RequestInProgress(RequestProgress {
            tracker: self.clone(),
            phase: Arc::new(Mutex::new(Phase::Working)),
        })
    }
}

/// Party that a request in progress waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The server: it is being worked on, or has nothing to send yet.
    Working,
    /// The client.
    Waiting,
    Ended,
}

/// Reports what a request waits for.
#[derive(Clone)]
pub(crate) struct RequestProgress {
    tracker: RequestTracker,
    phase: Arc<Mutex<Phase>>,
}

impl RequestProgress {
    /// The client has to send or to take something, just after it did so the last time.
    pub(crate) fn waits_for_client(&self) {
        self.enter(Phase::Waiting);
    }

    /// The server goes on without the client.
    pub(crate) fn works(&self) {
        self.enter(Phase::Working);
    }

    fn enter(&self, next: Phase) {
        let mut phase = self.phase.lock();
        // A body may be polled after the response has ended.
        if *phase == Phase::Ended || (*phase, next) == (Phase::Working, Phase::Working) {
            return;
        }
        let RequestTracker {
            pool,
            evicted,
            activity,
        } = &self.tracker;
        let mut activity = activity.lock();
        activity.waiting -= usize::from(*phase == Phase::Waiting);
        activity.waiting += usize::from(next == Phase::Waiting);
        activity.requests -= usize::from(next == Phase::Ended);
        *phase = next;
        pool.place(&mut activity, evicted);
    }
}

/// A request in progress: from the end of its header to the end of its response.
pub(crate) struct RequestInProgress(RequestProgress);

impl RequestInProgress {
    pub(crate) fn progress(&self) -> &RequestProgress {
        &self.0
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        self.0.enter(Phase::Ended);
    }
}
