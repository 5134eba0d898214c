//! A server that sends prepared bytes: pages of a list, and a watch.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use bytes::Bytes;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use http::{Request, Response};
use http_body_util::StreamBody;
use kube::{Client, client::Body};
use tokio::sync::watch;

use crate::pods::pod_json;

/// Objects of a page, as all subjects request.
const PAGE: usize = 500;

/// Size of a chunk: at most one TLS record.
const CHUNK: usize = 16 << 10;

type Item = Result<http_body::Frame<Bytes>, std::io::Error>;
type Streamed = StreamBody<BoxStream<'static, Item>>;

#[derive(Clone)]
pub(crate) struct Server(Arc<State>);

struct State {
    pages: Vec<Bytes>,
    events: Bytes,
    lists: AtomicUsize,
    open_watches: AtomicUsize,
    expired: watch::Sender<usize>,
}

impl Server {
    /// A list of `count` Pods.
    pub(crate) fn with_pods(count: usize) -> Self {
        let indexes: Vec<usize> = (0..count).collect();
        let last = count.div_ceil(PAGE).saturating_sub(1);
        let pages = indexes.chunks(PAGE).enumerate().map(|(page, indexes)| {
            let items: Vec<String> = indexes.iter().map(|index| pod_json(*index, 1000)).collect();
            let token = if page == last {
                String::new()
            } else {
                (page + 1).to_string()
            };
            let metadata = format!(r#"{{"resourceVersion":"1000","continue":"{token}"}}"#);
            Bytes::from(format!(
                r#"{{"kind":"PodList","apiVersion":"v1","metadata":{metadata},"items":[{}]}}"#,
                items.join(",")
            ))
        });
        Self(Arc::new(State {
            pages: pages.collect(),
            events: Bytes::new(),
            lists: AtomicUsize::new(0),
            open_watches: AtomicUsize::new(0),
            expired: watch::Sender::new(0),
        }))
    }

    /// A watch that begins with `count` changes of the first thousand Pods, the last one of
    /// Pod 0.
    pub(crate) fn with_events(self, count: usize) -> Self {
        let mut lines = String::new();
        for event in 1..=count {
            let index = if event == count { 0 } else { 1 + event % 999 };
            lines.push_str(r#"{"type":"MODIFIED","object":"#);
            lines.push_str(&pod_json(index, 1000 + event));
            lines.push_str("}\n");
        }
        let state = State {
            pages: self.0.pages.clone(),
            events: Bytes::from(lines),
            lists: AtomicUsize::new(0),
            open_watches: AtomicUsize::new(0),
            expired: watch::Sender::new(0),
        };
        Self(Arc::new(state))
    }

    pub(crate) fn lists(&self) -> usize {
        self.0.lists.load(SeqCst)
    }

    pub(crate) fn open_watches(&self) -> usize {
        self.0.open_watches.load(SeqCst)
    }

    /// Ends the open watches with an expired version, so that clients list again.
    pub(crate) fn expire_watches(&self) {
        self.0.expired.send_modify(|times| *times += 1);
    }

    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, std::io::Error>(server.answer(&request)) }
        });
        Client::new(service, "default")
    }

    fn answer(&self, request: &Request<Body>) -> Response<Streamed> {
        let query = request.uri().query().unwrap_or_default();
        let value = |name: &str| {
            query
                .split('&')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        if value("watch").is_some() {
            return Response::new(self.watch());
        }
        let page: usize = value("continue")
            .and_then(|token| token.parse().ok())
            .unwrap_or(0);
        if page == 0 {
            self.0.lists.fetch_add(1, SeqCst);
        }
        let page = self.0.pages.get(page).cloned().unwrap_or_default();
        Response::new(StreamBody::new(stream::iter(chunks(page)).boxed()))
    }

    fn watch(&self) -> Streamed {
        let open = OpenWatch::new(self.0.clone());
        let mut expired = self.0.expired.subscribe();
        let end = stream::once(async move {
            let _open = open;
            if expired.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            let error =
                r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}"#;
            Ok(http_body::Frame::data(Bytes::from(format!("{error}\n"))))
        });
        let events = stream::iter(chunks(self.0.events.clone()));
        StreamBody::new(events.chain(end).boxed())
    }
}

fn chunks(mut bytes: Bytes) -> impl Iterator<Item = Item> {
    std::iter::from_fn(move || {
        let size = CHUNK.min(bytes.len());
        (size > 0).then(|| Ok(http_body::Frame::data(bytes.split_to(size))))
    })
}

/// Counts an open watch until its stream is dropped.
struct OpenWatch(Arc<State>);

impl OpenWatch {
    fn new(state: Arc<State>) -> Self {
        state.open_watches.fetch_add(1, SeqCst);
        Self(state)
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.open_watches.fetch_sub(1, SeqCst);
    }
}
