//! Read access to an informer's store.

use std::sync::Arc;

use weft_model::{ObjectKey, is_older_version};

use super::{Guard, InformerStopped, Shared, UndecodableObject};
use crate::Object;

/// Reads an informer's store. Holds the informer: the store it reads is always followed, and an
/// informer that ended is an error, not an empty list.
pub struct Lister<K: Object> {
    pub(super) shared: Arc<Shared<K>>,
    pub(super) guard: Arc<Guard>,
}

impl<K: Object> Lister<K> {
    /// One object.
    pub fn get(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, InformerStopped> {
        self.shared.read(|hub| hub.get(key).cloned())
    }

    /// Every object, in no particular order.
    pub fn list(&self) -> Result<Vec<Arc<K>>, InformerStopped> {
        self.shared
            .read(|hub| hub.iter().map(|(_, object)| object.clone()).collect())
    }

    /// Every object of a namespace, in no particular order.
    pub fn by_namespace(&self, namespace: &str) -> Result<Vec<Arc<K>>, InformerStopped> {
        self.shared.read(|hub| {
            let inside = hub
                .iter()
                .filter(|(key, _)| key.namespace.as_deref() == Some(namespace));
            inside.map(|(_, object)| object.clone()).collect()
        })
    }

    /// Number of objects.
    pub fn len(&self) -> Result<usize, InformerStopped> {
        self.shared.read(super::hub::Hub::len)
    }

    /// Returns whether the store is empty.
    pub fn is_empty(&self) -> Result<bool, InformerStopped> {
        self.len().map(|len| len == 0)
    }

    /// The newest state of an object if it could not be decoded; the store keeps an older one, or
    /// none.
    pub fn undecodable(
        &self,
        key: &ObjectKey,
    ) -> Result<Option<Arc<UndecodableObject>>, InformerStopped> {
        self.shared.read(|hub| hub.undecodable_at(key).cloned())
    }

    /// Returns whether the store has caught up with a version of an object: it holds that version,
    /// a newer one, or the informer as a whole has passed it.
    pub fn has_reached(&self, key: &ObjectKey, version: &str) -> Result<bool, InformerStopped> {
        let whole = self.shared.version();
        self.shared.read(|hub| match hub.get(key) {
            Some(object) => !is_older_version(object.resource_version(), version),
            None => !whole.is_empty() && !is_older_version(whole.as_str(), version),
        })
    }
}

impl<K: Object> Clone for Lister<K> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            guard: self.guard.clone(),
        }
    }
}
