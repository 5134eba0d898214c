//! The load: Pods, ConfigMaps and Secrets that are created, patched and deleted.

use std::time::{Duration, Instant, SystemTime};

use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};

use super::{pods, server::Server};

/// Concurrent requests: enough to make the server the limit.
const WRITERS: usize = 16;
/// Pods per namespace.
const PER_NAMESPACE: usize = 2500;
/// Number of ConfigMaps, and of Secrets, that cycles list.
const SMALL: usize = 200;
/// Attempts to delete a collection. The server aborts a request after a minute and keeps what it has
/// deleted by then.
const DELETIONS: usize = 5;

/// Objects in namespaces of this run.
pub(super) struct Load {
    server: Server,
    prefix: String,
    pods: usize,
}

/// Start and end of a burst of changes, in Unix seconds.
pub(super) struct Burst {
    pub(super) began: f64,
    pub(super) ended: f64,
}

impl Load {
    pub(super) fn new(server: &Server, pods: usize) -> Self {
        Self {
            server: server.clone(),
            prefix: format!("runtime-{}", std::process::id()),
            pods,
        }
    }

    fn namespaces(&self) -> impl Iterator<Item = String> {
        (0..self.pods.div_ceil(PER_NAMESPACE)).map(|number| format!("{}-{number}", self.prefix))
    }

    fn collection(&self, index: usize) -> String {
        let number = index / PER_NAMESPACE;
        format!("/api/v1/namespaces/{}-{number}/pods", self.prefix)
    }

    /// Creates all objects and sets the status of the Pods to running.
    pub(super) async fn create(&self) -> anyhow::Result<()> {
        for name in self.namespaces() {
            let namespace = json!({"metadata": {"name": name}});
            self.server.post("/api/v1/namespaces", &namespace).await?;
        }
        for kind in ["configmaps", "secrets"] {
            let collection = format!("/api/v1/namespaces/{}-0/{kind}", self.prefix);
            in_parallel(SMALL, "small objects", |index| {
                let object = small(kind, index);
                let collection = &collection;
                async move { self.server.post(collection, &object).await }
            })
            .await?;
        }
        in_parallel(self.pods, "Pods created", |index| async move {
            let collection = self.collection(index);
            self.server.post(&collection, &pods::pod(index)).await?;
            let status = format!("{collection}/{}/status", pods::name(index));
            self.server.merge(&status, &pods::running(index)).await
        })
        .await
    }

    /// Changes the status of the first `count` Pods, each once.
    pub(super) async fn change(&self, count: usize) -> anyhow::Result<Burst> {
        let began = unix_time();
        in_parallel(count, "Pods changed", |index| async move {
            let collection = self.collection(index);
            let status = format!("{collection}/{}/status", pods::name(index));
            self.server.merge(&status, &pods::restarted()).await
        })
        .await?;
        let ended = unix_time();
        Ok(Burst { began, ended })
    }

    /// Deletes all objects of a collection.
    async fn empty(&self, collection: &str, how: &Value) -> anyhow::Result<()> {
        let mut tried = 1;
        loop {
            match self.server.delete(collection, how).await {
                Err(_) if tried < DELETIONS => tried += 1,
                result => return result,
            }
        }
    }

    /// Deletes all objects but the namespaces, which without a controller manager would never be
    /// finalised.
    pub(super) async fn delete(&self) -> anyhow::Result<()> {
        let at_once = json!({"gracePeriodSeconds": 0});
        let collections: Vec<String> = self
            .namespaces()
            .flat_map(|name| {
                ["pods", "configmaps", "secrets"]
                    .map(|kind| format!("/api/v1/namespaces/{name}/{kind}"))
            })
            .collect();
        futures::stream::iter(&collections)
            .map(|collection| self.empty(collection, &at_once))
            .buffer_unordered(2)
            .try_collect()
            .await
    }
}

fn small(kind: &str, index: usize) -> Value {
    let data = match kind {
        "secrets" => "stringData",
        _ => "data",
    };
    json!({"metadata": {"name": format!("settings-{index}")}, data: {"text": "x".repeat(200)}})
}

pub(super) fn unix_time() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

async fn in_parallel<F: Future<Output = anyhow::Result<()>>>(
    count: usize,
    what: &str,
    request: impl Fn(usize) -> F,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut reported = began;
    let mut done = 0_usize;
    let mut answers = futures::stream::iter((0..count).map(request)).buffer_unordered(WRITERS);
    while answers.try_next().await?.is_some() {
        done += 1;
        if reported.elapsed() > Duration::from_secs(10) {
            reported = Instant::now();
            let seconds = began.elapsed().as_secs();
            eprintln!("[runtime] {done} of {count} {what} after {seconds} s");
        }
    }
    Ok(())
}
