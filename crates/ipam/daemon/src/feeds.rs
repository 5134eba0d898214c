//! Watches of this node, its NodeNetworkConfig, its pods, and the subnet states.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};
use weft_ipam::{NodeConfig, PodSummary, Uid, objects::NetworkObjects};
use weft_model::SharedStr;
use weft_runtime::{
    Cache, Change, Informer, InformerState, Kind, Kinded as _, Object, SelectorError, Subscription,
    WaitReason, WatchSpec,
};

use crate::views::{NodeNetwork, NodePod, SubnetState};
use weft_process::own_node::{self, NodeView};

/// The NodeNetworkConfig kind of this API group.
pub(crate) fn network_kind(objects: &NetworkObjects) -> Kind {
    let [group, version, plural, kind] = objects.node_network_configs();
    Kind::new(group, version, plural, kind)
}

fn subnet_kind(objects: &NetworkObjects) -> Kind {
    let [group, version, plural, kind] = objects.cluster_subnet_states();
    Kind::new(group, version, plural, kind)
}

/// A change that a watch reported.
#[derive(Debug)]
pub(crate) enum Observation {
    Node {
        uid: Uid,
        container_runtime: SharedStr,
    },
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

/// Delay before an ended watch is started again.
const PAUSE: Duration = Duration::from_secs(1);

impl Feeds {
    pub(crate) fn open(
        cache: &Cache,
        node: &str,
        objects: &NetworkObjects,
    ) -> Result<Self, SelectorError> {
        let own = own_node::watch(node)?;
        let every_pod = WatchSpec::all().fields(&format!("spec.nodeName={node}"))?;
        // The server filters out pods that need no address; finished ones arrive as deletions.
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

    /// The next change. Cancel safe.
    pub(crate) async fn next(&mut self) -> Observation {
        loop {
            tokio::select! {
                change = self.node.next() => {
                    if let Some(Change::Added { new, .. } | Change::Updated { new, .. }) = change {
                        return Observation::Node {
                            uid: (&*new.metadata.uid).into(),
                            container_runtime: new.container_runtime().clone(),
                        };
                    }
                }
                change = self.network.next() => match change {
                    Some(Change::Added { new, .. } | Change::Updated { new, .. }) => {
                        return Observation::Network(Box::new(new.to_config()));
                    }
                    Some(Change::Deleted { .. }) => return Observation::NetworkGone,
                    Some(Change::Undecodable(object)) => {
                        tracing::error!(key = %object.key, error = object.error, "cannot decode the NodeNetworkConfig");
                    }
                    _ => {}
                },
                change = self.pods.next() => {
                    if change.is_none() && self.pods.is_refused() {
                        // A server before 1.28 cannot select by hostNetwork.
                        tracing::info!("pod field selector rejected, watching all pods of this node");
                        self.pods.watch(self.every_pod.clone());
                    }
                    return Observation::Pods;
                }
                _ = self.subnets.next() => return Observation::Subnets,
            }
        }
    }

    /// Pods that need addresses; `None` before the first complete list.
    pub(crate) fn pods(&self) -> Option<Vec<PodSummary>> {
        if !self.pods.listed {
            return None;
        }
        let pods = self.pods.informer.lister().list().ok()?;
        let sketches = pods.iter().map(|pod| pod.summary());
        Some(sketches.filter(PodSummary::needs_address).collect())
    }

    /// True if the list of pods is up to date, not only cached.
    pub(crate) fn pods_synced(&self) -> bool {
        self.pods.listed && matches!(*self.pods.state.borrow(), InformerState::Synced)
    }

    /// True if one of the node's own subnets is nearly exhausted.
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
    /// Time at which an ended watch is started again.
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

    /// The next change; `None` if only the state of the watch has changed. Cancel safe.
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
