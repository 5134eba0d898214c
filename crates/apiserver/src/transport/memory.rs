//! In-process transport: the server as a tower service, without sockets.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use tower::Service;

use crate::{
    api::{Api, Disconnected},
    auth::User,
    reply::{Body, BoxError},
};

/// The server as a tower service of HTTP requests, as `kube::Client::new` takes it.
#[derive(Debug, Clone)]
pub struct MemoryService {
    api: Arc<Api>,
    user: User,
}

impl MemoryService {
    pub(crate) fn new(api: Arc<Api>, user: User) -> Self {
        Self { api, user }
    }
}

impl<B> Service<Request<B>> for MemoryService
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Disconnected;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Disconnected>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Disconnected>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // A bearer token in the request takes precedence over the user of the service.
        if !request.headers().contains_key(http::header::AUTHORIZATION) {
            request.extensions_mut().insert(self.user.clone());
        }
        Box::pin(self.api.clone().serve(request))
    }
}
