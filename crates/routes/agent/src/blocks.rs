//! Which blocks of pools the nodes hold, as their NodeNetworkConfigs say.
//!
//! Nobody waits for them: as long as they cannot be listed, be it that their kind is not installed,
//! pod CIDRs are routed, and what leads to a node stays.

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

/// The kind of NodeNetworkConfigs in this group.
pub(crate) fn network_kind(objects: &NetworkObjects) -> Kind {
    let [group, version, plural, kind] = objects.node_network_configs();
    Kind::new(group, version, plural, kind)
}

/// How soon something that ended is watched again.
const PAUSE: Duration = Duration::from_secs(1);

/// A NodeNetworkConfig, decoded to what is routed.
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

/// Addresses and blocks; an entry that is neither is the address daemon's to complain about.
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
    /// What a node holds. An object of another node of that name says nothing about this one.
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

/// What is known of the blocks of one node.
#[derive(Clone, Debug, Default)]
pub(super) enum Holding {
    /// Blocks are not routed.
    #[default]
    Off,
    /// Nothing.
    Unknown,
    /// This; nothing is held where there is no object.
    Known(Option<Arc<NodeBlocks>>),
}

impl Holding {
    /// Whether it is the same as before, without a look inside.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Off, Self::Off)
            | (Self::Unknown, Self::Unknown)
            | (Self::Known(None), Self::Known(None)) => true,
            (Self::Known(Some(one)), Self::Known(Some(other))) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// The same for the rules.
    pub(super) fn blocks(&self, uid: &str) -> Blocks {
        match self {
            Self::Off => Blocks::None,
            Self::Unknown => Blocks::Unknown,
            Self::Known(None) => Blocks::known([]),
            Self::Known(Some(object)) => object.of_node(uid),
        }
    }
}

/// Follows NodeNetworkConfigs as long as it lives.
pub(super) struct BlockFeed {
    book: Book,
    _following: AbortOnDropHandle<()>,
}

/// Objects by node, where one that cannot be read is noted without content; absent before the
/// first complete list.
type Book = Arc<Mutex<Option<HashMap<Box<str>, Option<Arc<NodeBlocks>>>>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockFeed {
    /// Begins; `noticed` is called whenever something has changed.
    pub(super) fn open(
        cluster: &Cluster,
        objects: &NetworkObjects,
        ended: CancellationToken,
        noticed: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let book = Book::default();
        let (cluster, objects, pages) = (cluster.clone(), objects.clone(), book.clone());
        // Informers are given back when the controller stops, and not when it next starts.
        let following = async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = follow(&cluster, &objects, &pages, &noticed) => {}
            }
        };
        Self {
            book,
            _following: AbortOnDropHandle::new(tokio::spawn(following)),
        }
    }

    /// What a node holds.
    pub(super) fn of(&self, node: &str) -> Holding {
        match &*lock(&self.book) {
            None => Holding::Unknown,
            Some(pages) => match pages.get(node) {
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
    book: &Book,
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
        keep(informer.subscribe(), book, noticed).await;
        *lock(book) = None;
        tracing::warn!(%kind, "blocks of nodes are not known; routes to them stay as they are");
        noticed();
        tokio::time::sleep(PAUSE).await;
    }
}

/// Keeps the book until the watch ends.
async fn keep(mut changes: Subscription<NodeBlocks>, book: &Book, noticed: &(impl Fn() + Sync)) {
    let mut first = Some(HashMap::new());
    while let Some(change) = changes.next().await {
        let mut kept = lock(book);
        // Before the first complete list nobody may see what is there of it.
        let Some(pages) = first.as_mut().or(kept.as_mut()) else {
            return;
        };
        match change {
            Change::Added { new, .. } | Change::Updated { new, .. } => {
                pages.insert(new.name().into(), Some(new));
            }
            Change::Deleted { last, .. } => drop(pages.remove(last.name())),
            Change::Undecodable(object) => {
                tracing::error!(key = %object.key, error = object.error, "cannot read a NodeNetworkConfig");
                pages.insert((&*object.key.name).into(), None);
            }
            Change::Synced => {
                if let Some(pages) = first.take() {
                    *kept = Some(pages);
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
