//! Objects of one kind in key order, with the log of their latest changes.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use super::{
    Change, Delivery, Filter, TooOld, WatchStart, object::Stored, object::object_key,
    watcher::Watchers,
};

/// A list request as the store sees it.
#[derive(Debug, Clone, Default)]
pub(crate) struct PageRequest<'a> {
    pub(crate) filter: Option<&'a Filter>,
    /// The version to show; now when absent.
    pub(crate) at: Option<u64>,
    /// Whether this goes on with an earlier list.
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
    /// Whether more follow the last item.
    pub(crate) more: bool,
    /// How many follow, when no selector makes that costly to know.
    pub(crate) remaining: Option<usize>,
}

/// Why a list cannot be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListError {
    /// The version asked for has no history left.
    Expired,
    /// The version asked for does not exist yet.
    Future {
        /// The newest version there is.
        current: u64,
    },
}

#[derive(Debug)]
pub(super) struct Collection {
    objects: BTreeMap<Arc<str>, Arc<Stored>>,
    log: VecDeque<Arc<Change>>,
    history: usize,
    /// Every change after this version is in the log.
    floor: u64,
    pub(super) watchers: Watchers,
}

impl Collection {
    pub(super) fn new(floor: u64, history: usize) -> Self {
        Self {
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            history,
            floor,
            watchers: Watchers::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
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
        if self.log.len() >= self.history
            && let Some(dropped) = self.log.pop_front()
        {
            self.floor = dropped.version;
        }
        self.log.push_back(change.clone());
        self.watchers.publish(&change);
        change
    }

    pub(super) fn compact(&mut self, version: u64) {
        self.log.clear();
        self.floor = version;
    }

    /// Objects that match, in key order.
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

    /// What a watch must send before live changes.
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
            WatchStart::After(version) if version < self.floor => {
                Err(TooOld { oldest: self.floor })
            }
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

    /// One page, showing the state at the version asked for.
    pub(super) fn page(&self, current: u64, request: &PageRequest<'_>) -> Result<Page, ListError> {
        let version = request.at.unwrap_or(current);
        if version > current {
            return Err(ListError::Future { current });
        }
        if version < self.floor {
            return Err(ListError::Expired);
        }
        let everything = Filter::default();
        let filter = request.filter.unwrap_or(&everything);
        let limit = request.limit.unwrap_or(usize::MAX);
        let mut page = Page {
            version,
            ..Page::default()
        };
        let mut remaining = 0;
        for object in self.at(version, filter.namespace.as_deref(), request.after) {
            if page.items.len() == limit {
                if filter.is_selective() {
                    if filter.matches(&object) {
                        page.more = true;
                        return Ok(page);
                    }
                    continue;
                }
                remaining += 1;
            } else if filter.matches(&object) {
                page.items.push(object);
            }
        }
        page.more = remaining > 0;
        page.remaining = (remaining > 0).then_some(remaining);
        Ok(page)
    }

    /// Objects of a key range as they were at a version: the present with the log undone.
    fn at(
        &self,
        version: u64,
        namespace: Option<&str>,
        after: Option<&str>,
    ) -> impl Iterator<Item = Arc<Stored>> {
        let bounds = key_range(namespace, after);
        let mut past: BTreeMap<&str, Option<&Arc<Stored>>> = BTreeMap::new();
        let undone = self
            .log
            .iter()
            .rev()
            .take_while(|change| change.version > version);
        for change in undone {
            let side = change.old.as_ref().or(change.new.as_ref());
            if let Some(object) = side {
                past.insert(&object.key, change.old.as_ref());
            }
        }
        let unchanged = self
            .objects
            .range::<str, _>(bounds.as_bounds())
            .filter(|(key, _)| !past.contains_key(&***key))
            .map(|(key, object)| (&**key, object));
        let restored = past
            .iter()
            .filter_map(|(key, old)| Some((*key, (*old)?)))
            .filter(|(key, _)| bounds.contains(key));
        let mut merged: Vec<_> = unchanged.chain(restored).collect();
        if !past.is_empty() {
            merged.sort_by_key(|(key, _)| *key);
        }
        merged
            .into_iter()
            .map(|(_, object)| object.clone())
            .collect::<Vec<_>>()
            .into_iter()
    }
}

/// A range of keys: a namespace or all of them, perhaps only after a key.
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
            // The character after `/`: the end of the namespace.
            to: Bound::Excluded(format!("{namespace}0")),
        },
    }
}
