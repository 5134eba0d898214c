//! Timeline entries derived from the difference between two states.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::state::{Node, Note, Service, State};

/// One note for each node and each Service that changed.
pub(super) fn between(before: &State, after: &State, at: Timestamp) -> Vec<Note> {
    let note = |(what, place)| Note {
        at,
        what,
        place,
        component: "cluster".to_owned(),
        cost: None,
    };
    let nodes = pairs(&before.nodes, &after.nodes, |node| node.name.as_str());
    let nodes = nodes.flat_map(|(name, before, after)| {
        let words = node_words(before, after);
        words
            .into_iter()
            .map(move |what| (what, Some(name.to_owned())))
    });
    let by_name = |service: &Service| (service.namespace.clone(), service.name.clone());
    let services = pairs(&before.services, &after.services, by_name);
    let services = services.flat_map(|((namespace, name), before, after)| {
        let words = service_words(before, after);
        let about = move |what| (format!("Service {namespace}/{name}: {what}"), None);
        words.into_iter().map(about)
    });
    nodes.chain(services).map(note).collect()
}

/// Items before and after, matched by key.
fn pairs<'a, T, K: Ord + Clone>(
    before: &'a [T],
    after: &'a [T],
    key: impl Fn(&'a T) -> K,
) -> impl Iterator<Item = (K, Option<&'a T>, Option<&'a T>)> {
    let mut found: BTreeMap<K, (Option<&T>, Option<&T>)> = BTreeMap::new();
    for item in before {
        found.entry(key(item)).or_default().0 = Some(item);
    }
    for item in after {
        found.entry(key(item)).or_default().1 = Some(item);
    }
    found
        .into_iter()
        .map(|(key, (before, after))| (key, before, after))
}

fn node_words(before: Option<&Node>, after: Option<&Node>) -> Option<String> {
    let (before, after) = match (before, after) {
        (Some(before), Some(after)) => (before, after),
        (None, Some(_)) => return Some("node joined".to_owned()),
        (Some(_), None) => return Some("node left".to_owned()),
        (None, None) => return None,
    };
    let mut words = Vec::new();
    if before.ready != after.ready {
        words.push(
            if after.ready {
                "node ready"
            } else {
                "node not ready"
            }
            .to_owned(),
        );
    }
    if before.pod_ranges != after.pod_ranges {
        words.push(format!("pod ranges {}", after.pod_ranges.join(", ")));
    }
    let pods = |node: &Node| -> BTreeSet<(String, String)> {
        let pods = node.pods.iter();
        pods.map(|pod| (pod.namespace.clone(), pod.name.clone()))
            .collect()
    };
    words.extend(count("pod", &pods(before), &pods(after)));
    sentence(&words)
}

fn service_words(before: Option<&Service>, after: Option<&Service>) -> Option<String> {
    let (before, after) = match (before, after) {
        (Some(before), Some(after)) => (before, after),
        (None, Some(_)) => return Some("created".to_owned()),
        (Some(_), None) => return Some("deleted".to_owned()),
        (None, None) => return None,
    };
    let ready = |service: &Service| -> BTreeSet<String> {
        let endpoints = service.endpoints.iter();
        endpoints
            .filter(|endpoint| endpoint.ready)
            .map(|endpoint| endpoint.address.clone())
            .collect()
    };
    let mut words = Vec::new();
    if (&before.addresses, &before.ports, &before.kind)
        != (&after.addresses, &after.ports, &after.kind)
    {
        words.push("addresses or ports changed".to_owned());
    }
    words.extend(count("endpoint", &ready(before), &ready(after)));
    sentence(&words)
}

/// `+2 pods −1`.
fn count<T: Ord>(what: &str, before: &BTreeSet<T>, after: &BTreeSet<T>) -> Option<String> {
    let more = after.difference(before).count();
    let fewer = before.difference(after).count();
    let noun = |count| {
        if count == 1 {
            what.to_owned()
        } else {
            format!("{what}s")
        }
    };
    match (more, fewer) {
        (0, 0) => None,
        (more, 0) => Some(format!("+{more} {}", noun(more))),
        (0, fewer) => Some(format!("−{fewer} {}", noun(fewer))),
        (more, fewer) => Some(format!("+{more} −{fewer} {what}s")),
    }
}

fn sentence(words: &[String]) -> Option<String> {
    (!words.is_empty()).then(|| words.join(", "))
}
