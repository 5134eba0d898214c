//! A log of the last syncs, to see what a change costs.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use weft_model::IpFamily;
use weft_proxy::SyncReport;

/// Number of syncs that are kept.
const CAPACITY: usize = 256;

/// A successful sync.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncRecord {
    /// Sequence number within the process.
    pub number: u64,
    /// Time of its end.
    pub at: Timestamp,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// All rules were read and compared.
    pub full: bool,
    /// Bytes of input.
    pub bytes: usize,
    /// Chains created, replaced or edited.
    pub chains_written: usize,
    /// Chains removed.
    pub chains_removed: usize,
    /// Rules or elements written.
    pub written: usize,
    /// Rules or elements that should exist now.
    pub rules: usize,
    /// Wall time from start to end.
    pub milliseconds: f64,
}

/// The last syncs. Clones share the same log.
#[derive(Clone, Debug, Default)]
pub struct SyncLog(Arc<Mutex<Records>>);

#[derive(Debug, Default)]
struct Records {
    count: u64,
    last: VecDeque<SyncRecord>,
}

impl SyncLog {
    pub(crate) fn add(&self, family: IpFamily, report: &SyncReport, took: Duration, at: Timestamp) {
        let counts = || report.rules.iter().map(|(_, count)| count);
        let written: usize = counts().map(|count| count.written).sum();
        let rules: usize = counts().map(|count| count.total).sum();
        let elements = report.elements.unwrap_or_default();
        let mut records = self.0.lock();
        records.count += 1;
        let record = SyncRecord {
            number: records.count,
            at,
            family: family.as_str().to_owned(),
            full: report.full,
            bytes: report.bytes,
            chains_written: report.chains.written,
            chains_removed: report.chains.removed,
            written: written + elements.written,
            rules: rules + elements.total,
            milliseconds: took.as_secs_f64() * 1000.0,
        };
        if records.last.len() == CAPACITY {
            records.last.pop_front();
        }
        records.last.push_back(record);
    }

    /// The records, oldest first.
    pub fn read(&self) -> Vec<SyncRecord> {
        let records = self.0.lock();
        records.last.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use weft_proxy::RuleCount;

    use super::*;

    #[test]
    fn the_last_ones_are_remembered_and_keep_their_numbers() {
        let log = SyncLog::default();
        for bytes in 0..CAPACITY + 3 {
            let count = |written, total| RuleCount { total, written };
            let report = SyncReport {
                bytes,
                rules: vec![("nat", count(2, 40)), ("filter", count(1, 10))],
                ..SyncReport::default()
            };
            log.add(
                IpFamily::V4,
                &report,
                Duration::from_millis(3),
                Timestamp::UNIX_EPOCH,
            );
        }
        let records = log.read();
        assert_eq!(records.len(), CAPACITY);
        assert_eq!((records[0].number, records[0].bytes), (4, 3));
        assert_eq!((records[0].written, records[0].rules), (3, 50));
    }
}
