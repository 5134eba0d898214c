//! The timeline: the latest changes of the network and their cost.

use std::{collections::VecDeque, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Number of entries kept.
const KEPT: usize = 300;

/// The latest entries, numbered without gaps, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timeline(VecDeque<Arc<Entry>>);

/// A numbered note.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Counts from 1.
    pub number: u64,
    /// The change.
    #[serde(flatten)]
    pub note: Note,
}

/// A change of the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// Time of the change.
    pub at: Timestamp,
    /// The change in words.
    pub what: String,
    /// Name of the node, if it concerns one.
    #[serde(rename = "where")]
    pub place: Option<String>,
    /// Component that made or saw the change.
    pub component: String,
    /// Cost of the change, if measured.
    pub cost: Option<Cost>,
}

/// Cost of a change. What was not measured is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Time from the write to the API until it was done.
    pub milliseconds: Option<f64>,
    /// Bytes written to the kernel.
    pub bytes: Option<u64>,
    /// Summary of what was written, such as `+1 chain ~1 rule`.
    pub changes: Option<String>,
    /// Calls made to an API.
    pub calls: Option<u64>,
    /// Additional bytes that a full rewrite would have taken.
    pub avoided_bytes: Option<u64>,
    /// Additional calls that polling would have taken.
    pub avoided_calls: Option<u64>,
}

impl Timeline {
    /// Adds an entry and drops the oldest beyond the limit. Returns its number.
    pub fn push(&mut self, note: Note) -> u64 {
        let number = self.0.back().map_or(1, |latest| latest.number + 1);
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Arc::new(Entry { number, note }));
        number
    }

    /// The entries, the oldest first.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.0.iter().map(|entry| &**entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_three_hundred_entries_are_kept_and_keep_their_numbers() {
        let mut timeline = Timeline::default();
        for number in 1..=1000_u64 {
            let note = Note {
                at: Timestamp::UNIX_EPOCH,
                what: format!("change {number}"),
                place: None,
                component: "test".to_owned(),
                cost: None,
            };
            assert_eq!(timeline.push(note), number);
        }
        let kept: Vec<u64> = timeline.entries().map(|entry| entry.number).collect();
        assert_eq!(kept, (701..=1000).collect::<Vec<u64>>());
        let latest = timeline.entries().next_back();
        assert_eq!(latest.map(|entry| &*entry.note.what), Some("change 1000"));
    }
}
