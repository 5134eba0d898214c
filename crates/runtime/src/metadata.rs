//! Slim metadata: the fields that projections decode instead of Kubernetes' full `ObjectMeta`.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess},
};
use weft_model::{ObjectKey, SharedStr};

use crate::object::{Owner, Pairs};

/// The metadata fields that consumers of a cache read.
///
/// `managedFields` is a third of an average Pod on the wire and half of it in memory: here it is
/// skipped at scanner speed and never allocated. Annotations are skipped too, unless a projection
/// asks for them with `Metadata<Labels>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    default,
    bound = "A: Deserialize<'de> + Default"
)]
pub struct Metadata<A: Default = Skipped> {
    /// The object's name, which keys made from it share. Not interned: hardly two objects have the
    /// same.
    #[serde(deserialize_with = "SharedStr::deserialize_new")]
    pub name: SharedStr,
    /// The object's namespace.
    pub namespace: Option<SharedStr>,
    /// The object's UID.
    pub uid: Box<str>,
    /// Version of this state.
    pub resource_version: Box<str>,
    /// Incremented by the API server with every change of the spec.
    pub generation: Option<i64>,
    /// Present while the object is being deleted.
    #[serde(deserialize_with = "is_present")]
    deletion_timestamp: bool,
    /// Labels in key order.
    pub labels: Labels,
    /// Annotations that the projection keeps.
    pub annotations: A,
    /// Owner references.
    pub owner_references: Box<[OwnerReference]>,
}

impl<A: Default> Metadata<A> {
    /// Namespace and name, without a copy of either.
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            namespace: self.namespace.clone().filter(|text| !text.is_empty()),
            name: self.name.clone(),
        }
    }

    /// Returns whether a deletion timestamp is set.
    pub fn is_terminating(&self) -> bool {
        self.deletion_timestamp
    }

    /// The owners in borrowed form.
    pub fn owners(&self) -> Vec<Owner<'_>> {
        self.owner_references
            .iter()
            .map(|owner| Owner {
                api_version: &owner.api_version,
                kind: &owner.kind,
                name: &owner.name,
                uid: &owner.uid,
                controller: owner.controller,
            })
            .collect()
    }
}

fn is_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(deserializer)?.is_some())
}

/// An owner reference as it is kept in slim metadata.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// `group/version` of the owner.
    pub api_version: SharedStr,
    /// Kind of the owner.
    pub kind: SharedStr,
    /// Name of the owner.
    pub name: SharedStr,
    /// UID of the owner.
    pub uid: SharedStr,
    /// The owner is the managing controller.
    #[serde(default)]
    pub controller: bool,
}

/// A small string map, sorted by key, in one allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Box<[(SharedStr, SharedStr)]>);

impl Labels {
    /// The pairs in key order.
    pub fn pairs(&self) -> Pairs<'_> {
        Box::new(
            self.0
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_str())),
        )
    }

    /// The value under a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let position = self
            .0
            .binary_search_by(|(candidate, _)| candidate.as_str().cmp(key))
            .ok()?;
        Some(self.0[position].1.as_str())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Labels;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }
            fn visit_unit<E: de::Error>(self) -> Result<Labels, E> {
                Ok(Labels::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut pairs: Vec<(SharedStr, SharedStr)> = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                pairs.sort_unstable();
                Ok(Labels(pairs.into_boxed_slice()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Takes the place of annotations in a projection that does not read them: costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped;

impl<'de> Deserialize<'de> for Skipped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// Annotations that a projection keeps: [`Skipped`], all of them ([`Labels`]), or a struct of its
/// own that decodes a few.
pub trait Annotations {
    /// The kept annotations in key order.
    fn pairs(&self) -> Pairs<'_>;
}

impl Annotations for Skipped {
    fn pairs(&self) -> Pairs<'_> {
        Box::new(std::iter::empty())
    }
}

impl Annotations for Labels {
    fn pairs(&self) -> Pairs<'_> {
        Self::pairs(self)
    }
}

/// Implements [`Object`](crate::Object) and [`Kinded`](crate::Kinded) for a projection: a struct
/// with a field `metadata:` [`Metadata`] and the fields that its consumers read.
///
/// ```
/// use serde::Deserialize;
/// use weft_runtime::{Metadata, projection};
///
/// #[derive(Deserialize)]
/// struct PodAddress {
///     metadata: Metadata,
///     #[serde(default)]
///     status: Status,
/// }
/// #[derive(Deserialize, Default)]
/// #[serde(rename_all = "camelCase", default)]
/// struct Status {
///     pod_ip: Option<std::net::IpAddr>,
/// }
/// projection!(PodAddress, "", "v1", "pods", "Pod");
/// ```
#[macro_export]
macro_rules! projection {
    ($type:ty, $group:literal, $version:literal, $plural:literal, $kind:literal) => {
        $crate::projection!($type);
        impl $crate::Kinded for $type {
            fn resource_kind() -> $crate::Kind {
                $crate::Kind::new($group, $version, $plural, $kind)
            }
        }
    };
    ($type:ty) => {
        impl $crate::Object for $type {
            fn name(&self) -> &str {
                &self.metadata.name
            }
            fn key(&self) -> $crate::ObjectKey {
                self.metadata.key()
            }
            fn namespace(&self) -> Option<&str> {
                self.metadata.namespace.as_deref()
            }
            fn uid(&self) -> Option<&str> {
                Some(&self.metadata.uid)
            }
            fn resource_version(&self) -> &str {
                &self.metadata.resource_version
            }
            fn generation(&self) -> Option<i64> {
                self.metadata.generation
            }
            fn is_terminating(&self) -> bool {
                self.metadata.is_terminating()
            }
            fn labels(&self) -> $crate::Pairs<'_> {
                self.metadata.labels.pairs()
            }
            fn annotations(&self) -> $crate::Pairs<'_> {
                $crate::Annotations::pairs(&self.metadata.annotations)
            }
            fn owners(&self) -> Vec<$crate::Owner<'_>> {
                self.metadata.owners()
            }
        }
    };
}

/// Metadata alone: the projection for consumers that only follow existence, labels or owners.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MetadataOnly {
    /// The metadata.
    pub metadata: Metadata,
}

projection!(MetadataOnly);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Object;

    #[test]
    fn slim_metadata_keeps_what_consumers_read() {
        let object: MetadataOnly = serde_json::from_str(
            r#"{"kind":"Pod","metadata":{"name":"p","namespace":"n","uid":"u","resourceVersion":"7",
                "deletionTimestamp":"2026-01-01T00:00:00Z","labels":{"b":"2","a":"1"},
                "managedFields":[{"manager":"m","fieldsV1":{"f:metadata":{}}}],
                "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"o",
                "controller":true,"blockOwnerDeletion":true}]},"spec":{"x":[1,2]}}"#,
        )
        .unwrap();
        assert_eq!(object.key().to_string(), "n/p");
        let name = object.key().name;
        assert!(std::ptr::eq(name.as_str(), object.name()), "shared");
        assert!(object.is_terminating());
        assert_eq!(
            object.labels().collect::<Vec<_>>(),
            [("a", "1"), ("b", "2")]
        );
        assert_eq!(object.metadata.labels.get("b"), Some("2"));
        let owners = object.owners();
        assert_eq!(
            (owners[0].kind, owners[0].group(), owners[0].controller),
            ("ReplicaSet", "apps", true)
        );
    }

    #[test]
    fn absent_and_null_fields_are_empty() {
        let object: MetadataOnly = serde_json::from_str(
            r#"{"metadata":{"name":"p","labels":null,"deletionTimestamp":null}}"#,
        )
        .unwrap();
        assert!(!object.is_terminating());
        assert_eq!(object.labels().count(), 0);
        assert_eq!(object.namespace(), None);
    }
}
