//! The API server and its objects.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU32, Ordering},
};

use futures::{StreamExt as _, stream};
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use weft_apiserver::ApiServer;

use crate::objects::{self, Mark, NAMESPACE, NODE, NODE_ADDRESS};

/// Requests at a time while objects are created.
const CONCURRENT: usize = 4;

/// An API server in this process.
pub(crate) struct Cluster {
    pub(crate) runtime: Runtime,
    /// Serves for as long as it is there.
    _server: ApiServer,
    client: Client,
    /// Address of its listener, without encryption.
    pub(crate) address: SocketAddr,
    loaded: usize,
    marks: AtomicU32,
}

impl Cluster {
    /// Without Services but `kubernetes` and DNS.
    pub(crate) fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let ranges = ["10.96.0.0/12"].map(|range| range.parse().unwrap());
        let (server, client, address) = runtime.block_on(async {
            let server = ApiServer::builder().service_ranges(ranges).build();
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            server.serve_http(listener);
            let client = server.client();
            (server, client, address)
        });
        let cluster = Self {
            runtime,
            _server: server,
            client,
            address,
            loaded: 0,
            marks: AtomicU32::new(0),
        };
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
            // Without one a proxy would wait for it.
            "status": {"addresses": [{"type": "InternalIP", "address": NODE_ADDRESS}]}});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": NAMESPACE}});
        let [dns, dns_slice] = objects::dns();
        cluster.create([node, namespace, dns, dns_slice]);
        cluster
    }

    /// Adds Services until there are this many.
    pub(crate) fn load(&mut self, services: usize) {
        let indexes = self.loaded..services;
        self.create(
            indexes.flat_map(|index| [objects::service(index), objects::slice(index, None)]),
        );
        self.loaded = services;
    }

    pub(crate) fn create(&self, objects: impl IntoIterator<Item = Value>) {
        let client = self.client.clone();
        let create = |object: Value| {
            let client = client.clone();
            async move {
                let api = api(&client, &object);
                let object: DynamicObject = serde_json::from_value(object).unwrap();
                api.create(&PostParams::default(), &object).await.unwrap();
            }
        };
        let all = stream::iter(objects).for_each_concurrent(CONCURRENT, create);
        self.runtime.block_on(all);
    }

    /// A mark that no change had.
    pub(crate) fn mark(&self) -> Mark {
        Mark::number(self.marks.fetch_add(1, Ordering::Relaxed))
    }

    /// Replaces an object, from any task.
    pub(crate) fn replace(&self, object: Value) -> impl Future<Output = ()> + Send + 'static {
        let client = self.client.clone();
        async move {
            let api = api(&client, &object);
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            let name = object.metadata.name.clone().unwrap();
            api.replace(&name, &PostParams::default(), &object)
                .await
                .unwrap();
        }
    }
}

fn api(client: &Client, object: &Value) -> Api<DynamicObject> {
    let kind = object["kind"].as_str().unwrap();
    let group = match kind {
        "EndpointSlice" => "discovery.k8s.io",
        _ => "",
    };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}
