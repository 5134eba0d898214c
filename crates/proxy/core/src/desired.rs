//! The Services to serve, by name.

use std::{collections::HashMap, sync::Arc};

use weft_model::ObjectKey;

use crate::Service;

/// All Services of one family that should be served.
///
/// A hash map, because a search for one Service then costs the same in a cluster of any size. Iteration
/// sorts, except [`unordered`](Self::unordered).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired(HashMap<ObjectKey, Arc<Service>>);

impl Desired {
    /// Without Services.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of Services.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is no Service.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The Service of that name.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<Service>> {
        self.0.get(key)
    }

    /// True if there is a Service of that name.
    pub fn contains_key(&self, key: &ObjectKey) -> bool {
        self.0.contains_key(key)
    }

    /// Adds or replaces a Service. Returns the one before.
    pub fn insert(&mut self, key: ObjectKey, service: Arc<Service>) -> Option<Arc<Service>> {
        self.0.insert(key, service)
    }

    /// Removes a Service and returns it.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<Arc<Service>> {
        self.0.remove(key)
    }

    /// Removes Services for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&ObjectKey, &Arc<Service>) -> bool) {
        self.0.retain(|key, service| keep(key, service));
    }

    /// All Services in no order.
    pub fn unordered(&self) -> impl ExactSizeIterator<Item = &Arc<Service>> {
        self.0.values()
    }

    /// Names and Services by name. Sorts them.
    pub fn iter(&self) -> std::vec::IntoIter<(&ObjectKey, &Arc<Service>)> {
        let mut all: Vec<(&ObjectKey, &Arc<Service>)> = self.0.iter().collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all.into_iter()
    }

    /// Names in their order. Sorts them.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &ObjectKey> {
        self.iter().map(|(key, _)| key)
    }

    /// Services by name. Sorts them.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &Arc<Service>> {
        self.iter().map(|(_, service)| service)
    }
}

impl<'a> IntoIterator for &'a Desired {
    type Item = (&'a ObjectKey, &'a Arc<Service>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Desired {
    type Item = (ObjectKey, Arc<Service>);
    type IntoIter = std::collections::hash_map::IntoIter<ObjectKey, Arc<Service>>;

    /// In no order.
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Extend<(ObjectKey, Arc<Service>)> for Desired {
    fn extend<I: IntoIterator<Item = (ObjectKey, Arc<Service>)>>(&mut self, all: I) {
        self.0.extend(all);
    }
}

impl FromIterator<(ObjectKey, Arc<Service>)> for Desired {
    fn from_iter<I: IntoIterator<Item = (ObjectKey, Arc<Service>)>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}
