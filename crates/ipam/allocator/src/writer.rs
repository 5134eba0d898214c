//! Carries out planned writes, each only if its object is unchanged since it was read.

use axum::http::{Method, Request};
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use weft_ipam::{
    NodeName, NodeStatus, PoolName, Precondition, Uid,
    allocator::{Holder, Shard, Write},
    objects::{FINALIZER, Meta, NodeNetworkConfigStatus, ShardSpec},
};
use weft_model::SharedStr;
use weft_runtime::{Cluster, Kind, Kinded as _, ObjectKey};

use crate::views::{ConfigView, NodeView, PoolView, ShardView, StateView};

/// Writer of all objects of the allocator.
#[derive(Clone)]
pub(super) struct Writer {
    client: Client,
    /// Namespace of the NodeNetworkConfigs.
    namespace: SharedStr,
}

/// Object and version of a write, to wait until the cache shows it.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) kind: Kind,
    pub(super) key: ObjectKey,
    pub(super) version: SharedStr,
}

/// Lookups that a write needs, in the objects that it was planned from.
pub(super) trait Facts: Send + Sync {
    /// Prefix length of a shard's blocks.
    fn block_prefix(&self, shard: &Shard) -> Option<u8>;
    /// Metadata of a NodeNetworkConfig.
    fn config(&self, _name: &NodeName) -> Option<&Meta> {
        None
    }
    /// Metadata of a pool.
    fn pool(&self, _name: &PoolName) -> Option<&Meta> {
        None
    }
    /// The kind of object that holds claims.
    fn holders(&self) -> HolderKind;
    /// The time of the plan in RFC 3339.
    fn timestamp(&self) -> &str;
}

/// The kind of object that holds claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HolderKind {
    /// NodeNetworkConfigs hold blocks.
    Config,
    /// Nodes hold pod CIDRs.
    Node,
}

/// Use of our finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finalizer {
    Add,
    Remove,
}

/// A write that failed. The next plan starts from the objects observed then.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// Another writer changed the object.
    #[error("the object was changed by another writer")]
    Conflict(#[source] Box<kube::Error>),
    /// The holder of a claim still exists, so the claim cannot be freed.
    #[error("cannot free the claim: {0} still exists")]
    StillThere(NodeName),
    /// The config that a claim is moved to has changed.
    #[error("nodenetworkconfig {0} was changed by another writer")]
    Changed(NodeName),
    /// The Node that a claim is moved to does not exist any more.
    #[error("cannot move the claim: node {0} is gone or was registered again")]
    Absent(NodeName),
    /// No range of the pool contains the shard.
    #[error("shard {0} is in no range of its pool")]
    NoRange(String),
    /// Any other response, or none.
    #[error("the API server refused the write")]
    Refused(#[source] Box<kube::Error>),
}

impl From<kube::Error> for WriteError {
    fn from(error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) if matches!(status.code, 404 | 409) => {
                Self::Conflict(Box::new(error))
            }
            _ => Self::Refused(Box::new(error)),
        }
    }
}

impl WriteError {
    /// The outcome of a write in metrics; `None` is one that the end of the lease cut off.
    pub(super) fn label<T>(outcome: Option<&Result<T, Self>>) -> &'static str {
        match outcome {
            None => "lease_ended",
            Some(Ok(_)) => "ok",
            Some(Err(Self::Conflict(_) | Self::Changed(_) | Self::Absent(_))) => "conflict",
            Some(Err(Self::StillThere(_))) => "still_there",
            Some(Err(Self::NoRange(_) | Self::Refused(_))) => "error",
        }
    }
}

/// The owner reference of a config to its Node.
fn node_owner(node: &NodeName, uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": true})
}

#[derive(Debug, Deserialize)]
struct Answer {
    metadata: Meta,
}

impl Writer {
    pub(super) fn new(cluster: &Cluster, namespace: &str) -> Self {
        Self {
            client: cluster.client().clone(),
            namespace: SharedStr::new(namespace),
        }
    }

    /// Carries out one write.
    pub(super) async fn write(
        &self,
        write: &Write,
        facts: &dyn Facts,
    ) -> Result<Option<Written>, WriteError> {
        match write {
            Write::CreateConfig {
                node,
                owner,
                requested,
            } => {
                let object = self.new_config(node, owner.as_str(), *requested);
                let path = self.configs();
                self.put(ConfigView::resource_kind(), Method::POST, &path, &object)
                    .await
            }
            Write::Status {
                name,
                precondition,
                status,
            } => self.status(name, precondition, status).await,
            Write::Shard {
                shard,
                gone,
                unchanged,
                present,
                ..
            } => {
                for holder in gone {
                    self.ensure_gone(holder, facts.holders()).await?;
                }
                for (name, precondition) in unchanged {
                    self.ensure_unchanged(name, precondition).await?;
                }
                for (name, uid) in present {
                    self.ensure_present(name, uid).await?;
                }
                self.shard(shard, facts).await
            }
            Write::SetConfigOwner {
                name,
                precondition,
                owner,
            } => {
                let known = facts.config(name).map(|meta| &*meta.owner_references);
                let known = known.unwrap_or_default().iter();
                let mut owners: Vec<Value> = known.map(|owner| json!(owner)).collect();
                owners.push(node_owner(name, owner.as_str()));
                let body = json!({"metadata": {
                    "uid": precondition.uid.as_str(),
                    "resourceVersion": precondition.version.as_str(),
                    "ownerReferences": owners,
                }});
                let path = format!("{}/{name}", self.configs());
                self.put(ConfigView::resource_kind(), Method::PATCH, &path, &body)
                    .await
            }
            Write::DeleteConfig { name, precondition } => {
                let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {
                    "uid": precondition.uid.as_str(),
                    "resourceVersion": precondition.version.as_str(),
                }});
                let path = format!("{}/{name}", self.configs());
                self.send::<Value>(Method::DELETE, &path, &body).await?;
                Ok(None)
            }
            Write::RemoveConfigFinalizer { name, precondition } => {
                let known = facts.config(name).map(|meta| &*meta.finalizers);
                let known = known.unwrap_or_default().iter();
                let finalizers: Vec<_> = known.filter(|one| &***one != FINALIZER).collect();
                let body = json!({"metadata": {
                    "uid": precondition.uid.as_str(),
                    "resourceVersion": precondition.version.as_str(),
                    "finalizers": finalizers,
                }});
                let path = format!("{}/{name}", self.configs());
                self.send::<Value>(Method::PATCH, &path, &body).await?;
                Ok(None)
            }
            Write::AddPoolFinalizer(pool) => self.pool_finalizer(pool, Finalizer::Add, facts).await,
            Write::RemovePoolFinalizer(pool) => {
                self.pool_finalizer(pool, Finalizer::Remove, facts).await
            }
            Write::SubnetState { pool, exhausted } => {
                self.subnet_state(pool, *exhausted, facts).await
            }
            Write::PodCidrs {
                name,
                precondition,
                cidrs,
            } => {
                // No resource version: heartbeats change Nodes all the time, and the first writer
                // wins because the API server does not allow pod CIDRs to be changed.
                let body = json!({
                    "metadata": {"uid": precondition.uid.as_str()},
                    "spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs},
                });
                let path = format!("/api/v1/nodes/{name}");
                self.put(NodeView::resource_kind(), Method::PATCH, &path, &body)
                    .await
            }
        }
    }

    fn configs(&self) -> String {
        ConfigView::resource_kind().collection_path(Some(&self.namespace))
    }

    fn new_config(&self, node: &NodeName, owner: &str, requested: i64) -> Value {
        let kind = ConfigView::resource_kind();
        json!({
            "apiVersion": kind.api_version(),
            "kind": &*kind.kind,
            "metadata": {
                "name": node,
                "namespace": self.namespace,
                "finalizers": [FINALIZER],
                "ownerReferences": [node_owner(node, owner)],
            },
            "spec": {"requestedIPCount": requested},
        })
    }

    async fn status(
        &self,
        name: &NodeName,
        precondition: &Precondition,
        status: &NodeStatus,
    ) -> Result<Option<Written>, WriteError> {
        let kind = ConfigView::resource_kind();
        let object = json!({
            "apiVersion": kind.api_version(),
            "kind": &*kind.kind,
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "uid": precondition.uid.as_str(),
                "resourceVersion": precondition.version.as_str(),
            },
            "status": NodeNetworkConfigStatus::from(status),
        });
        let path = format!("{}/{name}/status", self.configs());
        self.put(kind, Method::PUT, &path, &object).await
    }

    async fn shard(&self, shard: &Shard, facts: &dyn Facts) -> Result<Option<Written>, WriteError> {
        let kind = ShardView::resource_kind();
        let name = shard.object_name();
        let Some(block_prefix) = facts.block_prefix(shard) else {
            return Err(WriteError::NoRange(name));
        };
        let mut object = json!({
            "apiVersion": kind.api_version(),
            "kind": &*kind.kind,
            "metadata": {"name": name},
            "spec": ShardSpec::of(shard, block_prefix),
        });
        let all = kind.collection_path(None);
        match &shard.version {
            None => self.put(kind, Method::POST, &all, &object).await,
            Some(version) => {
                object["metadata"]["resourceVersion"] = version.as_str().into();
                let path = format!("{all}/{name}");
                self.put(kind, Method::PUT, &path, &object).await
            }
        }
    }

    /// Adds our finalizer to a pool, or removes it.
    async fn pool_finalizer(
        &self,
        pool: &PoolName,
        finalizer: Finalizer,
        facts: &dyn Facts,
    ) -> Result<Option<Written>, WriteError> {
        let Some(meta) = facts.pool(pool) else {
            return Ok(None);
        };
        let mut finalizers = meta.finalizers.clone();
        finalizers.retain(|finalizer| &**finalizer != FINALIZER);
        if finalizer == Finalizer::Add {
            finalizers.push(SharedStr::new(FINALIZER));
        }
        let body = json!({"metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "finalizers": finalizers,
        }});
        let kind = PoolView::resource_kind();
        let path = format!("{}/{pool}", kind.collection_path(None));
        match finalizer {
            Finalizer::Add => self.put(kind, Method::PATCH, &path, &body).await,
            // The object may be gone with it.
            Finalizer::Remove => {
                self.send::<Value>(Method::PATCH, &path, &body).await?;
                Ok(None)
            }
        }
    }

    async fn subnet_state(
        &self,
        pool: &PoolName,
        exhausted: bool,
        facts: &dyn Facts,
    ) -> Result<Option<Written>, WriteError> {
        let kind = StateView::resource_kind();
        let all = kind.collection_path(Some(&self.namespace));
        let path = format!("{all}/{pool}/status");
        let status = json!({"status": {"exhausted": exhausted, "timestamp": facts.timestamp()}});
        let patched = self.put(kind.clone(), Method::PATCH, &path, &status).await;
        let Err(WriteError::Conflict(_)) = patched else {
            return patched;
        };
        let owner = PoolView::resource_kind();
        let owner = facts.pool(pool).map(|meta| {
            json!({
                "apiVersion": owner.api_version(), "kind": &*owner.kind,
                "name": pool, "uid": meta.uid,
            })
        });
        let owners: Vec<Value> = owner.into_iter().collect();
        let object = json!({
            "apiVersion": kind.api_version(),
            "kind": &*kind.kind,
            "metadata": {"name": pool, "namespace": self.namespace, "ownerReferences": owners},
        });
        self.send::<Value>(Method::POST, &all, &object).await?;
        self.put(kind, Method::PATCH, &path, &status).await
    }

    /// Reads from the API server itself: a cache may not contain the holder yet.
    async fn ensure_gone(&self, holder: &Holder, kind: HolderKind) -> Result<(), WriteError> {
        let there = || WriteError::StillThere(holder.node.clone());
        let config = format!("{}/{}", self.configs(), holder.node);
        if kind == HolderKind::Config {
            return match self.find(&config).await? {
                Some(found) if *found.uid == *holder.config.as_str() => Err(there()),
                _ => Ok(()),
            };
        }
        let node = self.find(&format!("/api/v1/nodes/{}", holder.node)).await?;
        if node.is_some_and(|found| *found.uid == *holder.config.as_str()) {
            return Err(there());
        }
        // A config publishes addresses of the range until it is gone. One without an owner may be
        // this node's, too.
        let config = self.find(&config).await?;
        let owner = |found: &Meta| found.controlling_node().cloned();
        match config.map(|found| owner(&found)) {
            Some(None) => Err(there()),
            Some(Some(owner)) if *owner == *holder.node_uid.as_str() => Err(there()),
            _ => Ok(()),
        }
    }

    /// Reads from the API server itself whether a config is unchanged since claims were moved to
    /// it.
    async fn ensure_unchanged(
        &self,
        name: &NodeName,
        precondition: &Precondition,
    ) -> Result<(), WriteError> {
        let found = self.find(&format!("{}/{name}", self.configs())).await?;
        let same = found.is_some_and(|found| {
            *found.uid == *precondition.uid.as_str()
                && *found.resource_version == *precondition.version.as_str()
        });
        if same {
            Ok(())
        } else {
            Err(WriteError::Changed(name.clone()))
        }
    }

    /// Reads from the API server itself whether a Node exists: a cache may show one that was deleted
    /// and registered again since.
    async fn ensure_present(&self, name: &NodeName, uid: &Uid) -> Result<(), WriteError> {
        let found = self.find(&format!("/api/v1/nodes/{name}")).await?;
        if found.is_some_and(|found| *found.uid == *uid.as_str()) {
            Ok(())
        } else {
            Err(WriteError::Absent(name.clone()))
        }
    }

    /// Metadata of an object, if it exists.
    async fn find(&self, path: &str) -> Result<Option<Meta>, WriteError> {
        match self.send::<Answer>(Method::GET, path, &Value::Null).await {
            Ok(found) => Ok(Some(found.metadata)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(WriteError::Refused(Box::new(error))),
        }
    }

    /// Writes the status of a pool.
    pub(super) async fn pool_status(
        &self,
        pool: &PoolName,
        body: &Value,
    ) -> Result<Option<Written>, WriteError> {
        let kind = PoolView::resource_kind();
        let path = format!("{}/{pool}/status", kind.collection_path(None));
        self.put(kind, Method::PATCH, &path, body).await
    }

    /// Writes an object, and returns the version that the cache has to show.
    async fn put(
        &self,
        kind: Kind,
        method: Method,
        path: &str,
        body: &Value,
    ) -> Result<Option<Written>, WriteError> {
        let Answer { metadata } = self.send(method, path, body).await?;
        Ok(Some(Written {
            kind,
            key: ObjectKey::new(metadata.namespace.as_deref(), &metadata.name),
            version: metadata.resource_version,
        }))
    }

    async fn send<T: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> kube::Result<T> {
        let content = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = match body {
            Value::Null => Vec::new(),
            body => serde_json::to_vec(body).map_err(kube::Error::SerdeError)?,
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .body(body)
            .map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }
}
