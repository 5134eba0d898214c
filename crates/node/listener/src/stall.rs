//! A stream whose writes fail when the peer does not read for too long.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

pin_project! {
    /// Fails writes that make no progress within the limit.
    pub(crate) struct StallLimit<S> {
        #[pin]
        stream: S,
        limit: Duration,
        stalled: Option<Pin<Box<Sleep>>>,
    }
}

impl<S> StallLimit<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            stalled: None,
        }
    }
}

/// Passes a result on, and turns waiting for too long into an error.
fn bounded<T>(
    result: Poll<io::Result<T>>,
    stalled: &mut Option<Pin<Box<Sleep>>>,
    limit: Duration,
    context: &mut Context<'_>,
) -> Poll<io::Result<T>> {
    if result.is_ready() {
        *stalled = None;
        return result;
    }
    let timer = stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
    ready!(timer.as_mut().poll(context));
    let message = "cannot write: the peer read nothing within the time limit";
    Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)))
}

impl<S: AsyncRead> AsyncRead for StallLimit<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.project().stream.poll_read(context, buffer)
    }
}

impl<S: AsyncWrite> AsyncWrite for StallLimit<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let result = this.stream.poll_write(context, bytes);
        bounded(result, this.stalled, *this.limit, context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let result = this.stream.poll_write_vectored(context, slices);
        bounded(result, this.stalled, *this.limit, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let result = this.stream.poll_flush(context);
        bounded(result, this.stalled, *this.limit, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let result = this.stream.poll_shutdown(context);
        bounded(result, this.stalled, *this.limit, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_ends_the_write() {
        let (stream, peer) = tokio::io::duplex(16);
        let mut stream = StallLimit::new(stream, Duration::from_secs(30));
        let before = tokio::time::Instant::now();
        let failed = stream.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        assert!(before.elapsed() >= Duration::from_secs(30));
        drop(peer);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_not_a_stalled_one() {
        use tokio::io::AsyncReadExt as _;
        let (stream, mut peer) = tokio::io::duplex(16);
        let mut stream = StallLimit::new(stream, Duration::from_secs(30));
        let reader = tokio::spawn(async move {
            for _ in 0..8 {
                tokio::time::sleep(Duration::from_secs(20)).await;
                peer.read_exact(&mut [0; 8]).await.unwrap();
            }
        });
        stream.write_all(&[0; 64]).await.unwrap();
        reader.await.unwrap();
    }
}
