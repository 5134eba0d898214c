//! Numbers of calls to a provider, by endpoint and result.

use std::collections::BTreeMap;

/// Endpoints and their labels, in the sequence of the table.
pub(super) const ENDPOINTS: [(&str, &str); 8] = [
    ("get_network", "GET network"),
    ("list_networks", "GET networks"),
    ("list_servers", "GET servers"),
    ("get_server", "GET server"),
    ("list_locations", "GET locations"),
    ("add_route", "POST add_route"),
    ("delete_route", "POST delete_route"),
    ("get_actions", "GET actions"),
];

/// Counters of a provider at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Calls(pub(super) BTreeMap<String, BTreeMap<String, u64>>);

impl Calls {
    /// Calls made since an earlier reading of the counters.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let before = |endpoint: &str, result: &str| {
            let results = earlier.0.get(endpoint);
            results
                .and_then(|all| all.get(result))
                .copied()
                .unwrap_or(0)
        };
        let mut since = Self::default();
        for (endpoint, results) in &self.0 {
            for (result, count) in results {
                let made = count.saturating_sub(before(endpoint, result));
                if made > 0 {
                    let results = since.0.entry(endpoint.clone()).or_default();
                    results.insert(result.clone(), made);
                }
            }
        }
        since
    }

    pub(super) fn of(&self, endpoint: &str) -> u64 {
        self.0
            .get(endpoint)
            .map_or(0, |results| results.values().sum())
    }

    pub(super) fn total(&self) -> u64 {
        self.0.values().flat_map(BTreeMap::values).sum()
    }

    /// Number of calls with a result other than `ok`.
    pub(super) fn refused(&self) -> u64 {
        let results = self.0.values().flatten();
        results
            .filter(|(result, _)| *result != "ok")
            .map(|(_, count)| count)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(all: &[(&str, &str, u64)]) -> Calls {
        let mut calls = Calls::default();
        for (endpoint, result, count) in all {
            let results = calls.0.entry((*endpoint).to_owned()).or_default();
            results.insert((*result).to_owned(), *count);
        }
        calls
    }

    #[test]
    fn calls_before_the_earlier_reading_do_not_count() {
        let before = calls(&[("get_network", "ok", 3), ("add_route", "locked", 1)]);
        let now = calls(&[
            ("get_network", "ok", 5),
            ("add_route", "locked", 1),
            ("add_route", "ok", 2),
        ]);
        let since = now.since(&before);
        assert_eq!(
            since,
            calls(&[("get_network", "ok", 2), ("add_route", "ok", 2)])
        );
        assert_eq!((since.total(), since.refused()), (4, 0));
        assert_eq!((now.of("add_route"), now.refused()), (3, 1));
    }
}
