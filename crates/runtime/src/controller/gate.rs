use tokio::{sync::watch, time::Instant};

/// Whether a controller may run, decided by something outside it: leadership, usually.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// It may run. What it mutates outside must be over by `until`, where one is given.
    Open {
        /// End of the right to act, moved forward while the right is renewed.
        until: Option<Instant>,
    },
    /// It may not, and all of its work must have ended by `by`.
    Closed {
        /// Deadline for work in progress.
        by: Option<Instant>,
    },
}

impl GateState {
    /// Whether the controller may run.
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

    /// A gate that nobody closes.
    pub fn always_open() -> Self {
        let (_, states) = watch::channel(GateState::Open { until: None });
        Self(states)
    }

    /// What the gate says now.
    pub fn state(&self) -> GateState {
        *self.0.borrow()
    }

    /// Resolves when the gate says something new; never, once nobody can move it.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Until when mutations may go on.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state() {
            GateState::Open { until } => until,
            GateState::Closed { .. } => Some(Instant::now()),
        }
    }
}
