//! The gate of a controller: leadership as a state with a deadline.

use tokio::{sync::watch, time::Instant};

/// Permission of a controller to run, usually leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// It may run. Its external changes must have stopped by `until`, where one is given.
    Open {
        /// End of the permission, moved forward with each renewal.
        until: Option<Instant>,
    },
    /// It may not, and all of its work must have ended by `by`.
    Closed {
        /// Deadline for work in progress.
        by: Option<Instant>,
    },
}

impl GateState {
    /// Returns whether the controller may run.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Open { .. })
    }
}

/// A reader of a gate.
#[derive(Clone, Debug)]
pub struct Gate(watch::Receiver<GateState>);

impl Gate {
    /// A gate that follows a channel.
    pub fn new(states: watch::Receiver<GateState>) -> Self {
        Self(states)
    }

    /// A gate that is always open, with no deadline.
    pub fn always_open() -> Self {
        let (_, states) = watch::channel(GateState::Open { until: None });
        Self(states)
    }

    /// The current state.
    pub fn state(&self) -> GateState {
        *self.0.borrow()
    }

    /// Resolves when the state changes; never after the sender is gone.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Time after which external changes must have stopped.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state() {
            GateState::Open { until } => until,
            GateState::Closed { .. } => Some(Instant::now()),
        }
    }
}
