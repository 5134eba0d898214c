//! A policy engine: the kinds it watches are chosen at run time, by a ConfigMap that anyone may
//! edit. This is the case that Gatekeeper needs informer removal for.
//!
//! ```text
//! cargo run -p weft-runtime --example policy_engine
//! kubectl create configmap watched-kinds --from-literal=pods=v1 --from-literal=deployments=apps/v1
//! kubectl patch configmap watched-kinds --type=json -p '[{"op":"remove","path":"/data/pods"}]'
//! ```
//!
//! Each entry is one more informer; removing it closes the connection and frees the store.

use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
    sync::Arc,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Config;
use tokio::sync::Mutex;
use weft_runtime::{
    Action, Cluster, Context, Controller, Kind, Manager, Mapper, MetadataOnly, ObjectKey,
    ReconcileError, Reconciler, WatchId, WatchOptions, WatchSpec, connect, reconcile_with,
    shutdown_signal,
};

/// A violation is judged for an object of any kind, so the kind is part of the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Subject {
    kind: Kind,
    key: ObjectKey,
}

/// The rule: every object has a label `owner`.
async fn judge(context: Context<Subject>) -> Result<Action, ReconcileError> {
    let Subject { kind, key } = context.key();
    let object = context.lister_of::<MetadataOnly>(kind)?.get(key)?;
    if let Some(object) = object
        && object.metadata.labels.get("owner").is_none()
    {
        tracing::warn!(%kind, %key, "has no owner label");
    }
    Ok(Action::await_change())
}

/// Keeps the watches of the judging controller equal to the entries of the ConfigMap.
struct FollowConfiguration {
    judge: Controller<Subject>,
    watched: Arc<Mutex<HashMap<Kind, WatchId>>>,
}

impl Reconciler<ObjectKey> for FollowConfiguration {
    async fn reconcile(&self, context: Context<ObjectKey>) -> Result<Action, ReconcileError> {
        let configuration = context.object::<ConfigMap>()?;
        let data = configuration
            .and_then(|map| map.data.clone())
            .unwrap_or_default();
        let wanted = kinds(&data);
        let mut watched = self.watched.lock().await;
        let gone: Vec<Kind> = watched
            .keys()
            .filter(|kind| !wanted.contains(kind))
            .cloned()
            .collect();
        for kind in gone {
            if let Some(id) = watched.remove(&kind) {
                self.judge.remove_watch(id).await;
                tracing::info!(%kind, "no longer watched");
            }
        }
        for kind in wanted {
            if watched.contains_key(&kind) {
                continue;
            }
            let subject = kind.clone();
            let mapper = Mapper::<MetadataOnly, Subject>::new(move |object| {
                use weft_runtime::Object;
                vec![Subject {
                    kind: subject.clone(),
                    key: object.key(),
                }]
            });
            // Optional: a kind that does not exist does not hold up the controller.
            let options = WatchOptions::default().optional();
            let id = self
                .judge
                .add_watch_with(kind.clone(), WatchSpec::all(), mapper, options);
            tracing::info!(%kind, "watched from now on");
            watched.insert(kind, id);
        }
        Ok(Action::await_change())
    }
}

/// `pods=v1`, `deployments=apps/v1`, …
fn kinds(data: &BTreeMap<String, String>) -> Vec<Kind> {
    let entries = data.iter().map(|(plural, api_version)| {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Kind::new(group, version, plural, plural)
    });
    entries.collect()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let config = Config::infer().await?;
    let cluster = Cluster::new("local", connect(&config, None)?);
    let manager = Manager::builder("policy-engine", cluster.clone()).build()?;
    let judge = Controller::builder("judge", &cluster)
        .concurrency(4)
        .metrics(manager.metrics())
        .build(reconcile_with(judge));
    let only = WatchSpec::all()
        .namespace(&config.default_namespace)
        .fields("metadata.name=watched-kinds")?;
    let follow: Controller<ObjectKey> = Controller::builder("configuration", &cluster)
        .reconciles::<ConfigMap>(only)
        .metrics(manager.metrics())
        .build(FollowConfiguration {
            judge: judge.clone(),
            watched: Arc::default(),
        });
    manager.add(&judge)?;
    manager.add(&follow)?;
    manager.run(shutdown_signal()?).await?;
    Ok(())
}
