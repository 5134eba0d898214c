//! What would be done, without doing it.

use std::error::Error;

use k8s_openapi::api::core::v1::Node as FullNode;
use kube::{Api, Client, api::ListParams};
use weft_providers::Provider;
use weft_routes::{Moment, NodeList, RoutePlan, Shadow, plan};

use super::{RoutesSettings, record::RecordStore, views::RouteNode};

/// Reads nodes and table once, and plans.
pub async fn preview(
    client: &Client,
    provider: &dyn Provider,
    settings: &RoutesSettings,
    record_namespace: &str,
    own_node: Option<&str>,
) -> Result<RoutePlan, Box<dyn Error + Send + Sync>> {
    let capabilities = provider.capabilities();
    let nodes: Api<FullNode> = Api::all(client.clone());
    let mut projected = Vec::new();
    for node in nodes.list(&ListParams::default()).await? {
        let view: RouteNode = serde_json::from_value(serde_json::to_value(&node)?)?;
        let mut node = view.to_node(provider, &capabilities);
        node.excluded |= own_node == Some(&*node.name);
        projected.push(node);
    }
    if settings.check_addresses && capabilities.knows_instances {
        let ids: Vec<_> = projected
            .iter()
            .filter_map(|node| node.provider_id.clone())
            .collect();
        let known = provider.instance_addresses(&ids).await.result?;
        for node in &mut projected {
            let id = node.provider_id.as_ref();
            node.instance_addresses = id.map(|id| known.get(id).cloned().unwrap_or_default());
        }
    }
    let nodes = NodeList::complete(projected);
    let mut routes = provider.list().await.result?;
    nodes.resolve(&mut routes);
    let store = RecordStore::new(
        client,
        record_namespace,
        provider.name(),
        &settings.cluster_name,
    );
    let mut shadow = Shadow::default().with_record(store.load().await?);
    shadow.listed(routes, Moment::START, []);
    Ok(plan(
        &nodes,
        shadow.routes(),
        &settings.policy(&capabilities),
    ))
}
