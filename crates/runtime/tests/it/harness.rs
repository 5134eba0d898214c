//! Test harness: servers, objects and waiting.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::Deserialize;
use serde_json::json;
use tokio::{sync::watch, time::timeout};
use weft_apiserver::{ApiServer, Matcher};
use weft_runtime::{Change, Cluster, Kind, Metadata, Subscription, WatchSpec, projection};

/// A server with a namespace of the test's own.
pub(crate) struct Harness {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    embedded: Option<ApiServer>,
}

/// Object type that tests cache: a ConfigMap with its data.
#[derive(Debug, Deserialize)]
pub(crate) struct Note {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) data: std::collections::BTreeMap<String, String>,
}

projection!(Note, "", "v1", "configmaps", "ConfigMap");

impl Note {
    pub(crate) fn text(&self) -> &str {
        self.data
            .get("text")
            .map(String::as_str)
            .unwrap_or_default()
    }
}

impl Harness {
    /// The embedded server, without sockets, so that time can be paused.
    pub(crate) async fn embedded() -> Self {
        let server = ApiServer::builder().build();
        let client = server.client();
        Self::with(client, Some(server)).await
    }

    /// The cluster under test: embedded unless the environment names another.
    pub(crate) async fn any() -> Self {
        match std::env::var_os("WEFT_TEST_KUBECONFIG") {
            None => Self::embedded().await,
            Some(path) => {
                let kubeconfig = Kubeconfig::read_from(path).unwrap();
                let options = KubeConfigOptions::default();
                let config = Config::from_custom_kubeconfig(kubeconfig, &options)
                    .await
                    .unwrap();
                let _ = rustls::crypto::ring::default_provider().install_default();
                Self::with(weft_runtime::connect(&config, None).unwrap(), None).await
            }
        }
    }

    async fn with(client: Client, embedded: Option<ApiServer>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("test-{}-{number}", std::process::id());
        let object: Namespace =
            serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
        Api::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        Self {
            client,
            namespace,
            embedded,
        }
    }

    /// The embedded server; only for tests that asked for it.
    pub(crate) fn server(&self) -> &ApiServer {
        self.embedded
            .as_ref()
            .expect("this test runs on the embedded server")
    }

    pub(crate) fn cluster(&self) -> Cluster {
        Cluster::new("test", self.client.clone())
    }

    /// The test's namespace only: a shared server has other tests' objects too.
    pub(crate) fn spec(&self) -> WatchSpec {
        WatchSpec::all().namespace(&self.namespace)
    }

    pub(crate) fn notes(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn key(&self, name: &str) -> weft_runtime::ObjectKey {
        weft_runtime::ObjectKey::namespaced(&self.namespace, name)
    }

    pub(crate) async fn create(&self, name: &str, text: &str) -> ConfigMap {
        self.create_with(json!({"metadata": {"name": name}, "data": {"text": text}}))
            .await
    }

    pub(crate) async fn create_with(&self, object: serde_json::Value) -> ConfigMap {
        let object = serde_json::from_value(object).unwrap();
        self.notes()
            .create(&PostParams::default(), &object)
            .await
            .unwrap()
    }

    pub(crate) async fn update(&self, name: &str, text: &str) -> ConfigMap {
        let patch = Patch::Merge(json!({"data": {"text": text}}));
        self.notes()
            .patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap()
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.notes()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }
}

/// Limit for any wait. Most tests run in paused time, where waiting costs nothing.
const LIMIT: Duration = Duration::from_mins(5);

/// All requests about configmaps.
pub(crate) fn configmaps() -> Matcher {
    Matcher::any().resource("configmaps")
}

/// Polls a condition that has no notification.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let poll = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(LIMIT, poll)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

/// Waits for a state.
pub(crate) async fn reaches<T: Clone + std::fmt::Debug>(
    states: &mut watch::Receiver<T>,
    mut wanted: impl FnMut(&T) -> bool,
) -> T {
    let wait = async {
        states
            .wait_for(|state| wanted(state))
            .await
            .map(|state| state.clone())
    };
    let reached = timeout(LIMIT, wait).await;
    let reached = reached.unwrap_or_else(|_| panic!("never reached; it is {:?}", states.borrow()));
    reached.expect("the sender is alive")
}

/// The next change, which must come.
pub(crate) async fn next<K: weft_runtime::Object + std::fmt::Debug>(
    subscription: &mut Subscription<K>,
) -> Change<K> {
    let next = timeout(LIMIT, subscription.next()).await;
    next.expect("a change").expect("the subscription goes on")
}

/// Takes changes up to and including `Synced`.
pub(crate) async fn drain_initial<K: weft_runtime::Object + std::fmt::Debug>(
    subscription: &mut Subscription<K>,
) -> Vec<Change<K>> {
    let mut changes = Vec::new();
    loop {
        match next(subscription).await {
            Change::Synced => return changes,
            change => changes.push(change),
        }
    }
}

/// A custom kind of the test's own, so that tests on one server do not meet.
pub(crate) struct CustomKind {
    pub(crate) kind: Kind,
    group: String,
    api: Api<CustomResourceDefinition>,
    client: Client,
}

impl CustomKind {
    pub(crate) fn new(harness: &Harness) -> Self {
        let group = format!("{}.example.com", harness.namespace);
        Self {
            kind: Kind::new(&group, "v1", "widgets", "Widget"),
            group,
            api: Api::all(harness.client.clone()),
            client: harness.client.clone(),
        }
    }

    fn name(&self) -> String {
        format!("widgets.{}", self.group)
    }

    /// Installs the definition with `v1` and `v2`, both served.
    pub(crate) async fn install(&self) {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
        let definition = json!({
            "metadata": {"name": self.name()},
            "spec": {"group": self.group, "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
                "versions": [version("v1", false), version("v2", true)]},
        });
        let definition = serde_json::from_value(definition).unwrap();
        // A definition of that name may still be on its way out.
        let create = async {
            loop {
                match self.api.create(&PostParams::default(), &definition).await {
                    Ok(_) => return,
                    Err(kube::Error::Api(status)) if status.code == 409 => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        };
        timeout(LIMIT, create).await.expect("installed");
    }

    /// Sets whether `v1` is served.
    pub(crate) async fn serve_v1(&self, served: bool) {
        let mut definition = self.api.get(&self.name()).await.unwrap();
        for version in &mut definition.spec.versions {
            if version.name == "v1" {
                version.served = served;
            }
        }
        self.api
            .replace(&self.name(), &PostParams::default(), &definition)
            .await
            .unwrap();
    }

    pub(crate) async fn remove(&self) {
        self.api
            .delete(&self.name(), &DeleteParams::default())
            .await
            .unwrap();
    }

    pub(crate) async fn is_gone(&self) -> bool {
        self.api.get_opt(&self.name()).await.unwrap().is_none()
    }

    pub(crate) fn widgets(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &self.kind.to_api_resource())
    }

    /// Creates a widget, once the server serves the kind.
    pub(crate) async fn create(&self, namespace: &str, name: &str) -> String {
        let widget = DynamicObject::new(name, &self.kind.to_api_resource());
        let create = async {
            loop {
                match self
                    .widgets(namespace)
                    .create(&PostParams::default(), &widget)
                    .await
                {
                    Ok(created) => return created.uid().unwrap(),
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        timeout(LIMIT, create).await.expect("created")
    }
}
