//! The state of the page, shared between its writers and the open streams.

use std::sync::Arc;

use tokio::sync::watch;

use crate::state::{Note, State, now};

/// Holds the state that the page shows. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Board {
    states: Arc<watch::Sender<Arc<State>>>,
}

impl Board {
    /// A board with an initial state.
    pub fn new(state: State) -> Self {
        Self {
            states: Arc::new(watch::Sender::new(Arc::new(state))),
        }
    }

    /// The current state.
    pub fn read(&self) -> Arc<State> {
        self.states.borrow().clone()
    }

    /// Follows the state: each value is whole, and intermediate values may be skipped.
    pub fn subscribe(&self) -> watch::Receiver<Arc<State>> {
        self.states.subscribe()
    }

    /// Changes the state. Subscribers are notified only if the state differs afterwards.
    ///
    /// Changes run one after the other, so the function must not use the board itself.
    pub fn update(&self, change: impl FnOnce(&mut State)) {
        self.states.send_if_modified(|current| {
            let mut next = State::clone(current);
            change(&mut next);
            if next == **current {
                return false;
            }
            next.generated = now();
            *current = Arc::new(next);
            true
        });
    }

    /// Adds an entry to the timeline.
    pub fn record(&self, note: Note) {
        self.update(|state| {
            state.timeline.push(note);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Mode, Node};

    #[test]
    fn subscribers_are_notified_of_real_changes_only() {
        let board = Board::new(State::new(Mode::Cluster, "test", "https://127.0.0.1:6443"));
        let mut seen = board.subscribe();
        board.update(|state| state.nodes.clear());
        assert!(!seen.has_changed().unwrap(), "nothing changed");
        board.clone().update(|state| {
            state.nodes.push(Node {
                name: "node-1".to_owned(),
                ..Node::default()
            });
        });
        assert!(seen.has_changed().unwrap());
        assert_eq!(seen.borrow_and_update().nodes[0].name, "node-1");
        assert_eq!(board.read().nodes.len(), 1);
    }
}
