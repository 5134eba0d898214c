//! Counters of one controller.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;

use super::ControllerState;

/// Buckets of controller-runtime's `controller_runtime_reconcile_time_seconds`.
const TIME_BUCKETS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0, 60.0,
];

/// Counters of one controller. They live as long as its handle, over stops and restarts.
#[derive(Debug)]
pub(crate) struct ControllerStatistics {
    pub(crate) success: AtomicU64,
    pub(crate) error: AtomicU64,
    pub(crate) requeue_after: AtomicU64,
    pub(crate) terminal_errors: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) active_workers: AtomicI64,
    pub(crate) starts: AtomicU64,
    pub(crate) transitions: AtomicU64,
    pub(crate) time: Histogram,
    last_error: Mutex<Option<String>>,
    state: Mutex<ControllerState>,
}

impl ControllerStatistics {
    pub(crate) fn new() -> Self {
        Self {
            success: AtomicU64::new(0),
            error: AtomicU64::new(0),
            requeue_after: AtomicU64::new(0),
            terminal_errors: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
            active_workers: AtomicI64::new(0),
            starts: AtomicU64::new(0),
            transitions: AtomicU64::new(0),
            time: Histogram::new(TIME_BUCKETS),
            last_error: Mutex::new(None),
            state: Mutex::new(ControllerState::Stopped),
        }
    }

    pub(crate) fn note_error(&self, error: String) {
        self.error.fetch_add(1, Relaxed);
        *self.last_error.lock() = Some(error);
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    pub(crate) fn note_state(&self, state: ControllerState) {
        self.transitions.fetch_add(1, Relaxed);
        *self.state.lock() = state;
    }

    pub(crate) fn state(&self) -> ControllerState {
        self.state.lock().clone()
    }
}
