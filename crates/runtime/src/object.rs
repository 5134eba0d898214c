//! Traits of the objects that informers can hold.

use std::any::Any;

use serde::de::DeserializeOwned;
use weft_model::ObjectKey;

use crate::Kind;

/// An object that informers can hold: a full `k8s_openapi` type, a `DynamicObject`, or a slim
/// projection that declares only the fields its consumers read.
///
/// Implemented for every `kube::Resource`; projections use [`projection!`](crate::projection).
pub trait Object: DeserializeOwned + Send + Sync + 'static {
    /// `metadata.name`, empty when absent.
    fn name(&self) -> &str;
    /// `metadata.namespace`, absent for cluster-scoped objects.
    fn namespace(&self) -> Option<&str>;
    /// `metadata.uid`, absent before the object is created.
    fn uid(&self) -> Option<&str>;
    /// `metadata.resourceVersion`, empty when absent.
    fn resource_version(&self) -> &str;
    /// `metadata.generation`, absent for kinds that do not count it.
    fn generation(&self) -> Option<i64>;
    /// Returns whether a deletion timestamp is set.
    fn is_terminating(&self) -> bool;
    /// Labels in key order.
    fn labels(&self) -> Pairs<'_>;
    /// Annotations in key order; empty for projections that do not decode them.
    fn annotations(&self) -> Pairs<'_>;
    /// Owner references; empty for projections that no controller maps to their owners.
    fn owners(&self) -> Vec<Owner<'_>>;
    /// Fills in what a list leaves out: items of built-in lists carry no kind and apiVersion.
    fn normalise(&mut self, _kind: &Kind) {}

    /// Namespace and name.
    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name())
    }

    /// The value of one label.
    fn label(&self, key: &str) -> Option<&str> {
        self.labels()
            .find(|(candidate, _)| *candidate == key)
            .map(|(_, value)| value)
    }
}

/// Iterator over labels or annotations.
pub type Pairs<'a> = Box<dyn Iterator<Item = (&'a str, &'a str)> + 'a>;

/// An object type with a fixed resource.
pub trait Kinded: Object {
    /// Group, version and resource of this type.
    fn resource_kind() -> Kind;
}

/// A reference to an owner, borrowed from the owned object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner<'a> {
    /// `group/version` of the owner.
    pub api_version: &'a str,
    /// Kind of the owner.
    pub kind: &'a str,
    /// Name of the owner, in the namespace of the owned object or cluster-scoped.
    pub name: &'a str,
    /// UID of the owner.
    pub uid: &'a str,
    /// The owner is the managing controller.
    pub controller: bool,
}

impl Owner<'_> {
    /// The group part of the owner's apiVersion, empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version
            .split_once('/')
            .map_or("", |(group, _)| group)
    }
}

impl<K> Object for K
where
    K: kube::Resource + DeserializeOwned + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> Option<&str> {
        self.meta().namespace.as_deref()
    }

    fn uid(&self) -> Option<&str> {
        self.meta().uid.as_deref()
    }

    fn resource_version(&self) -> &str {
        self.meta().resource_version.as_deref().unwrap_or_default()
    }

    fn generation(&self) -> Option<i64> {
        self.meta().generation
    }

    fn is_terminating(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    fn labels(&self) -> Pairs<'_> {
        Box::new(
            self.meta()
                .labels
                .iter()
                .flatten()
                .map(|(k, v)| (k.as_str(), v.as_str())),
        )
    }

    fn annotations(&self) -> Pairs<'_> {
        Box::new(
            self.meta()
                .annotations
                .iter()
                .flatten()
                .map(|(k, v)| (k.as_str(), v.as_str())),
        )
    }

    fn owners(&self) -> Vec<Owner<'_>> {
        let references = self.meta().owner_references.iter().flatten();
        references
            .map(|owner| Owner {
                api_version: &owner.api_version,
                kind: &owner.kind,
                name: &owner.name,
                uid: &owner.uid,
                controller: owner.controller.unwrap_or(false),
            })
            .collect()
    }

    fn normalise(&mut self, kind: &Kind) {
        let any: &mut dyn Any = self;
        if let Some(object) = any.downcast_mut::<kube::core::DynamicObject>()
            && object.types.is_none()
        {
            object.types = Some(kube::core::TypeMeta {
                api_version: kind.api_version(),
                kind: kind.kind.to_string(),
            });
        }
    }
}

impl<K> Kinded for K
where
    K: kube::Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    fn resource_kind() -> Kind {
        Kind::new(
            &K::group(&()),
            &K::version(&()),
            &K::plural(&()),
            &K::kind(&()),
        )
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::core::DynamicObject;

    use super::*;

    #[test]
    fn a_dynamic_list_item_learns_its_kind() {
        let mut object: DynamicObject =
            serde_json::from_str(r#"{"metadata":{"name":"a"}}"#).unwrap();
        object.normalise(&Kind::new("apps", "v1", "deployments", "Deployment"));
        let types = object.types.unwrap();
        assert_eq!(
            (types.api_version.as_str(), types.kind.as_str()),
            ("apps/v1", "Deployment")
        );
    }

    #[test]
    fn typed_objects_know_their_kind() {
        assert_eq!(Pod::resource_kind(), Kind::new("", "v1", "pods", "Pod"));
    }
}
