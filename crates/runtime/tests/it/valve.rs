//! A client connection to any server that a test can cut.

use std::io;

use futures::{Stream, StreamExt as _, stream};
use http::{Request, Response};
use http_body_util::{BodyStream, StreamBody};
use kube::{Client, client::Body};
use tokio::sync::watch;
use tower::BoxError;

/// Lets requests pass while it is open. Shutting it breaks those under way too.
pub(crate) struct Valve(watch::Sender<bool>);

impl Valve {
    pub(crate) fn open() -> Self {
        Self(watch::Sender::new(true))
    }

    pub(crate) fn set_open(&self, open: bool) {
        self.0.send_replace(open);
    }

    /// The client, through the valve.
    pub(crate) fn before(&self, client: &Client) -> Client {
        let (client, valve) = (client.clone(), self.0.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, open) = (client.clone(), valve.subscribe());
            async move {
                if !*open.borrow() {
                    return Err(BoxError::from(cut()));
                }
                let (parts, body) = client.send(request).await?.into_parts();
                let frames = until_shut(BodyStream::new(body), open);
                Ok(Response::from_parts(parts, StreamBody::new(frames)))
            }
        });
        Client::new(service, "default")
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the valve is shut")
}

/// The frames of a body until the valve is shut.
fn until_shut<T, E>(
    frames: impl Stream<Item = Result<T, E>> + Send + Unpin + 'static,
    open: watch::Receiver<bool>,
) -> impl Stream<Item = Result<T, BoxError>> + Send + 'static
where
    T: Send + 'static,
    E: Into<BoxError> + Send + 'static,
{
    stream::unfold(Some((frames, open)), |state| async {
        let (mut frames, mut open) = state?;
        let frame = tokio::select! {
            frame = frames.next() => Some(frame?),
            _ = open.wait_for(|open| !open) => None,
        };
        match frame {
            Some(frame) => Some((frame.map_err(Into::into), Some((frames, open)))),
            None => Some((Err(cut().into()), None)),
        }
    })
}
