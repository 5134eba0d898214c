//! Watch that records when each node first had `NetworkUnavailable=False`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
};
use parking_lot::Mutex;
use tokio::{task::JoinHandle, time::Instant};

/// The time at which the watch first showed `NetworkUnavailable=False`, by node.
#[derive(Debug)]
pub(super) struct Conditions {
    seen: Arc<Mutex<BTreeMap<String, Instant>>>,
    task: JoinHandle<()>,
}

impl Conditions {
    pub(super) fn watch(client: Client) -> Self {
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let task = tokio::spawn(follow(Api::all(client), seen.clone()));
        Self { seen, task }
    }

    pub(super) fn seen(&self) -> BTreeMap<String, Instant> {
        let seen = self.seen.lock();
        seen.clone()
    }
}

impl Drop for Conditions {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Lists and watches in a loop, because the server may end a watch at any time.
async fn follow(nodes: Api<Node>, seen: Arc<Mutex<BTreeMap<String, Instant>>>) {
    loop {
        if let Err(error) = follow_once(&nodes, &seen).await {
            eprintln!("[routes] cannot watch nodes: {error}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

async fn follow_once(
    nodes: &Api<Node>,
    seen: &Mutex<BTreeMap<String, Instant>>,
) -> Result<(), kube::Error> {
    let list = nodes.list(&ListParams::default()).await?;
    for node in &list {
        note(node, seen);
    }
    let version = list.metadata.resource_version.unwrap_or_default();
    let mut events = nodes
        .watch(&WatchParams::default(), &version)
        .await?
        .boxed();
    while let Some(event) = events.next().await {
        if let WatchEvent::Added(node) | WatchEvent::Modified(node) = event? {
            note(&node, seen);
        }
    }
    Ok(())
}

fn note(node: &Node, seen: &Mutex<BTreeMap<String, Instant>>) {
    if let Some(name) = node.metadata.name.as_ref().filter(|_| is_available(node)) {
        let mut seen = seen.lock();
        seen.entry(name.clone()).or_insert_with(Instant::now);
    }
}

fn is_available(node: &Node) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|condition| condition.type_ == "NetworkUnavailable")
        .any(|condition| condition.status == "False")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_network_unavailable_false_counts_as_available() {
        let node = |type_: &str, status: &str| -> Node {
            let condition = json!({"type": type_, "status": status});
            serde_json::from_value(json!({"status": {"conditions": [condition]}})).unwrap()
        };
        assert!(is_available(&node("NetworkUnavailable", "False")));
        assert!(!is_available(&node("NetworkUnavailable", "True")));
        assert!(!is_available(&node("DiskPressure", "False")));
        assert!(!is_available(&Node::default()));
    }
}
