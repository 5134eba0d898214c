//! Connections to pods, opened by the program that embeds the server.

use std::{fmt, io, sync::Arc};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::io::{AsyncRead, AsyncWrite};

/// A port of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPort {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// TCP port.
    pub port: u16,
}

/// A connection to a pod.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

type Dial = dyn Fn(PodPort) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> + Send + Sync;

/// Opens connections to pods with the function given to the builder.
#[derive(Clone)]
pub(crate) struct PodDialer(Arc<Dial>);

impl PodDialer {
    pub(crate) fn new<F, S>(dial: impl Fn(PodPort) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: Stream + 'static,
    {
        let boxed = |stream: S| -> Box<dyn Stream> { Box::new(stream) };
        Self(Arc::new(move |target| {
            let dialled = dial(target);
            async move { dialled.await.map(boxed) }.boxed()
        }))
    }

    pub(crate) async fn dial(&self, target: PodPort) -> io::Result<Box<dyn Stream>> {
        (self.0)(target).await
    }
}

impl fmt::Debug for PodDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PodDialer")
    }
}
