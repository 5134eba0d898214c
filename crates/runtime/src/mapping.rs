//! Mappers: from objects to the keys that must be reconciled.

use std::sync::Arc;

use weft_model::ObjectKey;

use crate::{Kind, Object, QueueKey};

type MapObject<K, Q> = dyn Fn(&K) -> Vec<Q> + Send + Sync;

/// The owner references that [`Mapper::owners`] follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerFilter {
    /// Only the owner that manages the object (`controller: true`).
    Controller,
    /// Every owner of the kind.
    All,
}

/// Maps an object to keys. For an update both the old and the new object are mapped, so that a key
/// that lost the object is reconciled too.
pub struct Mapper<K, Q> {
    object: Arc<MapObject<K, Q>>,
    key: Option<fn(&ObjectKey) -> Q>,
}

impl<K, Q> Clone for Mapper<K, Q> {
    fn clone(&self) -> Self {
        Self {
            object: self.object.clone(),
            key: self.key,
        }
    }
}

impl<K: Object, Q: QueueKey> Mapper<K, Q> {
    /// A mapper from a function.
    pub fn new(map: impl Fn(&K) -> Vec<Q> + Send + Sync + 'static) -> Self {
        Self {
            object: Arc::new(map),
            key: None,
        }
    }

    /// Maps every object to one key: for controllers that work on the whole state at once.
    pub fn always(key: Q) -> Self {
        Self::new(move |_| vec![key.clone()])
    }

    pub(crate) fn keys(&self, object: &K) -> Vec<Q> {
        (self.object)(object)
    }

    /// The key of an object that could not be decoded, if its name is enough to map it.
    pub(crate) fn bare_key(&self, key: &ObjectKey) -> Option<Q> {
        self.key.map(|map| map(key))
    }
}

impl<K: Object> Mapper<K, ObjectKey> {
    /// The object's own key.
    pub fn own_key() -> Self {
        Self {
            object: Arc::new(|object: &K| vec![object.key()]),
            key: Some(ObjectKey::clone),
        }
    }

    /// The owners of a namespaced kind, in the object's namespace.
    pub fn owners(owner: Kind, filter: OwnerFilter) -> Self {
        Self::owners_in(owner, filter, K::namespace)
    }

    /// The owners of a cluster-scoped kind.
    pub fn cluster_owners(owner: Kind, filter: OwnerFilter) -> Self {
        Self::owners_in(owner, filter, |_| None)
    }

    fn owners_in(owner: Kind, filter: OwnerFilter, namespace: fn(&K) -> Option<&str>) -> Self {
        Self::new(move |object| {
            let owners = object.owners().into_iter().filter(|candidate| {
                candidate.kind == owner.kind.as_str()
                    && candidate.group() == owner.group.as_str()
                    && (candidate.controller || filter == OwnerFilter::All)
            });
            owners
                .map(|owner| ObjectKey::new(namespace(object), owner.name))
                .collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MetadataOnly;

    #[test]
    fn owners_are_matched_by_group_and_kind_not_version() {
        let object: MetadataOnly = serde_json::from_str(
            r#"{"metadata":{"name":"pod","namespace":"n","ownerReferences":[
                {"apiVersion":"apps/v1beta1","kind":"ReplicaSet","name":"mine","uid":"1","controller":true},
                {"apiVersion":"other/v1","kind":"ReplicaSet","name":"foreign","uid":"2","controller":true},
                {"apiVersion":"apps/v1","kind":"ReplicaSet","name":"second","uid":"3"}]}}"#,
        )
        .unwrap();
        let kind = Kind::new("apps", "v1", "replicasets", "ReplicaSet");
        let keys = |filter| Mapper::owners(kind.clone(), filter).keys(&object);
        let mine = ObjectKey::namespaced("n", "mine");
        assert_eq!(keys(OwnerFilter::Controller), std::slice::from_ref(&mine));
        assert_eq!(
            keys(OwnerFilter::All),
            [mine, ObjectKey::namespaced("n", "second")]
        );
        let cluster = Mapper::cluster_owners(kind.clone(), OwnerFilter::Controller).keys(&object);
        assert_eq!(cluster, [ObjectKey::cluster("mine")]);
    }
}
