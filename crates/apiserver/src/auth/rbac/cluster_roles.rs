//! Parsed ClusterRoles, with the roles that each aggregated one selects.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, OnceLock},
};

use serde_json::Value;

use crate::{
    meta::Meta as _,
    selector,
    store::{Object, Stored},
};

/// A Role or ClusterRole.
#[derive(Debug)]
pub(super) struct Role {
    pub(super) rules: Vec<Value>,
    /// `metadata.labels`; null without labels.
    labels: Value,
    /// Label selectors of the ClusterRoles that this one aggregates.
    selectors: Vec<Value>,
}

impl Role {
    pub(super) fn read(stored: &Stored) -> Self {
        let mut object: Object = stored.decode();
        let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned();
        let labels = object.at(&["metadata", "labels"]).cloned();
        let selectors = list(object.at(&["aggregationRule", "clusterRoleSelectors"]));
        let rules = match object.remove("rules") {
            Some(Value::Array(rules)) => rules,
            _ => Vec::new(),
        };
        Self {
            rules,
            labels: labels.unwrap_or_default(),
            selectors: selectors.unwrap_or_default(),
        }
    }

    fn selects(&self, other: &Self) -> bool {
        let labels = Some(&other.labels).filter(|labels| !labels.is_null());
        let mut selectors = self.selectors.iter();
        selectors.any(|selector| selector::matches(selector, labels))
    }
}

/// The part of an aggregating role that depends on other roles.
#[derive(Debug, Default)]
struct Aggregation {
    /// Names of the roles its selectors match.
    selected: BTreeSet<Arc<str>>,
    /// The role itself and all it selects, transitively.
    resolved: OnceLock<Vec<Arc<Role>>>,
}

/// All ClusterRoles by name.
#[derive(Debug, Default)]
pub(super) struct ClusterRoles {
    roles: BTreeMap<Arc<str>, Arc<Role>>,
    aggregations: BTreeMap<Arc<str>, Aggregation>,
}

impl ClusterRoles {
    /// Replaces the role of this name; `None` removes it.
    pub(super) fn set(&mut self, name: &Arc<str>, role: Option<Role>) {
        self.aggregations.remove(name);
        let role = role.map(Arc::new);
        for (aggregating, aggregation) in &mut self.aggregations {
            aggregation.resolved = OnceLock::new();
            let by = self.roles.get(aggregating);
            if let (Some(role), Some(by)) = (&role, by)
                && by.selects(role)
            {
                aggregation.selected.insert(name.clone());
            } else {
                aggregation.selected.remove(name);
            }
        }
        let Some(role) = role else {
            self.roles.remove(name);
            return;
        };
        self.roles.insert(name.clone(), role.clone());
        if !role.selectors.is_empty() {
            let selected = self.roles.iter().filter(|(_, other)| role.selects(other));
            let aggregation = Aggregation {
                selected: selected.map(|(name, _)| name.clone()).collect(),
                resolved: OnceLock::new(),
            };
            self.aggregations.insert(name.clone(), aggregation);
        }
    }

    /// The role and all it aggregates, in the order of their rules; `None` when the role does not
    /// exist.
    pub(super) fn find(&self, name: &str) -> Option<&[Arc<Role>]> {
        let role = self.roles.get(name)?;
        Some(match self.aggregations.get(name) {
            None => std::slice::from_ref(role),
            Some(aggregation) => aggregation
                .resolved
                .get_or_init(|| self.resolve(name, role, aggregation)),
        })
    }

    /// Iterative, since roles may aggregate each other in a chain of any length.
    fn resolve(&self, name: &str, role: &Arc<Role>, first: &Aggregation) -> Vec<Arc<Role>> {
        let mut resolved = vec![role.clone()];
        let mut seen = HashSet::from([name]);
        let mut open = vec![first.selected.iter()];
        while let Some(selected) = open.last_mut() {
            let Some(name) = selected.next() else {
                open.pop();
                continue;
            };
            if let Some(role) = self.roles.get(name)
                && seen.insert(name)
            {
                resolved.push(role.clone());
                let aggregation = self.aggregations.get(name);
                open.extend(aggregation.map(|aggregation| aggregation.selected.iter()));
            }
        }
        resolved
    }
}
