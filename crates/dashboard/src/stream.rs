//! The state as a stream of server-sent events.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::response::{
    Sse,
    sse::{Event, KeepAlive},
};
use futures::{Stream, StreamExt as _, stream};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::state::State;

/// Shortest time between two states of a stream; a burst of changes is sent once.
const PAUSE: Duration = Duration::from_millis(250);

/// Keeps proxies from closing an idle stream, and detects clients that are gone.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Sends the state at once and after each change, until `stop`.
pub(crate) fn events(
    states: watch::Receiver<Arc<State>>,
    stop: CancellationToken,
    render: impl Fn(&State) -> String + Send + 'static,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let viewer = Viewer { states, sent: None };
    let changes = stream::unfold(viewer, Viewer::next);
    let events = changes
        .map(move |state| Ok(Event::default().event("state").data(render(&state))))
        .take_until(stop.cancelled_owned());
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

struct Viewer {
    states: watch::Receiver<Arc<State>>,
    sent: Option<Instant>,
}

impl Viewer {
    async fn next(mut self) -> Option<(Arc<State>, Self)> {
        if let Some(sent) = self.sent {
            self.states.changed().await.ok()?;
            sleep_until(sent + PAUSE).await;
        }
        self.sent = Some(Instant::now());
        let state = self.states.borrow_and_update().clone();
        Some((state, self))
    }
}
