//! Blocks of address pools that nodes hold, from their NodeNetworkConfigs.
//!
//! The controller does not wait for them. While they cannot be listed, for example because their
//! kind is not installed, pod CIDRs are routed and existing routes to nodes stay.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use weft_ipam::objects::NetworkObjects;
use weft_model::{SharedStr, null_is_default};
use weft_routes::Blocks;
use weft_runtime::{
    Change, Cluster, Kind, KindState, Metadata, Object as _, Subscription, WatchSpec, projection,
};

/// The kind NodeNetworkConfig in the group of `objects`.
pub(crate) fn network_kind(objects: &NetworkObjects) -> Kind {
    let [group, version, plural, kind] = objects.node_network_configs();
    Kind::new(group, version, plural, kind)
}

/// Pause before a watch that ended is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// A NodeNetworkConfig, reduced to the ranges that are routed.
#[derive(Debug, Deserialize)]
pub(crate) struct NodeBlocks {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_is_default")]
    status: Status,
}

projection!(NodeBlocks);

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    #[serde(deserialize_with = "null_is_default")]
    network_containers: Vec<Container>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    #[serde(deserialize_with = "ranges")]
    ip_assignments: Box<[IpNet]>,
}

/// Parses addresses and blocks. Invalid entries are skipped; the IPAM daemon reports them.
fn ranges<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<[IpNet]>, D::Error> {
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        ip: SharedStr,
    }
    let entries = Option::<Vec<Entry>>::deserialize(deserializer)?.unwrap_or_default();
    let nets = entries.iter().filter_map(|entry| {
        let single = entry.ip.parse::<IpAddr>().map(IpNet::from);
        single.ok().or_else(|| entry.ip.parse().ok())
    });
    Ok(nets.collect())
}

impl NodeBlocks {
    /// The blocks of the node with this UID; unknown if the object belongs to a former node of the
    /// same name.
    pub(super) fn of_node(&self, uid: &str) -> Blocks {
        let mut owners = self.owners().into_iter();
        let owner = owners.find(|owner| owner.controller && owner.kind == "Node");
        if owner.is_some_and(|owner| owner.uid != uid) {
            return Blocks::Unknown;
        }
        let containers = self.status.network_containers.iter();
        Blocks::known(containers.flat_map(|container| container.ip_assignments.iter().copied()))
    }
}

/// State of knowledge about the blocks of one node.
#[derive(Clone, Debug, Default)]
pub(super) enum Holding {
    /// Blocks are not routed.
    #[default]
    Off,
    /// No list yet, or the object cannot be decoded.
    Unknown,
    /// The node's object; a node without one holds no blocks.
    Known(Option<Arc<NodeBlocks>>),
}

impl Holding {
    /// True if both refer to the same object; contents are not compared.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Off, Self::Off)
            | (Self::Unknown, Self::Unknown)
            | (Self::Known(None), Self::Known(None)) => true,
            (Self::Known(Some(one)), Self::Known(Some(other))) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The blocks for planning.
    pub(super) fn blocks(&self, uid: &str) -> Blocks {
        match self {
            Self::Off => Blocks::None,
            Self::Unknown => Blocks::Unknown,
            Self::Known(None) => Blocks::known([]),
            Self::Known(Some(object)) => object.of_node(uid),
        }
    }
}

/// Watches NodeNetworkConfigs until it is dropped.
pub(super) struct BlockFeed {
    cache: BlockCache,
    _following: AbortOnDropHandle<()>,
}

/// NodeNetworkConfigs by node; `None` inside for one that cannot be decoded, and `None` for all
/// before the first complete list.
type BlockCache = Arc<Mutex<Option<HashMap<Box<str>, Option<Arc<NodeBlocks>>>>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockFeed {
    /// Starts the watch; `noticed` is called after every change.
    pub(super) fn open(
        cluster: &Cluster,
        objects: &NetworkObjects,
        ended: CancellationToken,
        noticed: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let cache = BlockCache::default();
        let (cluster, objects, shared) = (cluster.clone(), objects.clone(), cache.clone());
        // The informer is released when the controller stops, not when it starts again.
        let following = async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = follow(&cluster, &objects, &shared, &noticed) => {}
            }
        };
        Self {
            cache,
            _following: AbortOnDropHandle::new(tokio::spawn(following)),
        }
    }

    /// The present knowledge about the blocks of a node.
    pub(super) fn of(&self, node: &str) -> Holding {
        match &*lock(&self.cache) {
            None => Holding::Unknown,
            Some(by_node) => match by_node.get(node) {
                None => Holding::Known(None),
                Some(None) => Holding::Unknown,
                Some(Some(object)) => Holding::Known(Some(object.clone())),
            },
        }
    }
}

async fn follow(
    cluster: &Cluster,
    objects: &NetworkObjects,
    cache: &BlockCache,
    noticed: &(impl Fn() + Sync),
) {
    let kind = network_kind(objects);
    let spec = WatchSpec::all().namespace(&objects.namespace);
    let mut served = cluster.kind(&kind);
    loop {
        let present = |state: &KindState| *state == KindState::Present;
        if served.wait_for(present).await.is_err() {
            return;
        }
        let informer = cluster.cache().informer_of::<NodeBlocks>(&kind, &spec);
        update_cache(informer.subscribe(), cache, noticed).await;
        *lock(cache) = None;
        tracing::warn!(%kind, "watch of NodeNetworkConfigs ended; routes to nodes stay until it is restored");
        noticed();
        tokio::time::sleep(PAUSE).await;
    }
}

/// Updates the cache until the watch ends.
async fn update_cache(
    mut changes: Subscription<NodeBlocks>,
    cache: &BlockCache,
    noticed: &(impl Fn() + Sync),
) {
    let mut first = Some(HashMap::new());
    while let Some(change) = changes.next().await {
        let mut kept = lock(cache);
        // A partial first list must not be visible.
        let Some(by_node) = first.as_mut().or(kept.as_mut()) else {
            return;
        };
        match change {
            Change::Added { new, .. } | Change::Updated { new, .. } => {
                by_node.insert(new.name().into(), Some(new));
            }
            Change::Deleted { last, .. } => drop(by_node.remove(last.name())),
            Change::Undecodable(object) => {
                tracing::error!(key = %object.key, error = object.error, "cannot decode NodeNetworkConfig");
                by_node.insert((&*object.key.name).into(), None);
            }
            Change::Synced => {
                if let Some(by_node) = first.take() {
                    *kept = Some(by_node);
                }
            }
            Change::Closed(_) => return,
        }
        drop(kept);
        if first.is_none() {
            noticed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(owner: &str, entries: &str) -> NodeBlocks {
        let text = format!(
            r#"{{"metadata":{{"name":"n1","ownerReferences":[{{"apiVersion":"v1","kind":"Node",
            "name":"n1","uid":"{owner}","controller":true}}]}},"status":{{"networkContainers":
            [{{"ipAssignments":{entries}}},{{"ipAssignments":null}}]}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn addresses_and_blocks_are_read_and_garbage_is_passed_over() {
        let entries = r#"[{"name":"a","ip":"10.1.0.16/28"},{"ip":"10.1.1.7"},{"ip":"fd00::/124"},
            {"ip":"x"},{}]"#;
        let nets = ["10.1.0.16/28", "10.1.1.7/32", "fd00::/124"];
        let expected = Blocks::known(nets.map(|net| net.parse().unwrap()));
        assert_eq!(object("uid", entries).of_node("uid"), expected);
    }

    #[test]
    fn an_object_of_a_former_node_says_nothing_about_its_successor() {
        let former = object("former", "[]");
        assert_eq!(former.of_node("uid"), Blocks::Unknown);
    }
}
