//! Keys of Kubernetes objects.

use std::fmt;

use crate::SharedStr;

/// Namespace and name of an object: what identifies it within its kind.
///
/// The UID is deliberately absent: a deleted and re-created object has the same key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// `None` for cluster-scoped objects.
    pub namespace: Option<SharedStr>,
    /// The object's name.
    pub name: SharedStr,
}

impl ObjectKey {
    /// A key inside a namespace.
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self {
            namespace: Some(SharedStr::interned(namespace)),
            name: SharedStr::new(name),
        }
    }

    /// A key of a cluster-scoped object.
    pub fn cluster(name: &str) -> Self {
        Self {
            namespace: None,
            name: SharedStr::new(name),
        }
    }

    /// A key from the two metadata fields as Kubernetes sends them.
    pub fn new(namespace: Option<&str>, name: &str) -> Self {
        match namespace {
            Some(namespace) if !namespace.is_empty() => Self::namespaced(namespace, name),
            _ => Self::cluster(name),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => write!(f, "{}", self.name),
        }
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_namespace_means_cluster_scoped() {
        assert_eq!(ObjectKey::new(Some(""), "n1"), ObjectKey::cluster("n1"));
        assert_eq!(ObjectKey::new(Some("a"), "b").to_string(), "a/b");
    }
}
