//! The LIST/WATCH loop that keeps a store in step with the server.
//!
//! [`Step`] is the next request, a list or a watch; `recover` chooses it after a failure. A relist
//! never replaces a newer object by an older one, unless the server's storage itself was restored
//! to an earlier state.

use std::{
    future::pending,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use kube::Client;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use weft_model::is_older_version;

use super::{
    InformerKey, InformerState, ListMode, Shared, UndecodableObject, WaitReason, WatchSpec,
    hub::Applied, spec::PAGE,
};
use crate::{
    Object, WatchError,
    backoff::Backoff,
    wire::{
        Collection, Decoded, Lines, ListReader, ListStart, Verdict, WatchEvent, decode_event, open,
    },
};

/// Called with every failure of a list or watch.
pub(crate) type WatchErrorHook = Arc<dyn Fn(&InformerKey, &WatchError) + Send + Sync>;

/// Capabilities of a server found at run time, shared by all informers that talk to it.
#[derive(Debug, Default)]
pub(crate) struct ServerTraits {
    no_streaming_lists: AtomicBool,
    /// Streaming lists in a row without an end mark: servers before 1.27 ignore the parameter and
    /// simply watch.
    unmarked: AtomicU32,
    /// Wakes informers that wait because the server could not be reached: it has answered another.
    answered: Notify,
}

/// A streaming list that is silent for this long is taken to have no end mark.
const END_MARK_PATIENCE: Duration = Duration::from_secs(10);

/// A watch that ends sooner than this would spin if it were reopened at once.
const SHORT_WATCH: Duration = Duration::from_secs(1);

pub(crate) struct Reflector<K: Object> {
    shared: Arc<Shared<K>>,
    client: Client,
    collection: Collection,
    spec: WatchSpec,
    server: Arc<ServerTraits>,
    hook: Option<WatchErrorHook>,
    backoff: Backoff,
    /// Back-off of new lists after an expired version. It is apart because such an answer comes from
    /// a server that works, usually right after one that did not.
    relist_backoff: Backoff,
    contact: Contact,
    known: String,
    /// The server said that the known version lies beyond its present one: it lags, or its storage
    /// went back in time, as after restoring a backup.
    beyond_current: bool,
    /// A streaming list failed; the next list is paged.
    in_pages: bool,
    /// Pages expired before the last one was read: the next list is unpaged.
    unlimited: bool,
    /// Listed objects that only a state older than the known one can contain; they are held back
    /// until the version of the list is known. Almost always empty.
    suspects: Vec<(K, usize)>,
}

/// The result of the last request, as far as the connection is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contact {
    Reached,
    /// No server was found.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// List the newest state, asking the storage.
    ListNewest,
    /// List what the server has cached, once it has reached the known version.
    ListNotOlder,
    Watch,
}

impl<K: Object> Reflector<K> {
    pub(crate) fn new(
        shared: Arc<Shared<K>>,
        client: Client,
        spec: WatchSpec,
        server: Arc<ServerTraits>,
        hook: Option<WatchErrorHook>,
    ) -> Self {
        let key = &shared.key;
        let collection = Collection::new(
            &key.kind,
            key.namespace.as_deref(),
            key.labels.as_deref(),
            key.fields.as_deref(),
        );
        Self {
            shared,
            client,
            collection,
            spec,
            server,
            hook,
            backoff: Backoff::for_watches(),
            relist_backoff: Backoff::for_watches(),
            contact: Contact::Reached,
            known: String::new(),
            beyond_current: false,
            in_pages: false,
            unlimited: false,
            suspects: Vec::new(),
        }
    }

    /// Runs until dropped.
    pub(crate) async fn run(mut self) {
        let mut step = Step::ListNewest;
        // A streaming list goes on as the watch, on the same connection.
        let mut connection: Option<Lines> = None;
        loop {
            let streaming = self.lists_by_streaming();
            let result = match step {
                Step::Watch => self.watch(connection.take()).await,
                list if streaming => self
                    .streaming_list(list)
                    .await
                    .map(|lines| connection = Some(lines)),
                list => self.paged_list(list).await,
            };
            step = match result {
                Ok(()) => Step::Watch,
                Err(error) => self.recover(step, streaming, &error).await,
            };
        }
    }

    fn lists_by_streaming(&self) -> bool {
        self.spec.list == ListMode::Auto
            && !self.in_pages
            && !self.server.no_streaming_lists.load(Ordering::Relaxed)
    }

    /// Chooses the next step after a failure and waits for the back-off.
    async fn recover(&mut self, step: Step, streaming: bool, error: &WatchError) -> Step {
        self.suspects = Vec::new();
        let verdict = error.verdict();
        if step != Step::Watch && streaming && self.falls_back(verdict, error) {
            return step;
        }
        let since = self.shared.note_error(error.to_string());
        self.call_hook(error);
        let next = match (verdict, error) {
            (Verdict::Expired, _) | (_, WatchError::Stale { .. }) => Step::ListNotOlder,
            (Verdict::TooLarge, _) => {
                self.beyond_current = true;
                Step::ListNewest
            }
            (Verdict::Missing, _) => Step::ListNewest,
            _ => step,
        };
        let state = match verdict {
            Verdict::Missing => InformerState::Waiting(WaitReason::KindMissing),
            _ if self.shared.has_synced() => InformerState::Retrying {
                since,
                error: error.clone(),
            },
            Verdict::Forbidden => InformerState::Waiting(WaitReason::Forbidden),
            Verdict::Refused => InformerState::Waiting(WaitReason::Refused),
            _ => InformerState::Waiting(WaitReason::Unreachable),
        };
        let backoff = match verdict {
            Verdict::Expired => &mut self.relist_backoff,
            _ => &mut self.backoff,
        };
        let delay = backoff
            .next(fastrand::f64())
            .max(error.retry_after().unwrap_or_default());
        tracing::warn!(informer = %self.shared.key, %error, state = state.name(), ?delay, "cannot follow the server");
        self.shared.set_state(state);
        // Discards an older hint: only one that comes during the wait may cut Retry-After short.
        let _outdated = self.shared.recheck.notified().now_or_never();
        let server_answers = async {
            match self.contact {
                Contact::Failed => self.server.answered.notified().await,
                // A watch that ends at once is not tried again for another's sake.
                Contact::Reached => pending().await,
            }
        };
        tokio::select! {
            () = sleep(delay) => {}
            () = self.shared.recheck.notified() => {}
            () = server_answers => {}
        }
        next
    }

    /// The hook is the user's code: its panic must not end the loop.
    fn call_hook(&self, error: &WatchError) {
        let Some(hook) = &self.hook else { return };
        if catch_unwind(AssertUnwindSafe(|| hook(&self.shared.key, error))).is_err() {
            tracing::error!(informer = %self.shared.key, "watch error hook panicked");
        }
    }

    /// Returns whether the failure may mean that the server has no streaming lists. Then pages are
    /// requested at once; their success is the proof (another fault would hit both).
    fn falls_back(&mut self, verdict: Verdict, error: &WatchError) -> bool {
        let server = &self.server;
        let unmarked = matches!(error, WatchError::Unmarked)
            && server.unmarked.fetch_add(1, Ordering::Relaxed) >= 1;
        // A server on an old etcd accepts the request and answers with an internal error.
        let broken =
            matches!(error, WatchError::Api { status, method: "watch", .. } if status.code == 500);
        if verdict == Verdict::Refused || unmarked || broken {
            tracing::info!(%error, "streaming list failed, falling back to a paged list");
            self.in_pages = true;
            return true;
        }
        false
    }

    async fn streaming_list(&mut self, step: Step) -> Result<Lines, WatchError> {
        self.begin_list(step);
        let known = self.known.clone();
        let uri = self
            .collection
            .streaming_list(self.start(step, &known), watch_timeout());
        let mut lines = Lines::new(self.open("watch", &uri).await?);
        let patience = END_MARK_PATIENCE.min(self.spec.idle_timeout);
        loop {
            let line = match timeout(patience, lines.next()).await {
                Ok(line) => line?,
                Err(_) => return Err(WatchError::Unmarked),
            };
            let Some(line) = line else {
                return Err(WatchError::Connection("streaming list ended early".into()));
            };
            match decode_event(line, self.collection.path())? {
                WatchEvent::Bookmark {
                    version,
                    initial_events_end: true,
                } => {
                    self.server.unmarked.store(0, Ordering::Relaxed);
                    self.finish_list(step, &version)?;
                    return Ok(lines);
                }
                WatchEvent::Bookmark { .. } => {}
                WatchEvent::Applied(object) => self.list_item(step, object, line.len()),
                WatchEvent::Deleted(object) => self.delete(object),
                WatchEvent::Failed(error) => return Err(error),
            }
        }
    }

    async fn paged_list(&mut self, step: Step) -> Result<(), WatchError> {
        let limit = match self.spec.list {
            ListMode::Auto => Some(PAGE),
            ListMode::Paged(limit) => Some(limit),
            ListMode::FromCache => None,
        }
        .filter(|_| !self.unlimited);
        let known = self.known.clone();
        let mut token: Option<String> = None;
        let mut version: Option<String> = None;
        self.begin_list(step);
        loop {
            let start = token
                .as_deref()
                .map_or(self.start(step, &known), ListStart::Continue);
            let uri = self.collection.list(start, limit);
            let opened = self.open("list", &uri).await;
            if let (Some(_), Err(error)) = (&token, &opened) {
                self.unlimited |= error.verdict() == Verdict::Expired;
            }
            let mut reader = ListReader::new(opened?);
            while let Some((object, size)) = self.idle(reader.next(&self.shared.key.kind)).await? {
                self.list_item(step, object, size);
            }
            if reader.resource_version().is_empty() {
                return Err(WatchError::Protocol("list has no resourceVersion".into()));
            }
            // The first page's version is the one to watch from: a continuation at a newer state
            // only makes the watch repeat what is already known.
            version.get_or_insert_with(|| reader.resource_version().to_owned());
            token = reader.continue_token().map(str::to_owned);
            if token.is_none() {
                return self.finish_list(step, &version.unwrap_or_default());
            }
        }
    }

    fn start<'a>(&self, step: Step, known: &'a str) -> ListStart<'a> {
        match step {
            Step::ListNotOlder if !known.is_empty() => ListStart::NotOlderThan(known),
            Step::ListNewest if self.spec.list == ListMode::FromCache && known.is_empty() => {
                ListStart::AnyCached
            }
            _ => ListStart::Newest,
        }
    }

    fn begin_list(&mut self, step: Step) {
        self.shared.note_list();
        self.shared.set_state(InformerState::Listing {
            relist: self.shared.has_synced(),
        });
        let accept_older = self.accepts_older(step);
        self.shared.write(|hub| {
            hub.begin_list();
            hub.accept_older_versions(accept_older);
        });
    }

    /// The server said that the known version lies beyond its present one, and is now asked for the
    /// newest state of its storage: that state replaces the store, whatever its version.
    fn accepts_older(&self, step: Step) -> bool {
        step == Step::ListNewest && self.beyond_current
    }

    fn list_item(&mut self, step: Step, object: Decoded<K>, size: usize) {
        match object {
            Decoded::Object(object) if self.is_suspect(step, &object) => {
                self.suspects.push((object, size));
            }
            object => self.apply(object, size),
        }
    }

    /// Everything up to the known version has been seen, so an object of such a version that is
    /// not in the store was deleted since: the list may be older than the store.
    fn is_suspect(&self, step: Step, object: &K) -> bool {
        !self.known.is_empty()
            && !self.accepts_older(step)
            && !is_older_version(&self.known, object.resource_version())
            && !self.shared.write(|hub| hub.knows(&object.key()))
    }

    /// Checks the age of a complete list, then removes what it did not mention.
    fn finish_list(&mut self, step: Step, version: &str) -> Result<(), WatchError> {
        if is_older_version(version, &self.known) {
            if !self.accepts_older(step) {
                let known = self.known.clone();
                return Err(WatchError::Stale {
                    listed: version.to_owned(),
                    known,
                });
            }
            tracing::warn!(informer = %self.shared.key, known = %self.known, listed = version,
                "server storage went back to an older version, following it");
        }
        for (object, size) in std::mem::take(&mut self.suspects) {
            self.apply(Decoded::Object(object), size);
        }
        self.shared.write(|hub| {
            hub.finish_list();
            hub.accept_older_versions(false);
        });
        self.beyond_current = false;
        self.unlimited = false;
        if std::mem::take(&mut self.in_pages) {
            self.server
                .no_streaming_lists
                .store(true, Ordering::Relaxed);
        }
        version.clone_into(&mut self.known);
        self.shared.note_version(version);
        self.shared.note_success();
        Ok(())
    }

    /// Watches on a connection that is open already, or on a new one.
    async fn watch(&mut self, connection: Option<Lines>) -> Result<(), WatchError> {
        let lines = if let Some(lines) = connection {
            lines
        } else {
            let uri = self.collection.watch(&self.known, watch_timeout());
            Lines::new(self.open("watch", &uri).await?)
        };
        self.follow(lines).await
    }

    /// Applies events until the stream ends, cleanly or not.
    async fn follow(&mut self, mut lines: Lines) -> Result<(), WatchError> {
        self.shared.note_watch();
        self.shared.note_success();
        let opened = Instant::now();
        loop {
            // Silence is not a failure: a quiet kind sends nothing, and servers send bookmarks at
            // about the idle limit. A new watch from the same version costs little and shows
            // whether the peer is dead.
            let Ok(line) = timeout(self.spec.idle_timeout, lines.next()).await else {
                return Ok(());
            };
            let Some(line) = line? else { break };
            let received = Instant::now();
            match decode_event(line, self.collection.path())? {
                WatchEvent::Applied(object) => {
                    self.move_to(object.version());
                    self.apply(object, line.len());
                }
                WatchEvent::Deleted(object) => {
                    self.move_to(object.version());
                    self.delete(object);
                }
                WatchEvent::Bookmark { version, .. } => self.move_to(&version),
                WatchEvent::Failed(error) => return Err(error),
            }
            self.shared
                .latency
                .observe(received.elapsed().as_secs_f64());
        }
        if opened.elapsed() < SHORT_WATCH {
            return Err(WatchError::Connection("watch ended within a second".into()));
        }
        Ok(())
    }

    /// Moves the version to resume from. Never backwards: a lagging server may repeat itself.
    fn move_to(&mut self, version: &str) {
        if !version.is_empty() && !is_older_version(version, &self.known) {
            version.clone_into(&mut self.known);
        }
        self.shared.note_version(&self.known);
    }

    fn apply(&mut self, object: Decoded<K>, size: usize) {
        match object {
            Decoded::Object(object) => {
                if self.shared.write(|hub| hub.apply(object, size)) == Applied::Stale {
                    tracing::debug!(informer = %self.shared.key, "older object version skipped");
                }
            }
            Decoded::Undecodable {
                key,
                version,
                error,
            } => {
                tracing::warn!(informer = %self.shared.key, %key, %error, "object cannot be decoded");
                let object = UndecodableObject {
                    key,
                    resource_version: version,
                    error,
                    deleted: false,
                };
                self.shared.write(|hub| hub.mark_undecodable(object));
            }
        }
    }

    fn delete(&mut self, object: Decoded<K>) {
        match object {
            Decoded::Object(object) => {
                let key = object.key();
                self.shared.write(|hub| hub.delete(&key, Some(object)));
            }
            Decoded::Undecodable { key, .. } => {
                self.shared.write(|hub| hub.delete(&key, None));
            }
        }
    }

    async fn open(
        &mut self,
        method: &'static str,
        uri: &str,
    ) -> Result<kube::client::Body, WatchError> {
        let opened = self.idle(open(&self.client, method, uri, None)).await;
        self.contact = match &opened {
            Err(WatchError::Connection(_)) => Contact::Failed,
            _ => Contact::Reached,
        };
        if opened.is_ok() {
            self.server.answered.notify_waiters();
        }
        opened
    }

    /// Bounds a wait for the server: a dead peer never answers and never closes.
    async fn idle<T>(
        &self,
        wait: impl Future<Output = Result<T, WatchError>>,
    ) -> Result<T, WatchError> {
        let limit = self.spec.idle_timeout;
        timeout(limit, wait)
            .await
            .unwrap_or(Err(WatchError::Idle(limit)))
    }
}

/// Spread over five minutes, so that informers that started together do not reconnect together.
fn watch_timeout() -> Duration {
    Duration::from_secs(fastrand::u64(300..600))
}
