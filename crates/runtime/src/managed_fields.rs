//! Wrapper that drops `managedFields` from whole objects.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use crate::{
    Kind,
    object::{Kinded, Object, Owner, Pairs},
};

/// A `k8s_openapi` type or a `DynamicObject` without `managedFields`, which is more than half of
/// what a whole Pod takes in memory.
///
/// A [`projection!`](crate::projection) of the fields that are read takes less still: it does not
/// decode the others.
#[derive(Clone, Debug, PartialEq)]
pub struct WithoutManagedFields<K>(K);

impl<K> WithoutManagedFields<K> {
    /// The wrapped object.
    pub fn into_inner(self) -> K {
        self.0
    }
}

impl<K> Deref for WithoutManagedFields<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.0
    }
}

impl<'de, K: kube::Resource + Deserialize<'de>> Deserialize<'de> for WithoutManagedFields<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = K::deserialize(deserializer)?;
        object.meta_mut().managed_fields = None;
        Ok(Self(object))
    }
}

impl<K> Object for WithoutManagedFields<K>
where
    K: kube::Resource + DeserializeOwned + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        self.0.name()
    }

    fn namespace(&self) -> Option<&str> {
        Object::namespace(&self.0)
    }

    fn uid(&self) -> Option<&str> {
        self.0.uid()
    }

    fn resource_version(&self) -> &str {
        self.0.resource_version()
    }

    fn generation(&self) -> Option<i64> {
        self.0.generation()
    }

    fn is_terminating(&self) -> bool {
        self.0.is_terminating()
    }

    fn labels(&self) -> Pairs<'_> {
        self.0.labels()
    }

    fn annotations(&self) -> Pairs<'_> {
        self.0.annotations()
    }

    fn owners(&self) -> Vec<Owner<'_>> {
        self.0.owners()
    }

    fn normalise(&mut self, kind: &Kind) {
        self.0.normalise(kind);
    }
}

impl<K> Kinded for WithoutManagedFields<K>
where
    K: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    fn resource_kind() -> Kind {
        K::resource_kind()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::core::DynamicObject;
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> Value {
        json!({
            "metadata": {
                "name": "a", "namespace": "b", "uid": "c", "resourceVersion": "7",
                "labels": {"app": "web"}, "annotations": {"note": "x"},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
            },
            "spec": {"nodeName": "n", "containers": []},
        })
    }

    #[test]
    fn everything_else_is_there() {
        let whole: Pod = serde_json::from_value(pod()).unwrap();
        let kept: WithoutManagedFields<Pod> = serde_json::from_value(pod()).unwrap();
        assert!(whole.metadata.managed_fields.is_some());
        assert_eq!(kept.key(), whole.key());
        assert_eq!((kept.uid(), kept.resource_version()), (Some("c"), "7"));
        assert_eq!(kept.label("app"), Some("web"));
        assert_eq!(Object::annotations(&kept).next(), Some(("note", "x")));
        let mut expected = whole;
        expected.metadata.managed_fields = None;
        assert_eq!(kept.into_inner(), expected);
        let kind = WithoutManagedFields::<Pod>::resource_kind();
        assert_eq!(kind, Pod::resource_kind());
    }

    #[test]
    fn a_dynamic_list_item_learns_its_kind() {
        let mut kept: WithoutManagedFields<DynamicObject> = serde_json::from_value(pod()).unwrap();
        kept.normalise(&Kind::new("", "v1", "pods", "Pod"));
        assert_eq!(kept.types.as_ref().unwrap().kind, "Pod");
        assert_eq!(kept.metadata.managed_fields, None);
    }
}
