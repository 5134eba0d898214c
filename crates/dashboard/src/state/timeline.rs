use std::{collections::VecDeque, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How many entries are kept.
const KEPT: usize = 300;

/// The latest entries, numbered without gaps, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timeline(VecDeque<Arc<Entry>>);

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Counts from 1.
    pub number: u64,
    /// What happened.
    #[serde(flatten)]
    pub note: Note,
}

/// What there is to say about something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// When.
    pub at: Timestamp,
    /// What.
    pub what: String,
    /// The node, if it was on one.
    #[serde(rename = "where")]
    pub place: Option<String>,
    /// Who did it or saw it.
    pub component: String,
    /// What it cost, if somebody measured that.
    pub cost: Option<Cost>,
}

/// What a change cost. What was not measured is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// From the write to the API until it was done.
    pub milliseconds: Option<f64>,
    /// Bytes written to the kernel.
    pub bytes: Option<u64>,
    /// What was written, such as `+1 chain ~1 rule`.
    pub changes: Option<String>,
    /// Calls made to an API.
    pub calls: Option<u64>,
    /// Bytes that writing everything again would have taken in addition.
    pub avoided_bytes: Option<u64>,
    /// Calls that polling would have taken in addition.
    pub avoided_calls: Option<u64>,
}

impl Timeline {
    /// Adds what happened and forgets what is too long ago. Returns its number.
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
