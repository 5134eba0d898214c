//! Availability of kinds on the server, followed as CRDs come and go.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Cache, Change, Informer, Kind, Lister, Metadata, StopReason, WatchSpec, projection};

/// Availability of a kind for list and watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindState {
    /// Not known yet.
    Unknown,
    /// Served by the API server.
    Present,
    /// Not served.
    Absent,
}

/// Follows the kinds of one cluster: custom ones by a watch on their definitions, others through
/// the server's discovery.
///
/// When a kind goes, its informers are evicted, so that none keeps requesting a kind that is not
/// served.
pub struct KindMonitor {
    shared: Arc<Shared>,
    wake: mpsc::UnboundedSender<Kind>,
    _stop: DropGuard,
}

struct Shared {
    followed: Mutex<HashMap<Kind, watch::Sender<KindState>>>,
}

/// Interval of discovery for kinds without a definition. Definitions are watched; only aggregated
/// APIs and built-in kinds of a newer server are found this way.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);

/// Limit of one discovery request, so that a half-open connection does not hold up the others.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// The fields of a CustomResourceDefinition that say which versions are served.
#[derive(Debug, Deserialize)]
struct Definition {
    metadata: Metadata,
    spec: DefinitionSpec,
    #[serde(default)]
    status: DefinitionStatus,
}

projection!(
    Definition,
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition"
);

#[derive(Debug, Deserialize)]
struct DefinitionSpec {
    group: String,
    names: Names,
    versions: Vec<Version>,
}

#[derive(Debug, Deserialize)]
struct Names {
    plural: String,
}

#[derive(Debug, Deserialize)]
struct Version {
    name: String,
    served: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DefinitionStatus {
    conditions: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

impl Definition {
    fn defines(&self, kind: &Kind) -> bool {
        kind.group == self.spec.group.as_str() && kind.plural == self.spec.names.plural.as_str()
    }

    /// A definition that is being deleted serves until its instances are gone: controllers with
    /// finalizers are needed until then.
    fn serves(&self, kind: &Kind) -> bool {
        let version = self
            .spec
            .versions
            .iter()
            .find(|version| kind.version == version.name.as_str());
        self.holds("Established")
            && self.holds("NamesAccepted")
            && version.is_some_and(|version| version.served)
    }

    fn holds(&self, condition: &str) -> bool {
        let mut conditions = self.status.conditions.iter();
        conditions.any(|known| known.r#type == condition && known.status == "True")
    }
}

impl KindMonitor {
    /// Starts to follow definitions on the current tokio runtime.
    pub fn new(cache: &Cache) -> Self {
        let shared = Arc::new(Shared {
            followed: Mutex::new(HashMap::new()),
        });
        let (wake, woken) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let follower = Follower {
            cache: cache.clone(),
            shared: shared.clone(),
            woken,
            unlisted: HashSet::new(),
        };
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = follower.run() => {}
            }
        });
        Self {
            shared,
            wake,
            _stop: stop.drop_guard(),
        }
    }

    /// Follows one kind.
    pub fn kind(&self, kind: &Kind) -> watch::Receiver<KindState> {
        let mut followed = self.shared.followed();
        let states = followed
            .entry(kind.clone())
            .or_insert_with(|| watch::Sender::new(KindState::Unknown))
            .subscribe();
        drop(followed);
        // Fails only when the follower has ended, with its cluster.
        let _ = self.wake.send(kind.clone());
        states
    }
}

impl Shared {
    fn state(&self, kind: &Kind) -> Option<KindState> {
        self.followed().get(kind).map(|states| *states.borrow())
    }

    fn followed(&self) -> parking_lot::MutexGuard<'_, HashMap<Kind, watch::Sender<KindState>>> {
        self.followed.lock()
    }
}

struct Follower {
    cache: Cache,
    shared: Arc<Shared>,
    woken: mpsc::UnboundedReceiver<Kind>,
    /// Kinds that were missing from the last discovery.
    unlisted: HashSet<Kind>,
}

impl Follower {
    /// Follows definitions until the cluster leaves. If their informer is evicted, a new one is
    /// acquired: otherwise kinds would silently stop being followed.
    async fn run(mut self) {
        loop {
            let informer = self.cache.informer::<Definition>(&WatchSpec::all());
            if self.follow(&informer).await == StopReason::ClusterLeft {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn follow(&mut self, informer: &Informer<Definition>) -> StopReason {
        let definitions = informer.lister();
        let mut changes = informer.subscribe();
        let mut probe_at = Instant::now();
        loop {
            tokio::select! {
                change = changes.next() => match change {
                    Some(Change::Closed(reason)) => return reason,
                    None => return StopReason::Released,
                    Some(Change::Synced) => self.evaluate(&definitions, |_| true).await,
                    Some(change) => self.definition_changed(&change, &definitions).await,
                },
                Some(kind) = self.woken.recv() => {
                    self.evaluate(&definitions, |followed| *followed == kind).await;
                }
                () = sleep_until(probe_at) => {
                    let defined = definitions.list().unwrap_or_default();
                    let undefined = |kind: &Kind| !defined.iter().any(|known| known.defines(kind));
                    self.evaluate(&definitions, undefined).await;
                    probe_at = Instant::now() + PROBE_INTERVAL;
                }
            }
        }
    }

    async fn definition_changed(
        &mut self,
        change: &Change<Definition>,
        definitions: &Lister<Definition>,
    ) {
        let Some(definition) = change.object() else {
            return;
        };
        let concerned = |kind: &Kind| definition.defines(kind);
        // The state is published before informers are evicted: a controller that sees the eviction
        // first must not conclude that the kind is still served.
        if matches!(change, Change::Deleted { .. }) {
            // Discovery may lag by a moment; the deleted definition is the better evidence.
            for kind in self.followed(concerned) {
                self.publish(&kind, KindState::Absent);
            }
            self.evict(definition, |_| true);
        } else {
            self.evaluate(definitions, concerned).await;
            self.evict(definition, |kind| !definition.serves(kind));
        }
    }

    /// Evicts the informers of a definition's kinds that are gone, followed or not.
    fn evict(&self, definition: &Definition, is_gone: impl Fn(&Kind) -> bool) {
        self.cache.evict_matching(&StopReason::KindRemoved, |key| {
            definition.defines(&key.kind) && is_gone(&key.kind)
        });
    }

    /// The followed kinds among those wanted.
    fn followed(&self, wanted: impl Fn(&Kind) -> bool) -> Vec<Kind> {
        let mut followed = self.shared.followed();
        followed.retain(|_, states| states.receiver_count() > 0);
        followed
            .keys()
            .filter(|kind| wanted(kind))
            .cloned()
            .collect()
    }

    async fn evaluate(&mut self, definitions: &Lister<Definition>, wanted: impl Fn(&Kind) -> bool) {
        for kind in self.followed(wanted) {
            if let Some(state) = self.evaluate_one(&kind, definitions).await {
                self.publish(&kind, state);
            }
        }
    }

    /// `None` if the state cannot be determined now.
    async fn evaluate_one(
        &mut self,
        kind: &Kind,
        definitions: &Lister<Definition>,
    ) -> Option<KindState> {
        let definitions = definitions.list().ok()?;
        if let Some(definition) = definitions.iter().find(|known| known.defines(kind)) {
            let served = definition.serves(kind);
            return Some(if served {
                KindState::Present
            } else {
                KindState::Absent
            });
        }
        let state = self.probe(kind).await?;
        let is_present = self.shared.state(kind) == Some(KindState::Present);
        if state == KindState::Present {
            self.unlisted.remove(kind);
        } else if is_present && self.unlisted.insert(kind.clone()) {
            // One failed discovery of an aggregated API is not evidence that the kind is gone.
            return None;
        }
        Some(state)
    }

    async fn probe(&self, kind: &Kind) -> Option<KindState> {
        let root = if kind.group.is_empty() { "api" } else { "apis" };
        let request = Request::get(format!("/{root}/{}", kind.api_version()))
            .body(Vec::new())
            .ok()?;
        let answer = self.cache.client().request::<APIResourceList>(request);
        let Ok(answer) = timeout(PROBE_LIMIT, answer).await else {
            tracing::debug!(%kind, "discovery timed out");
            return None;
        };
        match answer {
            Ok(list) => {
                let mut resources = list.resources.iter();
                let served = resources.any(|resource| resource.name == kind.plural.as_str());
                Some(if served {
                    KindState::Present
                } else {
                    KindState::Absent
                })
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Some(KindState::Absent),
            Err(error) => {
                // A failing aggregated API, for example. Not evidence that the kind is gone.
                tracing::debug!(%kind, %error, "discovery failed");
                None
            }
        }
    }

    fn publish(&self, kind: &Kind, state: KindState) {
        let followed = self.shared.followed();
        let Some(states) = followed.get(kind) else {
            return;
        };
        let before = states.send_replace(state);
        drop(followed);
        if before == state {
            return;
        }
        tracing::info!(%kind, ?state, "kind availability changed");
        match state {
            KindState::Absent => {
                self.cache
                    .evict_matching(&StopReason::KindRemoved, |key| key.kind == *kind);
            }
            KindState::Present => self.cache.recheck(kind),
            KindState::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(established: &str, served: bool) -> Definition {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {"group": "example.com", "names": {"plural": "widgets"},
                "versions": [{"name": "v1", "served": served}, {"name": "v2", "served": true}]},
            "status": {"conditions": [
                {"type": "NamesAccepted", "status": "True"},
                {"type": "Established", "status": established}]},
        }))
        .unwrap()
    }

    #[test]
    fn invariant_35_a_version_that_is_not_served_is_absent_whatever_others_are() {
        let v1 = Kind::new("example.com", "v1", "widgets", "Widget");
        let v2 = Kind::new("example.com", "v2", "widgets", "Widget");
        assert!(definition("True", true).serves(&v1));
        assert!(!definition("True", false).serves(&v1));
        assert!(definition("True", false).serves(&v2));
        assert!(
            !definition("False", true).serves(&v1),
            "not established yet"
        );
        assert!(!definition("True", true).serves(&Kind::new(
            "example.com",
            "v3",
            "widgets",
            "Widget"
        )));
        assert!(!definition("True", true).defines(&Kind::new(
            "other.com",
            "v1",
            "widgets",
            "Widget"
        )));
    }
}
