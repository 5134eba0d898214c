//! Registry of served resource types, replaced as a whole when definitions change.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;

use super::{ResourceType, builtin};

type Path = (String, String, String);

/// Immutable snapshot of all served types.
#[derive(Debug, Default)]
pub(crate) struct Served {
    /// By group, version and plural.
    by_path: HashMap<Path, Arc<ResourceType>>,
    /// Groups in discovery order, each with its versions in order of preference.
    pub(crate) groups: Vec<Group>,
}

/// One API group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) versions: Vec<Version>,
}

/// One version of a group with its resources, sorted by plural.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) name: String,
    pub(crate) resources: Vec<Arc<ResourceType>>,
}

/// Positions of groups and versions while a snapshot is built.
#[derive(Debug, Default)]
struct Places {
    groups: HashMap<String, usize>,
    versions: HashMap<(usize, String), usize>,
}

impl Served {
    fn new(types: impl IntoIterator<Item = Arc<ResourceType>>) -> Self {
        let mut served = Self::default();
        let mut places = Places::default();
        for kind in types {
            let path = (
                kind.group.clone(),
                kind.version.clone(),
                kind.plural.clone(),
            );
            served.add_to_group(&kind, &mut places);
            served.by_path.insert(path, kind);
        }
        for group in &mut served.groups {
            group
                .versions
                .sort_by_key(|version| std::cmp::Reverse(priority(&version.name)));
            for version in &mut group.versions {
                version.resources.sort_by(|a, b| a.plural.cmp(&b.plural));
            }
        }
        let rank = |name: &str| {
            builtin::GROUP_ORDER
                .iter()
                .position(|known| *known == name)
                .unwrap_or(usize::MAX)
        };
        served
            .groups
            .sort_by(|a, b| (rank(&a.name), &a.name).cmp(&(rank(&b.name), &b.name)));
        served
    }

    fn add_to_group(&mut self, kind: &Arc<ResourceType>, places: &mut Places) {
        let group = *places.groups.entry(kind.group.clone()).or_insert_with(|| {
            self.groups.push(Group {
                name: kind.group.clone(),
                versions: Vec::new(),
            });
            self.groups.len() - 1
        });
        let versions = &mut self.groups[group].versions;
        let version = places.versions.entry((group, kind.version.clone()));
        let version = *version.or_insert_with(|| {
            versions.push(Version {
                name: kind.version.clone(),
                resources: Vec::new(),
            });
            versions.len() - 1
        });
        versions[version].resources.push(kind.clone());
    }

    pub(crate) fn find(
        &self,
        group: &str,
        version: &str,
        plural: &str,
    ) -> Option<&Arc<ResourceType>> {
        self.by_path
            .get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    pub(crate) fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }

    pub(crate) fn version(&self, group: &str, version: &str) -> Option<&Version> {
        self.group(group)?
            .versions
            .iter()
            .find(|known| known.name == version)
    }

    pub(crate) fn types(&self) -> impl Iterator<Item = &Arc<ResourceType>> {
        self.by_path.values()
    }

    /// The type of a kind in its preferred version.
    pub(crate) fn of_kind(&self, group: &str, kind: &str) -> Option<&Arc<ResourceType>> {
        let versions = &self.group(group)?.versions;
        versions
            .iter()
            .flat_map(|version| &version.resources)
            .find(|known| known.kind == kind)
    }
}

/// Sort key of version names, by Kubernetes' rule: v2 > v1 > v1beta2 > v1alpha1 > anything else.
pub(crate) fn priority(version: &str) -> (u8, u64, u64) {
    let Some(rest) = version.strip_prefix('v') else {
        return (0, 0, 0);
    };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let Ok(major) = rest[..digits].parse::<u64>() else {
        return (0, 0, 0);
    };
    let tail = &rest[digits..];
    let minor = |prefix: &str| {
        tail.strip_prefix(prefix)
            .and_then(|n| n.parse::<u64>().ok())
    };
    match (tail, minor("beta"), minor("alpha")) {
        ("", ..) => (3, major, 0),
        (_, Some(beta), _) => (2, major, beta),
        (_, _, Some(alpha)) => (1, major, alpha),
        _ => (0, 0, 0),
    }
}

/// The current snapshot of served types.
#[derive(Debug)]
pub(crate) struct Registry {
    served: RwLock<Arc<Served>>,
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            served: RwLock::new(Arc::new(Served::new(builtin::resource_types()))),
        }
    }

    pub(crate) fn served(&self) -> Arc<Served> {
        self.served.read().clone()
    }

    /// Replaces all custom resource types.
    pub(crate) fn set_custom(&self, custom: Vec<Arc<ResourceType>>) {
        let types = builtin::resource_types().into_iter().chain(custom);
        let fresh = Arc::new(Served::new(types));
        *self.served.write() = fresh;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_versions_come_first() {
        let mut names = ["v1alpha1", "v1", "foo", "v2beta1", "v10", "v1beta1"];
        names.sort_by_key(|name| std::cmp::Reverse(priority(name)));
        assert_eq!(
            names,
            ["v10", "v1", "v2beta1", "v1beta1", "v1alpha1", "foo"]
        );
    }
}
