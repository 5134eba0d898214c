//! PolicyRules, and the check that a set of rules covers another.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
};

use serde_json::Value;

use super::go_list;

const ALL: &str = "*";

/// Limit of comparisons per check. Breaking a rule down multiplies its lists, so a body of some
/// megabytes could cost hours; real roles stay far below.
const BUDGET: usize = 4_000_000;

/// One rule of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PolicyRule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    paths: Vec<String>,
}

/// The result of a failed check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Uncovered {
    /// The rules that are not covered, compacted.
    Missing(Vec<PolicyRule>),
    /// More comparisons than [`BUDGET`].
    TooMany,
}

impl PolicyRule {
    pub(super) fn read(rule: &Value) -> Self {
        let list = |name: &str| -> Vec<String> {
            let list = rule.get(name).and_then(Value::as_array);
            let texts = list.into_iter().flatten().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        };
        Self {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            paths: list("nonResourceURLs"),
        }
    }

    /// Full authority: what an aggregated role may grant at some time.
    pub(super) fn full_authority() -> [Self; 2] {
        let all = || vec![ALL.to_owned()];
        let resources = Self {
            verbs: all(),
            groups: all(),
            resources: all(),
            ..Self::default()
        };
        let paths = Self {
            verbs: all(),
            paths: all(),
            ..Self::default()
        };
        [resources, paths]
    }

    /// Number of rules that [`Self::break_down`] returns.
    fn parts(&self) -> usize {
        let of_resources = [&self.groups, &self.resources, &self.verbs]
            .iter()
            .fold(self.names.len().max(1), |product, list| {
                product.saturating_mul(list.len())
            });
        of_resources.saturating_add(self.paths.len().saturating_mul(self.verbs.len()))
    }

    fn break_down(&self) -> Vec<Self> {
        let one = |text: &String| vec![text.clone()];
        let names: Vec<Vec<String>> = match &self.names[..] {
            [] => vec![Vec::new()],
            names => names.iter().map(one).collect(),
        };
        let mut parts = Vec::with_capacity(self.parts());
        for verb in &self.verbs {
            for group in &self.groups {
                for resource in &self.resources {
                    parts.extend(names.iter().map(|names| Self {
                        verbs: one(verb),
                        groups: one(group),
                        resources: one(resource),
                        names: names.clone(),
                        paths: Vec::new(),
                    }));
                }
            }
            parts.extend(self.paths.iter().map(|path| Self {
                verbs: one(verb),
                paths: one(path),
                ..Self::default()
            }));
        }
        parts
    }
}

/// A held rule with its lists as sets, for many comparisons.
struct GrantedRule<'a> {
    verbs: HashSet<&'a str>,
    groups: HashSet<&'a str>,
    resources: HashSet<&'a str>,
    names: HashSet<&'a str>,
    paths: HashSet<&'a str>,
    /// Prefixes of the paths that end with a wildcard.
    prefixes: Vec<&'a str>,
}

impl<'a> GrantedRule<'a> {
    fn new(rule: &'a PolicyRule) -> Self {
        let set = |list: &'a [String]| list.iter().map(String::as_str).collect();
        let wildcards = rule.paths.iter().filter(|path| path.ends_with('*'));
        Self {
            verbs: set(&rule.verbs),
            groups: set(&rule.groups),
            resources: set(&rule.resources),
            names: set(&rule.names),
            paths: set(&rule.paths),
            prefixes: wildcards.map(|path| path.trim_end_matches('*')).collect(),
        }
    }

    /// True when this rule alone grants every part of another.
    fn covers(&self, rule: &PolicyRule) -> bool {
        let has = |set: &HashSet<&str>, list: &[String]| {
            set.contains(ALL) || list.iter().all(|text| set.contains(text.as_str()))
        };
        let resource = |resource: &String| {
            let below = resource
                .split_once('/')
                .map(|(_, below)| format!("*/{below}"));
            self.resources.contains(resource.as_str())
                || below.is_some_and(|below| self.resources.contains(below.as_str()))
        };
        let path = |path: &String| {
            self.paths.contains(path.as_str())
                || self.prefixes.iter().any(|prefix| path.starts_with(prefix))
        };
        let names = self.names.is_empty()
            || (!rule.names.is_empty()
                && rule
                    .names
                    .iter()
                    .all(|name| self.names.contains(name.as_str())));
        has(&self.verbs, &rule.verbs)
            && has(&self.groups, &rule.groups)
            && (self.resources.contains(ALL) || rule.resources.iter().all(resource))
            && names
            && rule.paths.iter().all(path)
    }
}

/// Checks as upstream does that the held rules grant all that the wanted ones grant: each wanted rule
/// is broken down, and each part must be covered by one held rule.
pub(super) fn covered(held: &[PolicyRule], wanted: &[PolicyRule]) -> Result<(), Uncovered> {
    let held: Vec<GrantedRule<'_>> = held.iter().map(GrantedRule::new).collect();
    // A rule that one held rule covers whole is not broken down.
    let rest: Vec<&PolicyRule> = wanted
        .iter()
        .filter(|rule| !held.iter().any(|held| held.covers(rule)))
        .collect();
    let parts = rest
        .iter()
        .map(|rule| rule.parts())
        .fold(0, usize::saturating_add);
    if parts.saturating_mul(held.len().max(100)) > BUDGET {
        return Err(Uncovered::TooMany);
    }
    let missing: Vec<PolicyRule> = rest
        .iter()
        .flat_map(|rule| rule.break_down())
        .filter(|part| !held.iter().any(|held| held.covers(part)))
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Uncovered::Missing(compact(missing)))
    }
}

/// Merges rules for the same resource or object that differ in their verbs only.
fn compact(rules: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let mut compacted = Vec::new();
    let mut of_resources: BTreeMap<[Vec<String>; 3], PolicyRule> = BTreeMap::new();
    for rule in rules {
        if !rule.paths.is_empty() {
            compacted.push(rule);
            continue;
        }
        let key = [&rule.groups, &rule.resources, &rule.names].map(Clone::clone);
        match of_resources.get_mut(&key) {
            Some(known) => known.verbs.extend(rule.verbs),
            None => drop(of_resources.insert(key, rule)),
        }
    }
    compacted.extend(of_resources.into_values());
    compacted
}

impl fmt::Display for PolicyRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = [
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.paths),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ]
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| format!("{name}:{}", go_list(list)))
        .collect();
        write!(formatter, "{{{}}}", parts.join(", "))
    }
}

/// Missing rules as a refusal lists them: sorted, each once.
pub(super) fn listed(missing: &[PolicyRule]) -> String {
    let lines: BTreeSet<String> = missing.iter().map(ToString::to_string).collect();
    lines.into_iter().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(list: &Value) -> Vec<PolicyRule> {
        list.as_array()
            .unwrap()
            .iter()
            .map(PolicyRule::read)
            .collect()
    }

    fn rule(verbs: &[&str], group: &str, resources: &[&str], names: &[&str]) -> Value {
        json!({"verbs": verbs, "apiGroups": [group], "resources": resources,
               "resourceNames": names})
    }

    #[test]
    fn held_rules_cover_what_they_contain_and_nothing_else() {
        let path = |path: &str| json!({"verbs": ["get"], "nonResourceURLs": [path]});
        for (held, wanted, missing) in [
            (
                rule(&["*"], "*", &["*"], &[]),
                rule(&["get"], "", &["pods/log"], &["a"]),
                "",
            ),
            (
                rule(&["get", "list"], "", &["pods", "nodes"], &[]),
                rule(&["get", "list"], "", &["pods", "nodes"], &[]),
                "",
            ),
            (
                rule(&["get"], "", &["pods"], &[]),
                rule(&["list", "get", "watch"], "", &["pods"], &[]),
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["list" "watch"]}"#,
            ),
            (
                rule(&["get"], "", &["pods"], &[]),
                rule(&["*"], "", &["pods"], &[]),
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["*"]}"#,
            ),
            // A rule for some names does not cover all names; a rule for all covers some.
            (
                rule(&["get"], "", &["pods"], &["a"]),
                rule(&["get"], "", &["pods"], &[]),
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#,
            ),
            (
                rule(&["get"], "", &["pods"], &[]),
                rule(&["get"], "", &["pods"], &["a"]),
                "",
            ),
            (
                rule(&["get"], "", &["pods"], &["a"]),
                rule(&["get"], "", &["pods"], &["a", "b"]),
                r#"{APIGroups:[""], Resources:["pods"], ResourceNames:["b"], Verbs:["get"]}"#,
            ),
            (
                rule(&["get"], "", &["*/status"], &[]),
                rule(&["get"], "", &["pods/status"], &[]),
                "",
            ),
            (
                rule(&["get"], "", &["*/status"], &[]),
                rule(&["get"], "", &["pods"], &[]),
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#,
            ),
            (path("/logs/*"), path("/logs/kube/*"), ""),
            (
                path("/logs/*"),
                path("/logs"),
                r#"{NonResourceURLs:["/logs"], Verbs:["get"]}"#,
            ),
            (
                path("/logs"),
                path("*"),
                r#"{NonResourceURLs:["*"], Verbs:["get"]}"#,
            ),
        ] {
            let outcome = covered(&rules(&json!([held])), &rules(&json!([wanted])));
            let found = match outcome {
                Ok(()) => String::new(),
                Err(Uncovered::Missing(rules)) => listed(&rules),
                Err(Uncovered::TooMany) => "too many".to_owned(),
            };
            assert_eq!(found, missing, "{held} covers {wanted}");
        }
    }

    #[test]
    fn several_rules_cover_together_what_none_covers_alone() {
        let held = rules(&json!([
            rule(&["get"], "", &["pods"], &[]),
            rule(&["list"], "", &["pods"], &[])
        ]));
        let wanted = rules(&json!([rule(&["get", "list"], "", &["pods"], &[])]));
        assert_eq!(covered(&held, &wanted), Ok(()));
    }

    #[test]
    fn a_rule_over_the_comparison_budget_is_not_broken_down() {
        let many: Vec<String> = (0..10_000).map(|number| format!("r{number}")).collect();
        let wanted = PolicyRule {
            verbs: many.clone(),
            groups: many.clone(),
            resources: many.clone(),
            names: many,
            paths: Vec::new(),
        };
        assert_eq!(
            covered(&[], std::slice::from_ref(&wanted)),
            Err(Uncovered::TooMany)
        );
        let all = PolicyRule::full_authority();
        assert_eq!(
            covered(&all, &[wanted]),
            Ok(()),
            "one that is covered whole costs nothing"
        );
    }
}
