//! Numbers of calls to a double.

use std::collections::BTreeMap;

/// Calls by endpoint and result.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters(BTreeMap<&'static str, BTreeMap<String, u64>>);

impl Counters {
    pub(super) fn count(&mut self, endpoint: &'static str, result: &str) {
        let results = self.0.entry(endpoint).or_default();
        *results.entry(result.to_owned()).or_default() += 1;
    }

    pub(super) fn of(&self, endpoint: &str, result: &str) -> u64 {
        let results = self.0.get(endpoint);
        results
            .and_then(|all| all.get(result))
            .copied()
            .unwrap_or(0)
    }

    pub(super) fn endpoint(&self, endpoint: &str) -> u64 {
        self.0.get(endpoint).map_or(0, |all| all.values().sum())
    }

    pub(super) fn total(&self) -> u64 {
        self.0.values().flat_map(BTreeMap::values).sum()
    }

    pub(super) fn by_name(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        let all = self.0.iter();
        all.map(|(endpoint, results)| ((*endpoint).to_owned(), results.clone()))
            .collect()
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self.0)
    }
}
