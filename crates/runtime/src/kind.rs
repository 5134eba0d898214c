//! Resource kinds: group, version, plural and kind.

use std::fmt;

use kube::core::{ApiResource, GroupVersionKind};
use weft_model::SharedStr;

/// Group, version, plural resource name and kind.
///
/// The plural is what URLs need, the kind is what CRDs and owner references name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// API group, empty for the core group.
    pub group: SharedStr,
    /// API version within the group.
    pub version: SharedStr,
    /// Plural resource name, as in URLs.
    pub plural: SharedStr,
    /// Kind, as in objects.
    pub kind: SharedStr,
}

impl Kind {
    /// A kind from its four parts.
    pub fn new(group: &str, version: &str, plural: &str, kind: &str) -> Self {
        Self {
            group: SharedStr::interned(group),
            version: SharedStr::interned(version),
            plural: SharedStr::interned(plural),
            kind: SharedStr::interned(kind),
        }
    }

    /// `version` or `group/version`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `plural` or `plural.group`: the form used in messages and as the name of a CRD.
    pub fn resource_name(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_string()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Path of the collection, in one namespace or over all.
    pub fn collection_path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() {
            "/api"
        } else {
            "/apis"
        };
        let api_version = self.api_version();
        match namespace {
            Some(namespace) => format!(
                "{root}/{api_version}/namespaces/{namespace}/{}",
                self.plural
            ),
            None => format!("{root}/{api_version}/{}", self.plural),
        }
    }

    /// The same in kube's type.
    pub fn to_api_resource(&self) -> ApiResource {
        let gvk = GroupVersionKind::gvk(&self.group, &self.version, &self.kind);
        ApiResource::from_gvk_with_plural(&gvk, &self.plural)
    }
}

impl From<&ApiResource> for Kind {
    fn from(resource: &ApiResource) -> Self {
        Self::new(
            &resource.group,
            &resource.version,
            &resource.plural,
            &resource.kind,
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.resource_name(), self.version)
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_group_and_namespace() {
        let pods = Kind::new("", "v1", "pods", "Pod");
        let slices = Kind::new("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice");
        assert_eq!(pods.collection_path(None), "/api/v1/pods");
        assert_eq!(pods.collection_path(Some("a")), "/api/v1/namespaces/a/pods");
        assert_eq!(
            slices.collection_path(None),
            "/apis/discovery.k8s.io/v1/endpointslices"
        );
        assert_eq!(slices.to_string(), "endpointslices.discovery.k8s.io/v1");
    }
}
