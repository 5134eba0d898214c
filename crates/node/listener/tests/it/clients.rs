//! A server with short limits, and clients that speak raw HTTP to it.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    routing::get,
};
use hyper_util::service::TowerToHyperService;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use weft_listener::{ConnectionPool, Limits, Protocols, accept};

/// Short enough for a test, long enough for a busy machine to answer within.
pub(crate) const LIMITS: Limits = Limits {
    connections: 16,
    descriptor_share: 8,
    header: Duration::from_secs(2),
    idle: Duration::from_secs(2),
    body: Duration::from_secs(2),
    stall: Duration::from_secs(2),
    drain: Duration::from_secs(2),
};

/// Longer than any limit: what has not happened by then does not happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) pool: ConnectionPool,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<()>,
    /// Lets `/wait` answer.
    pub(crate) release: CancellationToken,
}

/// Larger than what the sockets' buffers of both sides hold.
pub(crate) const LARGE: usize = 64 << 20;

impl Server {
    pub(crate) async fn start(limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let pool = ConnectionPool::new("test", limits);
        let stop = CancellationToken::new();
        let release = CancellationToken::new();
        let wait = release.clone();
        let router = Router::new()
            .route("/", get(|| async { "hello" }))
            .route("/large", get(|| async { vec![b'x'; LARGE] }))
            .route("/body", get(|body: Bytes| async move { body }))
            .route("/stream", get(|| async { Body::new(Endless) }))
            .route(
                "/wait",
                get(move || async move {
                    wait.cancelled().await;
                    "released"
                }),
            );
        let (serving, stopped) = (pool.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let service = TowerToHyperService::new(router);
            let protocols = Protocols::Http1And2 {
                concurrent_streams: 10,
            };
            accept(
                listener,
                &serving,
                stopped.cancelled_owned(),
                |stream, connection| connection.serve_http(stream, protocols, service.clone()),
            )
            .await;
        });
        Self {
            address,
            pool,
            stop,
            task,
            release,
        }
    }

    /// Connects and sends these bytes.
    pub(crate) async fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    /// A request on a connection of its own, and the whole answer.
    pub(crate) async fn get(&self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        let stream = self.send(request.as_bytes()).await;
        read_to_end(stream).await
    }

    /// Waits until this many connections are open.
    pub(crate) async fn until_open(&self, count: usize) {
        let open = async {
            while self.pool.stats().open != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, open).await.unwrap();
    }
}

/// A body like that of a watch without events: nothing to send, and no end.
struct Endless;

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}

/// Everything that the server sends until it closes or resets the connection.
pub(crate) async fn read_to_end(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    let _closed_or_reset = tokio::time::timeout(PATIENCE, reading)
        .await
        .expect("the server closes the connection");
    String::from_utf8_lossy(&answer).into_owned()
}
