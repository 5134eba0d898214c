//! Watch requests: a stream of events, one JSON object per line.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::stream;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Api, Context},
    fault::{Cut, Fault, WatchTicket},
    handler::{read::wait_for, table},
    kind::ResourceType,
    negotiate::Format,
    options::{ListOptions, ReadVerb, version_syntax},
    reply::{BoxError, Payload, Reply, streamed},
    status::{ApiError, Outcome},
    store::{Delivery, EventKind, Stored, Subscription, WatchStart, event_frame},
    view,
};

/// Interval of bookmarks in an idle watch.
const BOOKMARK_INTERVAL: Duration = Duration::from_mins(1);
/// Time between the last bookmark and the end of a stream.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// Minimum duration of a stream without `timeoutSeconds`; the maximum is twice as long.
const SHORTEST_DEFAULT: Duration = Duration::from_mins(30);
/// Limit of `timeoutSeconds`, so that the deadline stays a valid `Instant`.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// Annotation of the bookmark that ends the initial state.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Opens a watch.
pub(crate) async fn watch(
    api: &Arc<Api>,
    context: &Context,
    kind: &Arc<ResourceType>,
) -> Outcome<Reply> {
    let negotiated = context.negotiated(kind)?;
    let mut options = ListOptions::read(
        &context.query,
        kind,
        &context.info.namespace,
        ReadVerb::Watch,
    )?;
    if !context.info.name.is_empty() {
        // The deprecated path /watch/.../name watches that one object.
        let name =
            weft_model::FieldSelector::parse(&format!("metadata.name={}", context.info.name))
                .map_err(|error| ApiError::bad_request(error.to_string()))?;
        options.filter.fields.extend(kind.fields.resolve(&name)?);
    }
    let version = match options.version.as_str() {
        "" => None,
        text => Some(text.parse::<u64>().map_err(|_| {
            let complaint = version_syntax(text);
            ApiError::untyped(format!(
                "resourceVersion: Invalid value: {text:?}: {complaint}"
            ))
        })?),
    };
    if let Some(Fault::WatchError(error)) = &context.interference.answer {
        return Ok(error_stream(&error.to_error()));
    }
    let start = match (options.send_initial_events, version) {
        (Some(true), version) => {
            if let Err(error) = wait_for(api, version.unwrap_or_default()).await {
                return Ok(error_stream(&error));
            }
            WatchStart::Present
        }
        (Some(false), None | Some(0)) => WatchStart::Now,
        (None, None | Some(0)) => WatchStart::Present,
        (_, Some(version)) => WatchStart::After(version),
    };
    let subscription = match api
        .store
        .watch(&kind.storage, options.filter.clone(), start)
    {
        Ok(subscription) => subscription,
        Err(too_old) => {
            let asked = version.unwrap_or_default();
            return Ok(error_stream(&ApiError::too_old_watch(
                asked,
                too_old.oldest,
            )));
        }
    };
    let include = match negotiated.format {
        Format::Table => table::Include::read(context)?,
        _ => table::Include::Metadata,
    };
    let now = Instant::now();
    let timeout = options.timeout.unwrap_or_else(|| {
        SHORTEST_DEFAULT + Duration::from_secs(api.random.below(SHORTEST_DEFAULT.as_secs()))
    });
    let deadline = now + timeout.min(LONGEST);
    let stream = WatchStream {
        last_sent: subscription.started_at,
        subscription,
        ticket: api.watches.open(context.info.clone()),
        shutdown: api.shutdown.clone(),
        api: api.clone(),
        kind: kind.clone(),
        format: negotiated.format,
        include,
        definitions: table::Definitions::Included,
        initial: if options.send_initial_events == Some(true) && options.bookmarks {
            Initial::SendingThenMark
        } else {
            Initial::Sending
        },
        timer: WatchTimer::new(now, deadline, options.bookmarks),
        end: End::NotYet,
    };
    let lines = stream::unfold(stream, |mut stream| async move {
        let line = stream.next().await?;
        Some((line, stream))
    });
    Ok(Reply::new(StatusCode::OK, Payload::Stream(streamed(lines))))
}

/// Timer of bookmarks and of the end of a watch. Events do not reset it.
struct WatchTimer {
    sleep: Pin<Box<Sleep>>,
    deadline: Instant,
    bookmarks: bool,
}

impl WatchTimer {
    fn new(now: Instant, deadline: Instant, bookmarks: bool) -> Self {
        let mut timer = Self {
            sleep: Box::pin(sleep_until(deadline)),
            deadline,
            bookmarks,
        };
        timer.set(now);
        timer
    }

    /// Sets the timer to the next bookmark or the deadline, whichever is first.
    fn set(&mut self, now: Instant) {
        let regular = now + BOOKMARK_INTERVAL;
        let bookmark = match self.deadline.checked_sub(LAST_BOOKMARK) {
            Some(last) if last > now && last < regular => last,
            _ => regular,
        };
        let next = if self.bookmarks {
            bookmark.min(self.deadline)
        } else {
            self.deadline
        };
        self.sleep.as_mut().reset(next);
    }

    /// Waits for the timer and sets it again.
    async fn fired(&mut self) -> Wake {
        self.sleep.as_mut().await;
        let now = Instant::now();
        if now >= self.deadline {
            return Wake::Deadline;
        }
        self.set(now);
        Wake::Bookmark
    }
}

fn error_stream(error: &ApiError) -> Reply {
    let line = event_frame("ERROR", error.status().to_string().as_bytes());
    let body = streamed(stream::iter([Ok(line)]));
    Reply::new(StatusCode::OK, Payload::Stream(body))
}

/// One open watch.
struct WatchStream {
    subscription: Subscription,
    ticket: WatchTicket,
    shutdown: CancellationToken,
    api: Arc<Api>,
    kind: Arc<ResourceType>,
    format: Format,
    include: table::Include,
    /// Of the next Table.
    definitions: table::Definitions,
    initial: Initial,
    timer: WatchTimer,
    /// The newest resource version sent.
    last_sent: u64,
    end: End,
}

/// Progress of sending the initial state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Initial {
    Sending,
    /// A bookmark marks its end.
    SendingThenMark,
    Done,
}

/// The purpose of a bookmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bookmark {
    /// Ends the initial state; has an annotation.
    InitialEventsEnd,
    /// Reports the version that an idle watch has reached.
    Periodic,
}

/// State of the end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    NotYet,
    /// Half a line was sent; an error follows.
    Broken,
    Over,
}

/// The reason why a stream continues.
enum Wake {
    Delivery(Option<Delivery>),
    Bookmark,
    Deadline,
    Shutdown,
    Control,
}

impl WatchStream {
    /// The next line, or the end.
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            if self.end == End::Over {
                return None;
            }
            let control = self.ticket.control.borrow_and_update().clone();
            match control.cut {
                Some(Cut::Clean) => return None,
                Some(Cut::MidFrame) => return Some(self.broken_line()),
                None => {}
            }
            if control.stalls > 0 {
                tokio::select! {
                    changed = self.ticket.control.changed() => changed.ok()?,
                    () = self.shutdown.cancelled() => return None,
                }
                continue;
            }
            if let Some(status) = control.error {
                self.end = End::Over;
                return Some(Ok(event_frame("ERROR", status.to_string().as_bytes())));
            }
            if self.initial != Initial::Done {
                if let Some(delivery) = self.subscription.next_initial() {
                    return Some(Ok(self.line(&delivery)));
                }
                if std::mem::replace(&mut self.initial, Initial::Done) == Initial::SendingThenMark {
                    let version = self.subscription.started_at;
                    return Some(Ok(self.bookmark(version, Bookmark::InitialEventsEnd)));
                }
            }
            match self.wake().await {
                Wake::Delivery(delivery) => return Some(Ok(self.line(&delivery?))),
                Wake::Bookmark => {
                    let idle = self.subscription.idle_version();
                    if let Some(version) = idle.filter(|version| *version > self.last_sent) {
                        return Some(Ok(self.bookmark(version, Bookmark::Periodic)));
                    }
                }
                Wake::Control => {}
                Wake::Deadline | Wake::Shutdown => return None,
            }
        }
    }

    async fn wake(&mut self) -> Wake {
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => Wake::Shutdown,
            Ok(()) = self.ticket.control.changed() => Wake::Control,
            delivery = self.subscription.next_live() => Wake::Delivery(delivery),
            wake = self.timer.fired() => wake,
        }
    }

    /// Sends half a line, then an error, as a broken connection would.
    fn broken_line(&mut self) -> Result<Bytes, BoxError> {
        if std::mem::replace(&mut self.end, End::Broken) == End::Broken {
            self.end = End::Over;
            return Err(Box::new(crate::api::Disconnected));
        }
        Ok(Bytes::from_static(
            b"{\"type\":\"MODIFIED\",\"object\":{\"kind\":",
        ))
    }

    fn line(&mut self, delivery: &Delivery) -> Bytes {
        let (event, stored) = match delivery {
            Delivery::Present(stored) => {
                self.last_sent = self.last_sent.max(stored.version);
                (EventKind::Added, stored.clone())
            }
            Delivery::Change(event, change) => {
                self.last_sent = self.last_sent.max(change.version);
                let stored = change.object(*event);
                let plain = self.format == Format::Full
                    && stored.bytes.starts_with(self.kind.prefix.as_bytes());
                if plain {
                    return change.frame(*event);
                }
                (*event, stored)
            }
        };
        let definitions = self.take_definitions();
        event_frame(event.name(), &self.object(&stored, definitions))
    }

    fn take_definitions(&mut self) -> table::Definitions {
        std::mem::replace(&mut self.definitions, table::Definitions::Omitted)
    }

    fn object(&self, stored: &Stored, definitions: table::Definitions) -> Bytes {
        match self.format {
            Format::Full => view::full(&self.kind, stored),
            Format::Metadata | Format::MetadataList => view::metadata(stored).to_string().into(),
            Format::Table => {
                let rows = table::rows(
                    &self.api,
                    &self.kind,
                    std::slice::from_ref(stored),
                    self.include,
                );
                let metadata = json!({"resourceVersion": stored.version.to_string()});
                table::table(&self.kind, &metadata, rows, definitions)
                    .to_string()
                    .into()
            }
        }
    }

    /// A BOOKMARK event: an object with a resource version and nothing else.
    fn bookmark(&mut self, version: u64, bookmark: Bookmark) -> Bytes {
        self.last_sent = self.last_sent.max(version);
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if bookmark == Bookmark::InitialEventsEnd {
            metadata["annotations"] = json!({INITIAL_EVENTS_END: "true"});
        }
        let definitions = self.take_definitions();
        let object: Value = match self.format {
            Format::Full => json!({
                "kind": self.kind.kind,
                "apiVersion": self.kind.api_version(),
                "metadata": metadata,
            }),
            Format::Metadata | Format::MetadataList => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
            }),
            Format::Table => {
                let marker = table::bookmark_row(&self.api, &self.kind, &metadata, self.include);
                let shown = json!({"resourceVersion": version.to_string()});
                table::table(&self.kind, &shown, vec![marker], definitions)
            }
        };
        event_frame("BOOKMARK", object.to_string().as_bytes())
    }
}
