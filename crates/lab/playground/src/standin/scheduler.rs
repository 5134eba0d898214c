//! Stand-in for kube-scheduler: a pod goes to the ready node with the fewest pods.

use std::collections::BTreeMap;

use http::Method;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::sync::Mutex;
use weft_runtime::{
    Action, Cluster, Context, Controller, Mapper, ReconcileError, Reconciler, WatchSpec,
};

use weft_testserver::call;

/// The only key: all pods are reconciled together, because a playground is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct All;

pub(crate) fn controller(cluster: &Cluster) -> Controller<All> {
    Controller::builder("scheduler-stand-in", cluster)
        .watches::<Pod>(WatchSpec::all(), Mapper::always(All))
        .watches::<Node>(WatchSpec::all(), Mapper::always(All))
        .build(Scheduler::default())
}

/// Remembers its bindings until the cache shows them.
#[derive(Default)]
struct Scheduler {
    bound: Mutex<BTreeMap<String, String>>,
}

impl Reconciler<All> for Scheduler {
    async fn reconcile(&self, context: Context<All>) -> Result<Action, ReconcileError> {
        let pods = context.lister::<Pod>()?.list()?;
        let nodes = context.lister::<Node>()?.list()?;
        let mut bound = self.bound.lock().await;
        bound.retain(|uid, _| {
            let waits = |pod: &Pod| pod.uid().as_deref() == Some(uid) && node_of(pod).is_none();
            pods.iter().any(|pod| waits(pod))
        });
        let mut load: BTreeMap<String, usize> = nodes
            .iter()
            .filter(|node| takes_pods(node))
            .map(|node| (node.name_any(), 0))
            .collect();
        let on_nodes = pods.iter().filter_map(|pod| node_of(pod));
        for node in on_nodes.chain(bound.values().map(String::as_str)) {
            if let Some(count) = load.get_mut(node) {
                *count += 1;
            }
        }
        for pod in pods.iter().filter(|pod| waits_for_a_node(pod)) {
            let uid = pod.uid().unwrap_or_default();
            if bound.contains_key(&uid) {
                continue;
            }
            let Some((node, count)) = load.iter_mut().min_by_key(|(_, count)| **count) else {
                break;
            };
            bind(&context, pod, node).await?;
            bound.insert(uid, node.clone());
            *count += 1;
        }
        Ok(Action::await_change())
    }
}

async fn bind(context: &Context<All>, pod: &Pod, node: &str) -> Result<(), kube::Error> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": pod.uid()},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
    match call(context.client(), Method::POST, &path, &binding).await {
        // The pod is deleted, or bound already.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => other.map(drop),
    }
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn waits_for_a_node(pod: &Pod) -> bool {
    node_of(pod).is_none() && pod.metadata.deletion_timestamp.is_none()
}

fn takes_pods(node: &Node) -> bool {
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable);
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready && cordoned != Some(true) && node.metadata.deletion_timestamp.is_none()
}

/// The key in logs.
impl std::fmt::Display for All {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("all")
    }
}
