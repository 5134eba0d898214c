//! Writes the node condition `NetworkUnavailable`, as upstream does.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use weft_routes::ConditionChange;

/// Patches `nodes/status` by a strategic merge, which leaves all other conditions alone. A node
/// that is gone is not an error.
pub(crate) async fn write(client: Client, change: &ConditionChange) -> kube::Result<()> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let status = if change.reason.status() {
        "True"
    } else {
        "False"
    };
    let patch = json!({ "status": { "conditions": [{
        "type": "NetworkUnavailable",
        "status": status,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": change.reason.as_str(),
        "message": change.reason.message(),
    }] } });
    let nodes: Api<Node> = Api::all(client);
    let parameters = PatchParams::default();
    let patched = nodes
        .patch_status(&change.node, &parameters, &Patch::Strategic(&patch))
        .await;
    match patched {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}
