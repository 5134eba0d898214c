//! A `kube::runtime::Controller` ported to this crate.
//!
//! The construction, the imports and `Action` change; the reconciler keeps its signature `(Arc<K>,
//! Arc<Context>)`.
//!
//! With kube:
//!
//! ```text
//! Controller::new(Api::<ConfigMap>::all(client.clone()), watcher::Config::default())
//!     .owns(Api::<Secret>::all(client.clone()), watcher::Config::default())
//!     .shutdown_on_signal()
//!     .run(reconcile, error_policy, Arc::new(Data { client }))
//!     .for_each(|_| futures::future::ready(()))
//!     .await;
//! ```
//!
//! Gains: both watches are shared with every other controller of the process, deletions of owned
//! objects are seen, one failing watch does not pause the others, failures back off per key, and
//! the controller can be stopped and started again.

use std::{error::Error, sync::Arc};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client, Config, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use weft_runtime::{
    Action, Cluster, Controller, KubeReconciler, Manager, ObjectKey, WatchSpec, connect,
    shutdown_signal,
};

struct Data {
    client: Client,
}

/// A Secret for every ConfigMap that asks for one; the same body as with kube, but for the type
/// `Action`.
async fn reconcile(source: Arc<ConfigMap>, data: Arc<Data>) -> Result<Action, kube::Error> {
    if !source.annotations().contains_key("example.com/make-secret") {
        return Ok(Action::await_change());
    }
    let namespace = source.namespace().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(data.client.clone(), &namespace);
    let secret = Secret {
        metadata: kube::api::ObjectMeta {
            name: source.meta().name.clone(),
            owner_references: source.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..Default::default()
        },
        string_data: source.data.clone(),
        ..Secret::default()
    };
    let params = PatchParams::apply("from-kube");
    secrets
        .patch(&source.name_any(), &params, &Patch::Apply(&secret))
        .await?;
    Ok(Action::await_change())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let config = Config::infer().await?;
    let client = connect(&config, None)?;
    let cluster = Cluster::new("local", client.clone());
    let controller: Controller<ObjectKey> = Controller::builder("secrets", &cluster)
        .reconciles::<ConfigMap>(WatchSpec::all())
        .owns::<Secret, ConfigMap>(WatchSpec::all())
        .build(KubeReconciler::new(reconcile, Arc::new(Data { client })));
    let manager = Manager::builder("from-kube", cluster).build()?;
    manager.add(&controller)?;
    manager.run(shutdown_signal()?).await?;
    Ok(())
}
