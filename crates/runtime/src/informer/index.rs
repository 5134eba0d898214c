//! Indexes over an informer's store.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use parking_lot::RwLock;
use weft_model::ObjectKey;

use super::{Guard, InformerStopped, Shared};
use crate::Object;

/// A view of an informer's store by derived values, kept in step with it.
///
/// Holding the index holds the informer.
pub struct Index<K: Object, V> {
    pub(super) cell: Arc<IndexCell<K, V>>,
    pub(super) shared: Arc<Shared<K>>,
    pub(super) guard: Arc<Guard>,
}

impl<K: Object, V: Hash + Eq + Clone + Send + Sync + 'static> Index<K, V> {
    /// The objects whose values contain `value`, in key order.
    pub fn get(&self, value: &V) -> Result<Vec<Arc<K>>, InformerStopped> {
        self.shared.read(|hub| {
            let keys = self.cell.keys(value);
            keys.iter()
                .filter_map(|key| hub.get(key).cloned())
                .collect()
        })
    }

    /// The keys whose values contain `value`, in order.
    pub fn keys(&self, value: &V) -> Result<Vec<ObjectKey>, InformerStopped> {
        self.shared.read(|_| self.cell.keys(value))
    }
}

impl<K: Object, V> Clone for Index<K, V> {
    fn clone(&self) -> Self {
        Self {
            cell: self.cell.clone(),
            shared: self.shared.clone(),
            guard: self.guard.clone(),
        }
    }
}

type Extract<K, V> = Box<dyn Fn(&K) -> Vec<V> + Send + Sync>;

pub(super) struct IndexCell<K, V> {
    name: String,
    extract: Extract<K, V>,
    entries: RwLock<Entries<V>>,
}

struct Entries<V> {
    by_value: HashMap<V, BTreeSet<ObjectKey>>,
    by_key: HashMap<ObjectKey, Vec<V>>,
}

/// An index as the store sees it.
pub(super) trait Indexed<K>: Send + Sync {
    fn set(&self, key: &ObjectKey, object: &K);
    fn remove(&self, key: &ObjectKey);
    fn clear(&self);
}

impl<K: Object, V: Hash + Eq + Clone + Send + Sync + 'static> IndexCell<K, V> {
    pub(super) fn new(
        name: &str,
        extract: impl Fn(&K) -> Vec<V> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let entries = Entries {
            by_value: HashMap::new(),
            by_key: HashMap::new(),
        };
        Arc::new(Self {
            name: name.to_owned(),
            extract: Box::new(extract),
            entries: RwLock::new(entries),
        })
    }

    fn keys(&self, value: &V) -> Vec<ObjectKey> {
        let entries = self.entries.read();
        entries
            .by_value
            .get(value)
            .map(|keys| keys.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// The function is a consumer's: its panic must not stop the informer for other consumers.
    fn values(&self, key: &ObjectKey, object: &K) -> Vec<V> {
        catch_unwind(AssertUnwindSafe(|| (self.extract)(object))).unwrap_or_else(|_| {
            tracing::error!(index = %self.name, %key, "index function panicked, object left out of the index");
            Vec::new()
        })
    }
}

impl<V: Hash + Eq> Entries<V> {
    fn forget(&mut self, key: &ObjectKey) {
        for value in self.by_key.remove(key).unwrap_or_default() {
            if let Some(keys) = self.by_value.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_value.remove(&value);
                }
            }
        }
    }
}

impl<K: Object, V: Hash + Eq + Clone + Send + Sync + 'static> Indexed<K> for IndexCell<K, V> {
    fn set(&self, key: &ObjectKey, object: &K) {
        let values = self.values(key, object);
        let mut entries = self.entries.write();
        if entries
            .by_key
            .get(key)
            .is_some_and(|known| *known == values)
        {
            return;
        }
        entries.forget(key);
        for value in &values {
            entries
                .by_value
                .entry(value.clone())
                .or_default()
                .insert(key.clone());
        }
        if !values.is_empty() {
            entries.by_key.insert(key.clone(), values);
        }
    }

    fn remove(&self, key: &ObjectKey) {
        self.entries.write().forget(key);
    }

    fn clear(&self) {
        let mut entries = self.entries.write();
        *entries = Entries {
            by_value: HashMap::new(),
            by_key: HashMap::new(),
        };
    }
}
