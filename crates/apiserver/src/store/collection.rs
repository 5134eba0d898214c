//! A collection: objects of one kind sorted by key, and the log of their latest changes.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use super::{
    Change, Delivery, Filter, TooOld, WatchStart, object::Stored, object::object_key,
    watcher::Watchers,
};

/// Limit of a change log in bytes, in addition to the limit of its entries.
const HISTORY_BYTES: usize = 256 * 1024 * 1024;

/// Parameters of one page.
#[derive(Debug, Clone, Default)]
pub(crate) struct PageRequest<'a> {
    pub(crate) filter: Option<&'a Filter>,
    /// The version to show; the newest if `None`.
    pub(crate) at: Option<u64>,
    /// Continues an earlier list.
    pub(crate) continued: bool,
    pub(crate) limit: Option<usize>,
    /// Only keys after this one, within the namespace.
    pub(crate) after: Option<&'a str>,
}

/// One page of a list.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) items: Vec<Arc<Stored>>,
    pub(crate) version: u64,
    /// More items follow the last one.
    pub(crate) more: bool,
    /// Number of items that follow; `None` with a selector, which would make it costly to count.
    pub(crate) remaining: Option<usize>,
}

/// A version that a list cannot show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListError {
    /// The version is older than the history.
    Expired,
    /// The version does not exist yet.
    Future {
        /// The newest version.
        current: u64,
    },
}

#[derive(Debug)]
pub(super) struct Collection {
    objects: BTreeMap<Arc<str>, Arc<Stored>>,
    log: VecDeque<Arc<Change>>,
    /// Size of the log's objects in bytes.
    log_bytes: usize,
    history: usize,
    history_bytes: usize,
    /// Lower bound of the log: every change after this version is in it.
    log_start: u64,
    /// The version of the newest change.
    newest: u64,
    pub(super) watchers: Watchers,
}

impl Collection {
    pub(super) fn new(log_start: u64, history: usize) -> Self {
        Self {
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            log_bytes: 0,
            history,
            history_bytes: HISTORY_BYTES,
            log_start,
            newest: 0,
            watchers: Watchers::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    /// All changes after a version, oldest first; `None` when some are no longer in the log.
    pub(super) fn changes_after(&self, version: u64) -> Option<Vec<Arc<Change>>> {
        if version < self.log_start && version < self.newest {
            return None;
        }
        let first = self.log.partition_point(|change| change.version <= version);
        Some(self.log.range(first..).cloned().collect())
    }

    pub(super) fn get(&self, key: &str) -> Option<Arc<Stored>> {
        self.objects.get(key).cloned()
    }

    pub(super) fn insert(&mut self, object: Arc<Stored>) -> Option<Arc<Stored>> {
        self.objects.insert(object.key.clone(), object)
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Arc<Stored>> {
        self.objects.remove(key)
    }

    pub(super) fn publish(&mut self, change: Change) -> Arc<Change> {
        let change = Arc::new(change);
        self.newest = change.version;
        self.log_bytes += change.weight();
        self.log.push_back(change.clone());
        while self.log.len() > 1
            && (self.log.len() > self.history || self.log_bytes > self.history_bytes)
            && let Some(dropped) = self.log.pop_front()
        {
            self.log_bytes -= dropped.weight();
            self.log_start = dropped.version;
        }
        self.watchers.publish(&change);
        change
    }

    pub(super) fn compact(&mut self, version: u64) {
        self.log.clear();
        self.log_bytes = 0;
        self.log_start = version;
    }

    /// Matching objects, sorted by key.
    pub(super) fn matching<'a>(
        &'a self,
        filter: &'a Filter,
    ) -> Box<dyn Iterator<Item = &'a Arc<Stored>> + 'a> {
        let namespace = filter.namespace.as_deref();
        if let (Some(name), Some(namespace)) = (filter.pinned_name(), namespace) {
            let found = self.objects.get(object_key(namespace, name).as_str());
            return Box::new(found.into_iter().filter(|object| filter.matches(object)));
        }
        let range = self
            .objects
            .range::<str, _>(key_range(namespace, None).as_bounds());
        Box::new(
            range
                .map(|(_, object)| object)
                .filter(|object| filter.matches(object)),
        )
    }

    /// The events of a watch before live changes.
    pub(super) fn since(
        &self,
        filter: &Filter,
        start: WatchStart,
    ) -> Result<Vec<Delivery>, TooOld> {
        match start {
            WatchStart::Now => Ok(Vec::new()),
            WatchStart::Present => Ok(self
                .matching(filter)
                .cloned()
                .map(Delivery::Present)
                .collect()),
            WatchStart::After(version) if version < self.log_start => Err(TooOld {
                oldest: self.log_start,
            }),
            WatchStart::After(version) => {
                let from = self.log.partition_point(|change| change.version <= version);
                let deliver = |change: &Arc<Change>| {
                    let kind = change.seen_through(filter)?;
                    Some(Delivery::Change(kind, change.clone()))
                };
                Ok(self.log.range(from..).filter_map(deliver).collect())
            }
        }
    }

    /// One page at the requested version.
    pub(super) fn page(&self, current: u64, request: &PageRequest<'_>) -> Result<Page, ListError> {
        let version = request.at.unwrap_or(current);
        if version > current {
            return Err(ListError::Future { current });
        }
        if version < self.log_start {
            return Err(ListError::Expired);
        }
        let everything = Filter::default();
        let filter = request.filter.unwrap_or(&everything);
        let limit = request.limit.unwrap_or(usize::MAX);
        let mut page = Page {
            version,
            ..Page::default()
        };
        let bounds = key_range(filter.namespace.as_deref(), request.after);
        let mut objects = self.at(version, &bounds);
        while let Some(object) = objects.next() {
            if page.items.len() < limit {
                if filter.matches(object) {
                    page.items.push(object.clone());
                }
            } else if !filter.is_selective() {
                page.more = true;
                page.remaining = Some(1 + objects.count());
                return Ok(page);
            } else if filter.matches(object) {
                page.more = true;
                return Ok(page);
            }
        }
        Ok(page)
    }

    /// Objects of a key range at a version: the current state with the log undone. Nothing is
    /// copied, so that a page costs only what it shows.
    fn at<'a>(
        &'a self,
        version: u64,
        bounds: &KeyRange,
    ) -> Box<dyn Iterator<Item = &'a Arc<Stored>> + 'a> {
        let present = self.objects.range::<str, _>(bounds.as_bounds());
        let mut past: BTreeMap<&str, Option<&Arc<Stored>>> = BTreeMap::new();
        let undone = self
            .log
            .iter()
            .rev()
            .take_while(|change| change.version > version);
        for change in undone {
            let side = change.old.as_ref().or(change.new.as_ref());
            if let Some(object) = side.filter(|object| bounds.contains(&object.key)) {
                past.insert(&object.key, change.old.as_ref());
            }
        }
        if past.is_empty() {
            return Box::new(present.map(|(_, object)| object));
        }
        let restored: Vec<(&str, &Arc<Stored>)> = past
            .iter()
            .filter_map(|(key, old)| Some((*key, (*old)?)))
            .collect();
        let mut restored = restored.into_iter().peekable();
        let mut unchanged = present
            .map(|(key, object)| (&**key, object))
            .filter(move |(key, _)| !past.contains_key(key))
            .peekable();
        // Merges two iterators that are sorted by key.
        Box::new(std::iter::from_fn(move || {
            let is_unchanged = match (unchanged.peek(), restored.peek()) {
                (Some((left, _)), Some((right, _))) => left < right,
                (left, _) => left.is_some(),
            };
            let next = if is_unchanged {
                unchanged.next()
            } else {
                restored.next()
            };
            next.map(|(_, object)| object)
        }))
    }
}

/// A range of keys: of a namespace or of all, optionally after a key.
struct KeyRange {
    from: Bound<String>,
    to: Bound<String>,
}

impl KeyRange {
    fn as_bounds(&self) -> (Bound<&str>, Bound<&str>) {
        (
            self.from.as_ref().map(String::as_str),
            self.to.as_ref().map(String::as_str),
        )
    }

    fn contains(&self, key: &str) -> bool {
        RangeBounds::<str>::contains(&self.as_bounds(), key)
    }
}

fn key_range(namespace: Option<&str>, after: Option<&str>) -> KeyRange {
    match (namespace, after) {
        (None, None) => KeyRange {
            from: Bound::Unbounded,
            to: Bound::Unbounded,
        },
        (None, Some(after)) => KeyRange {
            from: Bound::Excluded(after.to_owned()),
            to: Bound::Unbounded,
        },
        (Some(namespace), after) => KeyRange {
            from: Bound::Excluded(format!("{namespace}/{}", after.unwrap_or_default())),
            // `0` is the character after `/`, so this is the end of the namespace.
            to: Bound::Excluded(format!("{namespace}0")),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kind::builtin;

    fn map(name: &str, version: u64, content: &str) -> Arc<Stored> {
        let kinds = builtin::resource_types();
        let kind = kinds.iter().find(|kind| kind.kind == "ConfigMap").unwrap();
        let object = json!({
            "metadata": {"name": name, "resourceVersion": version.to_string()},
            "data": {"a": content},
        });
        let Value::Object(object) = object else {
            unreachable!()
        };
        Arc::new(Stored::new(kind, object))
    }

    #[test]
    fn large_changes_leave_the_log_sooner() {
        let mut collection = Collection::new(0, 100);
        collection.history_bytes = 10_000;
        for version in 1..=20 {
            let object = map("x", version, &"x".repeat(1000));
            let old = collection.insert(object.clone());
            collection.publish(Change::new(version, old, Some(object)));
        }
        assert!(collection.log_bytes <= 10_000, "{}", collection.log_bytes);
        let held: usize = collection.log.iter().map(|change| change.weight()).sum();
        assert_eq!(held, collection.log_bytes);
        let kept = u64::try_from(collection.log.len()).unwrap();
        assert!((1..10).contains(&kept), "{kept}");
        assert_eq!(collection.log_start, 20 - kept);
    }

    #[test]
    fn looking_at_the_first_objects_copies_none_of_the_others() {
        let mut collection = Collection::new(0, 100);
        for (version, name) in (1..).zip(["a", "b", "c", "d"]) {
            collection.insert(map(name, version, ""));
        }
        let object = map("b", 5, "");
        let old = collection.insert(object.clone());
        collection.publish(Change::new(5, old, Some(object)));
        let bounds = key_range(None, None);
        for version in [4, 5] {
            let mut objects = collection.at(version, &bounds);
            assert_eq!(objects.next().unwrap().name.as_str(), "a");
            let last = collection.objects.get("d").unwrap();
            assert_eq!(Arc::strong_count(last), 1);
            let rest: Vec<&str> = objects.map(|object| object.name.as_str()).collect();
            assert_eq!(rest, ["b", "c", "d"]);
        }
    }
}
