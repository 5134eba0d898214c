//! Registry of open watches, with the controls that fault injection has over each.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::sync::watch;

use super::Matcher;
use crate::request::RequestInfo;

/// The way a watch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The stream ends as after a timeout.
    Clean,
    /// The connection breaks in the middle of a line.
    MidFrame,
}

/// Commands to one watch stream.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Control {
    /// Number of stalls that hold the stream back.
    pub(crate) stalls: usize,
    pub(crate) cut: Option<Cut>,
    pub(crate) error: Option<Value>,
}

#[derive(Debug)]
struct OpenWatch {
    request: RequestInfo,
    control: watch::Sender<Control>,
    /// IDs of the stalls that hold it back.
    held_by: Vec<u64>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeMap<u64, OpenWatch>,
    stalls: BTreeMap<u64, Matcher>,
}

/// All open watches.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenWatches {
    state: Arc<Mutex<State>>,
}

impl OpenWatches {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Registers a watch until the ticket is dropped.
    pub(crate) fn open(&self, request: RequestInfo) -> WatchTicket {
        let mut state = self.lock();
        state.next += 1;
        let id = state.next;
        let held_by: Vec<u64> = state
            .stalls
            .iter()
            .filter(|(_, matcher)| matcher.matches(&request))
            .map(|(stall, _)| *stall)
            .collect();
        let control = Control {
            stalls: held_by.len(),
            ..Control::default()
        };
        let (sender, receiver) = watch::channel(control);
        state.open.insert(
            id,
            OpenWatch {
                request,
                control: sender,
                held_by,
            },
        );
        WatchTicket {
            watches: self.clone(),
            id,
            control: receiver,
        }
    }

    /// Number of open watches that match.
    pub(crate) fn count(&self, matcher: &Matcher) -> usize {
        self.lock()
            .open
            .values()
            .filter(|watch| matcher.matches(&watch.request))
            .count()
    }

    pub(crate) fn requests(&self) -> Vec<RequestInfo> {
        self.lock()
            .open
            .values()
            .map(|watch| watch.request.clone())
            .collect()
    }

    pub(super) fn cut(&self, matcher: &Matcher, how: Cut) -> usize {
        self.each(matcher, |control| control.cut = Some(how))
    }

    pub(super) fn fail(&self, matcher: &Matcher, status: &Value) -> usize {
        self.each(matcher, |control| control.error = Some(status.clone()))
    }

    fn each(&self, matcher: &Matcher, act: impl Fn(&mut Control)) -> usize {
        let state = self.lock();
        let matching = state
            .open
            .values()
            .filter(|watch| matcher.matches(&watch.request));
        matching
            .map(|watch| watch.control.send_modify(&act))
            .count()
    }

    pub(super) fn stall(&self, matcher: Matcher) -> Stall {
        let mut state = self.lock();
        state.next += 1;
        let id = state.next;
        for watch in state
            .open
            .values_mut()
            .filter(|watch| matcher.matches(&watch.request))
        {
            watch.held_by.push(id);
            watch.control.send_modify(|control| control.stalls += 1);
        }
        state.stalls.insert(id, matcher);
        Stall {
            watches: self.clone(),
            id,
        }
    }

    pub(super) fn release_all(&self) {
        let mut state = self.lock();
        state.stalls.clear();
        for watch in state.open.values_mut() {
            watch.held_by.clear();
            watch.control.send_modify(|control| control.stalls = 0);
        }
    }

    pub(crate) fn release(&self, id: u64) {
        let mut state = self.lock();
        state.stalls.remove(&id);
        for watch in state.open.values_mut() {
            let held = watch.held_by.len();
            watch.held_by.retain(|stall| *stall != id);
            if watch.held_by.len() < held {
                let stalls = watch.held_by.len();
                watch.control.send_modify(|control| control.stalls = stalls);
            }
        }
    }
}

/// Registration of one open watch, removed on drop.
#[derive(Debug)]
pub(crate) struct WatchTicket {
    watches: OpenWatches,
    id: u64,
    pub(crate) control: watch::Receiver<Control>,
}

impl Drop for WatchTicket {
    fn drop(&mut self) {
        self.watches.lock().open.remove(&self.id);
    }
}

/// Stalled watches, released on drop.
#[derive(Debug)]
pub struct Stall {
    watches: OpenWatches,
    id: u64,
}

#[cfg(feature = "fault-endpoint")]
impl Stall {
    /// Detaches the stall: it lasts until it is released by the returned ID.
    pub(crate) fn keep(self) -> u64 {
        let id = self.id;
        std::mem::forget(self);
        id
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.watches.release(self.id);
    }
}
