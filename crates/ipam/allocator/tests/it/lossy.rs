//! A client whose connection loses one response.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use http::{Method, Request, Response};
use kube::{Client, client::Body as ClientBody};
use tower::Service;
use weft_apiserver::{ApiServer, Body, Disconnected, MemoryService, User};

/// Passes on writes up to a number; the response of that one is lost, and later ones do not arrive.
#[derive(Clone)]
pub(crate) struct Lossy {
    inner: MemoryService,
    writes: Arc<AtomicUsize>,
    last: usize,
}

impl Lossy {
    pub(crate) fn client(server: &ApiServer, last: usize) -> (Client, Arc<AtomicUsize>) {
        let writes = Arc::new(AtomicUsize::new(0));
        let service = Self {
            inner: server.service(User::admin()),
            writes: writes.clone(),
            last,
        };
        (Client::new(service, "default"), writes)
    }
}

impl Service<Request<ClientBody>> for Lossy {
    type Response = Response<Body>;
    type Error = Disconnected;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Disconnected>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Disconnected>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ClientBody>) -> Self::Future {
        let reads = request.method() == Method::GET;
        let events = request.uri().path().contains("/events");
        let number = if reads || events {
            0
        } else {
            self.writes.fetch_add(1, SeqCst) + 1
        };
        let last = self.last;
        if number > last {
            return Box::pin(async { Err(Disconnected) });
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            if number == last && number > 0 {
                return Err(Disconnected);
            }
            answer
        })
    }
}
