//! Predicates: filters for the changes that cause a reconcile.

use std::sync::Arc;

use crate::{Change, Object};

/// Filter of changes. Additions and deletions pass unless a predicate says otherwise.
pub struct Predicate<K>(Arc<Allows<K>>);

type Allows<K> = dyn Fn(&Change<K>) -> bool + Send + Sync;

impl<K> Clone for Predicate<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Object> Predicate<K> {
    /// A predicate over whole changes.
    pub fn new(allows: impl Fn(&Change<K>) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(allows))
    }

    /// Returns whether the change passes.
    pub fn allows(&self, change: &Change<K>) -> bool {
        (self.0)(change)
    }

    /// Passes if both pass.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::new(move |change| self.allows(change) && other.allows(change))
    }

    /// Passes if one of them passes.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self::new(move |change| self.allows(change) || other.allows(change))
    }

    /// Passes what this one stops.
    #[must_use]
    #[expect(
        clippy::should_implement_trait,
        reason = "reads as `a.not()`, like `and` and `or`"
    )]
    pub fn not(self) -> Self {
        Self::new(move |change| !self.allows(change))
    }

    /// Updates pass when a derived value differs between the old and the new object.
    pub fn field_changed<V: PartialEq>(value: impl Fn(&K) -> V + Send + Sync + 'static) -> Self {
        Self::new(move |change| match change {
            Change::Updated { old, new, .. } => value(old) != value(new),
            _ => true,
        })
    }

    /// Updates pass when `metadata.generation` changed.
    pub fn generation_changed() -> Self {
        Self::field_changed(Object::generation)
    }

    /// Updates pass unless they are a periodic re-delivery.
    pub fn resource_version_changed() -> Self {
        Self::field_changed(|object| object.resource_version().to_owned())
    }

    /// Updates pass when labels changed.
    pub fn labels_changed() -> Self {
        Self::new(|change| match change {
            Change::Updated { old, new, .. } => !old.labels().eq(new.labels()),
            _ => true,
        })
    }

    /// Updates pass when annotations changed.
    pub fn annotations_changed() -> Self {
        Self::new(|change| match change {
            Change::Updated { old, new, .. } => !old.annotations().eq(new.annotations()),
            _ => true,
        })
    }

    /// No update passes.
    pub fn created_or_deleted() -> Self {
        Self::new(|change| !matches!(change, Change::Updated { .. }))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn object(generation: i64, label: &str, annotation: &str) -> Arc<ConfigMap> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": "a", "generation": generation, "resourceVersion": "1",
                    "labels": {"l": label}, "annotations": {"a": annotation}},
            }))
            .unwrap(),
        )
    }

    #[test]
    fn updates_pass_by_what_differs() {
        let old = object(1, "x", "x");
        let update = |new: &Arc<ConfigMap>| Change::Updated {
            old: old.clone(),
            new: new.clone(),
            resync: false,
        };
        let spec = update(&object(2, "x", "x"));
        let label = update(&object(1, "y", "x"));
        let annotation = update(&object(1, "x", "y"));
        let (generation, labels, annotations) = (
            Predicate::generation_changed(),
            Predicate::labels_changed(),
            Predicate::annotations_changed(),
        );
        for (predicate, expected) in [
            (generation.clone(), [true, false, false]),
            (labels.clone(), [false, true, false]),
            (annotations.clone(), [false, false, true]),
            (generation.clone().or(labels.clone()), [true, true, false]),
            (
                generation.clone().and(labels.clone()),
                [false, false, false],
            ),
            (labels.clone().not(), [true, false, true]),
            (Predicate::created_or_deleted(), [false, false, false]),
            (Predicate::resource_version_changed(), [false, false, false]),
        ] {
            let seen = [&spec, &label, &annotation].map(|change| predicate.allows(change));
            assert_eq!(seen, expected);
        }
        let deleted = Change::Deleted {
            last: old.clone(),
            final_state_unknown: false,
        };
        for predicate in [
            generation,
            labels,
            annotations,
            Predicate::created_or_deleted(),
        ] {
            assert!(predicate.allows(&deleted), "deletions pass by default");
            assert!(predicate.allows(&Change::Added {
                new: old.clone(),
                initial: false
            }));
        }
    }
}
