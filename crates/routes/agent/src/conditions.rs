//! Writes the node condition `NetworkUnavailable`, as upstream does.

use jiff::Timestamp;
use kube::{
    Client,
    api::{Patch, PatchParams},
    core::Request,
};
use serde::de::IgnoredAny;
use serde_json::json;
use weft_routes::ConditionChange;
use weft_runtime::Kinded as _;

use crate::views::RouteNode;

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
    let request = Request::new(RouteNode::resource_kind().collection_path(None));
    let (parameters, patch) = (PatchParams::default(), Patch::Strategic(patch));
    let request = request
        .patch_subresource("status", &change.node, &parameters, &patch)
        .map_err(kube::Error::BuildRequest)?;
    // The answer is the whole Node, which the watch brings as well.
    match client.request::<IgnoredAny>(request).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}
