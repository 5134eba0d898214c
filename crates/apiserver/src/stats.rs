//! Request log and counters, for tests to assert on.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    api::Api,
    fault::Matcher,
    request::{RequestInfo, Verb},
};

/// Limit of requests in the log; older ones stay in the totals only.
const REMEMBERED: usize = 65_536;
/// Limit of the log in bytes: paths and queries can be long.
const REMEMBERED_BYTES: usize = 64 * 1024 * 1024;

/// One answered request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRecord {
    /// The classified request.
    pub request: RequestInfo,
    /// The HTTP status of the answer; 0 when an injected fault broke the connection.
    pub status: u16,
}

impl RequestRecord {
    /// Approximate size in bytes.
    fn weight(&self) -> usize {
        let request = &self.request;
        // The parts parsed from the path are at most as long as the path.
        size_of::<Self>() + 2 * request.path.len() + request.query.len() + request.user_agent.len()
    }
}

#[derive(Debug, Default)]
struct Log {
    records: VecDeque<RequestRecord>,
    /// Sum of the records' weights.
    bytes: usize,
    lists: u64,
    watches: u64,
    total: u64,
}

/// The log behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct RequestLog(Mutex<Log>);

impl RequestLog {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock()
    }

    pub(crate) fn record(&self, request: &RequestInfo, status: u16) {
        let mut log = self.lock();
        log.total += 1;
        match request.verb {
            Verb::List => log.lists += 1,
            Verb::Watch => log.watches += 1,
            _ => {}
        }
        let record = RequestRecord {
            request: request.clone(),
            status,
        };
        log.bytes += record.weight();
        log.records.push_back(record);
        while (log.records.len() > REMEMBERED || log.bytes > REMEMBERED_BYTES)
            && let Some(dropped) = log.records.pop_front()
        {
            log.bytes -= dropped.weight();
        }
    }
}

/// Handle of the request log and the counters of a server.
#[derive(Debug, Clone)]
pub struct Stats {
    pub(crate) api: Arc<Api>,
}

impl Stats {
    /// The logged requests that match, oldest first.
    pub fn requests(&self, matcher: &Matcher) -> Vec<RequestRecord> {
        let log = self.api.requests.lock();
        log.records
            .iter()
            .filter(|record| matcher.matches(&record.request))
            .cloned()
            .collect()
    }

    /// Number of logged requests that match.
    pub fn count(&self, matcher: &Matcher) -> usize {
        let log = self.api.requests.lock();
        log.records
            .iter()
            .filter(|record| matcher.matches(&record.request))
            .count()
    }

    /// Number of all requests since the start.
    pub fn total(&self) -> u64 {
        self.api.requests.lock().total
    }

    /// Number of all lists since the start.
    pub fn lists(&self) -> u64 {
        self.api.requests.lock().lists
    }

    /// Number of all watches since the start.
    pub fn watches(&self) -> u64 {
        self.api.requests.lock().watches
    }

    /// Number of open watches that match; decreases as soon as a client drops the response.
    pub fn open_watches(&self, matcher: &Matcher) -> usize {
        self.api.watches.count(matcher)
    }

    /// The requests of all open watches.
    pub fn open_watch_requests(&self) -> Vec<RequestInfo> {
        self.api.watches.requests()
    }

    /// Clears the log; the totals stay.
    pub fn clear_log(&self) {
        let mut log = self.api.requests.lock();
        log.records.clear();
        log.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::query::Query;

    #[test]
    fn long_requests_leave_the_log_sooner() {
        let log = RequestLog::default();
        let query = "x".repeat(4 * 1024 * 1024);
        let request = RequestInfo::new(&Method::GET, "/", &query, &Query::default());
        for _ in 0..20 {
            log.record(&request, 200);
        }
        let log = log.lock();
        assert!(
            (1..16).contains(&log.records.len()),
            "{}",
            log.records.len()
        );
        assert_eq!(log.total, 20);
    }
}
