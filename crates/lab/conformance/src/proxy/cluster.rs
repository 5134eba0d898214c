//! Services and EndpointSlices in the API server: load, changes and cleanup.

use std::{path::Path, time::Instant};

use anyhow::Context as _;
use futures::{TryStreamExt as _, stream};
use kube::{
    Client, Config,
    api::{
        Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
        PatchParams, PostParams,
    },
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::proxy::objects::{NAMESPACE, NODE, NODE_ADDRESS, Service, Side};

/// Concurrent requests while objects are created or deleted.
const CONNECTIONS: usize = 16;

/// A real API server with the objects of the comparison.
pub(crate) struct Cluster {
    client: Client,
    services: Api<DynamicObject>,
    slices: Api<DynamicObject>,
    /// Loopback port on which it listens.
    pub(crate) port: u16,
    loaded: u32,
}

impl Cluster {
    /// Connects, and removes objects of an earlier run.
    pub(crate) async fn connect(kubeconfig: &Path) -> anyhow::Result<Self> {
        let config = config(kubeconfig).await?;
        let port = config
            .cluster_url
            .port_u16()
            .with_context(|| format!("cannot find a port in {}", config.cluster_url))?;
        let client = Client::try_from(config)?;
        let cluster = Self {
            services: namespaced(&client, "", "Service"),
            slices: slices(&client),
            client,
            port,
            loaded: 0,
        };
        cluster.clear().await?;
        cluster.prepare().await?;
        Ok(cluster)
    }

    /// Version of the API server.
    pub(crate) async fn version(&self) -> anyhow::Result<String> {
        let version = self.client.apiserver_version().await?;
        Ok(version.git_version)
    }

    /// Removes all Services and slices. The Node stays, and so does the namespace, which only a
    /// controller could finalise.
    pub(crate) async fn clear(&self) -> anyhow::Result<()> {
        for api in [&self.services, &self.slices] {
            // One by one: deleting the collection would exceed the time limit of a request.
            let objects = api.list_metadata(&ListParams::default()).await?;
            if objects.items.len() > 1_000 {
                eprintln!("[proxy] removing {} objects", objects.items.len());
            }
            let names = objects.items.into_iter().filter_map(|o| o.metadata.name);
            stream::iter(names.map(Ok::<_, kube::Error>))
                .try_for_each_concurrent(CONNECTIONS, |name| async move {
                    api.delete(&name, &DeleteParams::default())
                        .await
                        .map(|_| ())
                })
                .await?;
        }
        Ok(())
    }

    async fn prepare(&self) -> anyhow::Result<()> {
        let apply = |api: Api<DynamicObject>, name: &'static str, object: Value| async move {
            let parameters = PatchParams::apply("weft-conformance").force();
            api.patch(name, &parameters, &Patch::Apply(&object)).await
        };
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": NAMESPACE}});
        apply(whole(&self.client, "Namespace"), NAMESPACE, namespace).await?;
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
        apply(whole(&self.client, "Node"), NODE, node).await?;
        // A proxy waits until its Node has an address.
        let status = json!({"status": {"addresses":
            [{"type": "InternalIP", "address": NODE_ADDRESS}]}});
        whole(&self.client, "Node")
            .patch_status(NODE, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
        Ok(())
    }

    /// Adds Services until there are `services`.
    pub(crate) async fn load(&mut self, services: u32) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.loaded < services {
            let this = &*self;
            let next = services.min(self.loaded + 1_000);
            stream::iter((this.loaded..next).map(Ok::<_, anyhow::Error>))
                .try_for_each_concurrent(CONNECTIONS, |number| async move {
                    this.add(Service(number)).await.map(|_| ())
                })
                .await?;
            self.loaded = next;
            let took = began.elapsed().as_secs_f64();
            eprintln!("[proxy] {next} Services loaded, {took:.1} s");
        }
        Ok(())
    }

    /// Creates a Service and then its slice. Returns the time at which the slice was sent.
    pub(crate) async fn add(&self, service: Service) -> anyhow::Result<Instant> {
        let create = PostParams::default();
        let object = serde_json::from_value(service.object())?;
        self.services.create(&create, &object).await?;
        let object = serde_json::from_value(service.slice(Side::A))?;
        let sent = Instant::now();
        self.slices.create(&create, &object).await?;
        Ok(sent)
    }

    /// Deletes a Service. Returns the time at which the request was sent.
    pub(crate) async fn remove(&self, service: Service) -> anyhow::Result<Instant> {
        let delete = DeleteParams::default();
        let sent = Instant::now();
        self.services.delete(&service.name(), &delete).await?;
        Ok(sent)
    }

    /// Deletes the slice of a Service that was removed.
    pub(crate) async fn remove_slice(&self, service: Service) -> anyhow::Result<()> {
        let delete = DeleteParams::default();
        self.slices.delete(&service.slice_name(), &delete).await?;
        Ok(())
    }

    /// Moves a Service's endpoints to a side. Returns the time at which the request was sent.
    pub(crate) async fn change(&self, service: Service, side: Side) -> anyhow::Result<Instant> {
        let object = serde_json::from_value::<DynamicObject>(service.slice(side))?;
        let name = service.slice_name();
        let sent = Instant::now();
        self.slices
            .replace(&name, &PostParams::default(), &object)
            .await?;
        Ok(sent)
    }
}

async fn config(kubeconfig: &Path) -> anyhow::Result<Config> {
    let read = Kubeconfig::read_from(kubeconfig)?;
    Ok(Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?)
}

/// A client of the administrator, on the calling runtime.
pub(crate) async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    Ok(Client::try_from(config(kubeconfig).await?)?)
}

/// The slices of the comparison.
pub(crate) fn slices(client: &Client) -> Api<DynamicObject> {
    namespaced(client, "discovery.k8s.io", "EndpointSlice")
}

fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind))
}

fn namespaced(client: &Client, group: &str, kind: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), NAMESPACE, &resource(group, kind))
}

fn whole(client: &Client, kind: &str) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource("", kind))
}
