//! HTTP on one connection of a pool.

use std::{future::Future, time::Duration};

use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, service::Service};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, sleep_until},
};

use crate::{
    Connection,
    body::{BodyError, RequestBody, ResponseBody},
    pool::RequestTracker,
    stall::StallLimit,
};

/// The versions of HTTP that a listener understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocols {
    /// HTTP/1 only: one request at a time on each connection.
    Http1,
    /// HTTP/1 and HTTP/2 with up to this many requests at a time on each connection.
    Http1And2 {
        /// The limit that is announced to clients.
        concurrent_streams: u32,
    },
}

impl Connection {
    /// Answers requests until the client goes, a limit is over, the place is needed or the
    /// listener stops.
    pub async fn serve_http<I, S, B>(self, stream: I, protocols: Protocols, service: S)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: Service<Request<RequestBody>, Response = Response<B>>,
        S::Future: Send + 'static,
        S::Error: Into<BodyError> + 'static,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BodyError>,
    {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        match protocols {
            Protocols::Http1 => builder = builder.http1_only(),
            Protocols::Http1And2 { concurrent_streams } => {
                builder.http2().max_concurrent_streams(concurrent_streams);
            }
        }
        let limits = *self.limits();
        let stream = TokioIo::new(StallLimit::new(stream, limits.stall));
        let service = TrackedService {
            service,
            tracker: self.tracker(),
            body_limit: limits.body,
        };
        let serving = builder.serve_connection(stream, service);
        tokio::pin!(serving);
        let mut drained = None;
        let mut wake = Instant::now() + limits.header;
        loop {
            tokio::select! {
                outcome = serving.as_mut() => {
                    if let Err(error) = outcome {
                        tracing::debug!(%error, "connection ended");
                    }
                    return;
                }
                () = self.evicted() => return,
                () = self.stop.cancelled(), if drained.is_none() => {
                    let now = Instant::now();
                    drained = Some(now + limits.drain);
                    wake = now + GOODBYE.min(limits.drain);
                    serving.as_mut().graceful_shutdown();
                }
                () = sleep_until(wake) => {
                    let now = Instant::now();
                    let next = match drained {
                        None => self.next_idle_check(now),
                        Some(drained) => (self.is_busy() && now < drained).then_some(drained),
                    };
                    let Some(next) = next else {
                        self.count_timeout();
                        return;
                    };
                    wake = next;
                }
            }
        }
    }
}

/// Time after a stop for a connection without a request in progress to close itself: HTTP/2
/// notifies the client first.
const GOODBYE: Duration = Duration::from_millis(100);

/// A service whose requests mark their connection as busy.
struct TrackedService<S> {
    service: S,
    tracker: RequestTracker,
    body_limit: Duration,
}

impl<S, B> Service<Request<Incoming>> for TrackedService<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let in_progress = self.tracker.begin();
        let limit = self.body_limit;
        let progress = in_progress.progress().clone();
        let answer = self
            .service
            .call(request.map(|body| RequestBody::new(body, limit, progress)));
        Box::pin(async move {
            let response = answer.await?;
            Ok(response.map(|body| ResponseBody::new(body, in_progress)))
        })
    }
}
