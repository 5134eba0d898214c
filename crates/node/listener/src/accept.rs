//! The accept loop, from a listener into its pool.

use std::{future::Future, io, time::Duration};

use http::{Request, Response};
use http_body::Body;
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Connection, ConnectionPool, Protocols,
    body::{BodyError, RequestBody},
};

/// A source of connections.
pub trait Listener: Send + 'static {
    /// A connection, before any handshake.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Makes room for more connections that wait to be accepted, where the system allows it.
    ///
    /// The standard library's 128 are used up by a small flood, and a client whose connection
    /// attempt was dropped tries again only after a second.
    fn widen_backlog(&self);

    /// Waits for the next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Connections that wait to be accepted; the system's own limit is 4,096 by default.
const BACKLOG: i32 = 4096;

/// Sets the backlog of a socket that listens already. With a failure it stays as it was.
pub(crate) fn widen(socket: &SockRef<'_>) {
    let _ = socket.listen(BACKLOG);
}

/// Probes of a silent client begin after this time and repeat at this interval, as Go's do.
const KEEPALIVE: Duration = Duration::from_secs(15);

impl Listener for TcpListener {
    type Stream = TcpStream;

    fn widen_backlog(&self) {
        widen(&SockRef::from(self));
    }

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        // Both are improvements only: small answers leave at once, and dead clients are noticed.
        let _ = stream.set_nodelay(true);
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        Ok(stream)
    }
}

/// After a failed accept: out of file descriptors, mostly, which passes.
const PAUSE: Duration = Duration::from_millis(50);

/// Gives each accepted connection a place in the pool and a task of its own, until `stop`.
///
/// Then the listener is closed at once, and this returns when the connections have ended or the
/// pool's drain limit is over.
pub async fn accept<L, F, T>(
    listener: L,
    pool: &ConnectionPool,
    stop: impl Future<Output = ()>,
    serve: F,
) where
    L: Listener,
    F: Fn(L::Stream, Connection) -> T,
    T: Future<Output = ()> + Send + 'static,
{
    listener.widen_backlog();
    let connections = TaskTracker::new();
    let stopping = CancellationToken::new();
    // Also when this future is dropped: no connection outlives its listener for longer than the
    // drain limit.
    let _stop_connections = stopping.clone().drop_guard();
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok(stream) => {
                    let connection = pool.open(stopping.clone()).await;
                    connections.spawn(serve(stream, connection));
                }
                Err(error) => {
                    tracing::warn!(listener = pool.name(), %error, "cannot accept a connection");
                    pool.evict();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = stop => {}
        () = accepting => {}
    }
    drop(listener);
    stopping.cancel();
    connections.close();
    // A connection ends itself at this limit; a moment more lets it do so.
    let limit = pool.limits().drain + Duration::from_secs(1);
    if timeout(limit, connections.wait()).await.is_err() {
        tracing::warn!(
            listener = pool.name(),
            open = connections.len(),
            "connections are still open after the drain limit"
        );
    }
}

/// Serves HTTP/1 on a listener until `stop`; then requests in progress are finished.
pub async fn serve<L, S, B>(
    listener: L,
    pool: &ConnectionPool,
    service: S,
    stop: impl Future<Output = ()>,
) where
    L: Listener,
    S: tower_service::Service<Request<RequestBody>, Response = Response<B>>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BodyError> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BodyError>,
{
    let service = TowerToHyperService::new(service);
    accept(listener, pool, stop, |stream, connection| {
        connection.serve_http(stream, Protocols::Http1, service.clone())
    })
    .await;
}
