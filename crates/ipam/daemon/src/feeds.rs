//! What the cluster says: this node, its NodeNetworkConfig, its pods, and the state of subnets.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};
use weft_ipam::{NodeConfig, PodSketch, Uid, objects::NetworkObjects};
use weft_runtime::{
    Cache, Change, Informer, InformerState, Kind, Kinded as _, Object, SelectorError, Subscription,
    WaitReason, WatchSpec,
};

use crate::views::{NodeNetwork, NodePod, SubnetState};
use weft_process::own_node::{self, NodeView};

/// The kind of NodeNetworkConfigs in this group.
pub(crate) fn network_kind(objects: &NetworkObjects) -> Kind {
    let [group, version, plural, kind] = objects.node_network_configs();
    Kind::new(group, version, plural, kind)
}

fn subnet_kind(objects: &NetworkObjects) -> Kind {
    let [group, version, plural, kind] = objects.cluster_subnet_states();
    Kind::new(group, version, plural, kind)
}

/// Something that changed.
#[derive(Debug)]
pub(crate) enum Sighting {
    Node(Uid),
    Network(Box<NodeConfig>),
    NetworkGone,
    Pods,
    Subnets,
}

pub(crate) struct Feeds {
    node: Feed<NodeView>,
    network: Feed<NodeNetwork>,
    pods: Feed<NodePod>,
    subnets: Feed<SubnetState>,
    every_pod: WatchSpec,
}

/// How soon something that ended is watched again.
const PAUSE: Duration = Duration::from_secs(1);

impl Feeds {
    pub(crate) fn open(
        cache: &Cache,
        node: &str,
        objects: &NetworkObjects,
    ) -> Result<Self, SelectorError> {
        let own = own_node::watch(node)?;
        let every_pod = WatchSpec::all().fields(&format!("spec.nodeName={node}"))?;
        // The server leaves out what needs no address; those that end come as deletions.
        let needy = WatchSpec::all().fields(&format!(
            "spec.nodeName={node},spec.hostNetwork=false,status.phase!=Succeeded,\
             status.phase!=Failed"
        ))?;
        let inside = |spec: WatchSpec| spec.namespace(&objects.namespace);
        Ok(Self {
            node: Feed::open(cache, NodeView::resource_kind(), own.clone()),
            network: Feed::open(cache, network_kind(objects), inside(own)),
            pods: Feed::open(cache, NodePod::resource_kind(), needy),
            subnets: Feed::open(cache, subnet_kind(objects), inside(WatchSpec::all())),
            every_pod,
        })
    }

    /// The next change. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Sighting {
        loop {
            tokio::select! {
                change = self.node.next() => {
                    if let Some(Change::Added { new, .. } | Change::Updated { new, .. }) = change {
                        return Sighting::Node((&*new.metadata.uid).into());
                    }
                }
                change = self.network.next() => match change {
                    Some(Change::Added { new, .. } | Change::Updated { new, .. }) => {
                        return Sighting::Network(Box::new(new.to_config()));
                    }
                    Some(Change::Deleted { .. }) => return Sighting::NetworkGone,
                    Some(Change::Undecodable(object)) => {
                        tracing::error!(key = %object.key, error = object.error, "cannot read the NodeNetworkConfig");
                    }
                    _ => {}
                },
                change = self.pods.next() => {
                    if change.is_none() && self.pods.is_refused() {
                        // A server from before 1.28 cannot leave out pods of the host's network.
                        tracing::info!("the server cannot select pods that need addresses; watching all of this node");
                        self.pods.watch(self.every_pod.clone());
                    }
                    return Sighting::Pods;
                }
                _ = self.subnets.next() => return Sighting::Subnets,
            }
        }
    }

    /// The pods that need addresses; `None` before the first complete list.
    pub(crate) fn pods(&self) -> Option<Vec<PodSketch>> {
        if !self.pods.listed {
            return None;
        }
        let pods = self.pods.informer.lister().list().ok()?;
        let sketches = pods.iter().map(|pod| pod.sketch());
        Some(sketches.filter(PodSketch::needs_address).collect())
    }

    /// Whether the list of pods is followed and not only remembered.
    pub(crate) fn pods_synced(&self) -> bool {
        self.pods.listed && matches!(*self.pods.state.borrow(), InformerState::Synced)
    }

    /// Whether one of the node's own subnets is nearly out of addresses.
    pub(crate) fn exhausted(&self, config: &NodeConfig) -> bool {
        let states = self.subnets.informer.lister().list().unwrap_or_default();
        let ours = |state: &SubnetState| {
            let mut containers = config.status.containers.iter();
            containers.any(|container| &*container.subnet == state.name())
        };
        states
            .iter()
            .any(|state| state.is_exhausted() && ours(state))
    }
}

/// One informer, watched again when it ends.
struct Feed<K: Object> {
    cache: Cache,
    kind: Kind,
    spec: WatchSpec,
    informer: Informer<K>,
    changes: Subscription<K>,
    state: watch::Receiver<InformerState>,
    listed: bool,
    /// When to watch again what has ended.
    again: Option<Instant>,
}

impl<K: Object> Feed<K> {
    fn open(cache: &Cache, kind: Kind, spec: WatchSpec) -> Self {
        let informer = cache.informer_of::<K>(&kind, &spec);
        Self {
            changes: informer.subscribe(),
            state: informer.state(),
            cache: cache.clone(),
            kind,
            spec,
            informer,
            listed: false,
            again: None,
        }
    }

    fn watch(&mut self, spec: WatchSpec) {
        *self = Self::open(&self.cache, self.kind.clone(), spec);
    }

    fn is_refused(&self) -> bool {
        let state = self.state.borrow();
        matches!(*state, InformerState::Waiting(WaitReason::Refused))
    }

    /// The next change; `None` when only the state of the watch has changed. Safe to cancel.
    async fn next(&mut self) -> Option<Change<K>> {
        if let Some(again) = self.again {
            tokio::time::sleep_until(again).await;
            self.watch(self.spec.clone());
        }
        let change = tokio::select! {
            change = self.changes.next() => change,
            changed = self.state.changed() => {
                if changed.is_err() {
                    self.end();
                }
                return None;
            }
        };
        match change {
            Some(Change::Synced) => self.listed = true,
            None | Some(Change::Closed(_)) => self.end(),
            _ => {}
        }
        change
    }

    fn end(&mut self) {
        self.listed = false;
        self.again = Some(Instant::now() + PAUSE);
    }
}
