//! Dry run of the route controller.

use std::{collections::HashMap, sync::Arc};

use axum::http::Request;
use kube::Client;
use serde::{Deserialize, de::DeserializeOwned};
use weft_providers::Provider;
use weft_routes::{Moment, NodeList, RoutePlan, TableCache, plan};
use weft_runtime::{Failure, Kinded as _, Object as _};

use crate::{
    RoutesSettings,
    blocks::{Holding, NodeBlocks, network_kind},
    record::RecordStore,
    views::RouteNode,
};

/// Reads nodes and table once, and returns the plan of a pass. Changes nothing.
pub async fn preview(
    client: &Client,
    provider: &dyn Provider,
    settings: &RoutesSettings,
    record_namespace: &str,
    own_node: Option<&str>,
) -> Result<RoutePlan, Failure> {
    let capabilities = provider.capabilities();
    let nodes = RouteNode::resource_kind().collection_path(None);
    let held = Held::read(client, settings).await?;
    let mut projected = Vec::new();
    for view in list::<RouteNode>(client, nodes).await? {
        let mut node = view.to_node(provider, &capabilities);
        node.own = own_node == Some(&*node.name);
        node.excluded |= node.own;
        node.blocks = held.of(&node.name).blocks(&node.uid);
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
    let mut cache = TableCache::default().with_record(store.load().await?);
    cache.listed(routes, Moment::START, []);
    Ok(plan(
        &nodes,
        cache.routes(),
        &settings.policy(&capabilities),
    ))
}

/// All objects of a collection, in the type that the watch decodes.
async fn list<K: DeserializeOwned>(client: &Client, path: String) -> kube::Result<Vec<K>> {
    #[derive(Deserialize)]
    struct List<K> {
        items: Vec<K>,
    }
    let request = Request::get(path).body(Vec::new());
    let request = request.map_err(kube::Error::HttpError)?;
    Ok(client.request::<List<K>>(request).await?.items)
}

/// The NodeNetworkConfigs, read once.
enum Held {
    Off,
    Unknown,
    Known(HashMap<String, Arc<NodeBlocks>>),
}

impl Held {
    async fn read(client: &Client, settings: &RoutesSettings) -> Result<Self, Failure> {
        let Some(objects) = &settings.blocks else {
            return Ok(Self::Off);
        };
        let path = network_kind(objects).collection_path(Some(&objects.namespace));
        let objects = match list::<NodeBlocks>(client, path).await {
            Err(kube::Error::Api(error)) if error.code == 404 => return Ok(Self::Unknown),
            answer => answer?.into_iter(),
        };
        let named = |object: NodeBlocks| (object.name().to_owned(), Arc::new(object));
        Ok(Self::Known(objects.map(named).collect()))
    }

    fn of(&self, node: &str) -> Holding {
        match self {
            Self::Off => Holding::Off,
            Self::Unknown => Holding::Unknown,
            Self::Known(objects) => Holding::Known(objects.get(node).cloned()),
        }
    }
}
