//! Bodies of requests, with a time limit, and of responses, which keep their request in progress.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};

use crate::pool::{RequestInProgress, RequestProgress};

/// Error that ends a body early.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

pin_project! {
    /// A request's body, which has to arrive within the listener's limit.
    pub struct RequestBody {
        #[pin]
        body: Incoming,
        limit: Duration,
        timer: Option<Pin<Box<Sleep>>>,
        is_waiting: bool,
        progress: RequestProgress,
    }
}

impl RequestBody {
    pub(crate) fn new(body: Incoming, limit: Duration, progress: RequestProgress) -> Self {
        Self {
            body,
            limit,
            timer: None,
            is_waiting: false,
            progress,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.project();
        if let Poll::Ready(frame) = this.body.poll_frame(context) {
            *this.is_waiting = false;
            this.progress.works();
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        // Once for each part of the body that is missing: a client that sends one part and stops is
        // as idle as one that never began.
        if !std::mem::replace(this.is_waiting, true) {
            this.progress.waits_for_client();
        }
        // Not set back by a frame: a body that arrives byte by byte has no more time than another.
        let limit = *this.limit;
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(timer.as_mut().poll(context));
        let message = "cannot read the request body: time limit exceeded";
        let error = io::Error::new(io::ErrorKind::TimedOut, message);
        Poll::Ready(Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pin_project! {
    /// A response's body, whose request is in progress until it is sent.
    pub struct ResponseBody<B> {
        #[pin]
        body: B,
        request: RequestInProgress,
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn new(body: B, request: RequestInProgress) -> Self {
        // Until it is polled, which HTTP/2 does only when the client lets it send.
        request.progress().waits_for_client();
        Self { body, request }
    }
}

impl<B: Body> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = this.body.poll_frame(context);
        match &frame {
            Poll::Pending => this.request.progress().works(),
            Poll::Ready(_) => this.request.progress().waits_for_client(),
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
