//! Watches Services, EndpointSlices, ServiceCIDRs and this node, and keeps the models up to date.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use weft_model::{IpFamily, ObjectKey};
use weft_proxy::{
    Effect, Problem,
    config::{DetectLocal, Mode, NodeNetwork, ProxyConfig},
    objects::{HEADLESS_LABEL, OTHER_PROXY_LABEL},
    service_networks,
};
use weft_runtime::{Cache, Change, Object as _, SelectorError, Subscription, WatchSpec};

use crate::{
    health::{ClockReading, HealthMonitor, node_is_eligible},
    inbox::{Content, Inbox},
    metrics::ProxyMetrics,
    views::{EndpointSliceView, ServiceCidrView, ServiceView},
};
use weft_process::own_node::{self, NodeView};

/// Longest wait of the first sync for the node's addresses, and for its pod networks where they are
/// needed to recognise local traffic.
const NODE_TIMEOUT: Duration = Duration::from_secs(30);
const POD_NETWORK_TIMEOUT: Duration = Duration::from_mins(5);

/// A watch that ended for good: restarting is better than serving stale data.
#[derive(Debug, thiserror::Error)]
#[error("the watch of {0} ended")]
pub(crate) struct WatchEnded(&'static str);

fn still_open<K>(what: &'static str, change: Option<Change<K>>) -> Result<Change<K>, WatchEnded> {
    match change {
        None | Some(Change::Closed(_)) => Err(WatchEnded(what)),
        Some(change) => Ok(change),
    }
}

/// The watches of a proxy.
pub(crate) struct Watcher {
    pub(crate) services: Subscription<ServiceView>,
    pub(crate) slices: Subscription<EndpointSliceView>,
    pub(crate) node: Subscription<NodeView>,
    /// In the nftables mode only, as upstream. No sync waits for them: an API server may not serve
    /// them, or not to this account.
    service_cidrs: Option<Subscription<ServiceCidrView>>,
    known_service_cidrs: BTreeMap<ObjectKey, Arc<ServiceCidrView>>,
    pub(crate) inboxes: Vec<(IpFamily, Arc<Inbox>)>,
    pub(crate) config: Arc<ProxyConfig>,
    pub(crate) host: Arc<dyn HostAddresses>,
    pub(crate) metrics: ProxyMetrics,
    pub(crate) health: HealthMonitor,
    pub(crate) started: Timestamp,
    progress: Progress,
    /// The last reported problems of each object, so that each is reported once.
    problems: HashMap<(&'static str, ObjectKey), Vec<(Effect, String)>>,
    node_known: Option<KnownNode>,
}

/// The addresses of the host's interfaces.
pub trait HostAddresses: Send + Sync {
    /// All of them, of both families; `None` if they cannot be read now.
    fn addresses(&self) -> Option<Vec<IpAddr>>;
}

/// The initial lists that have arrived.
#[derive(Debug, Default)]
struct Progress {
    services: bool,
    slices: bool,
    node: bool,
}

#[derive(Debug, Default)]
struct KnownNode {
    addresses: Vec<IpAddr>,
    pod_networks: Vec<ipnet::IpNet>,
    host_addresses: Vec<IpAddr>,
}

/// The dependencies of a watcher.
pub(crate) struct WatcherParts {
    pub(crate) inboxes: Vec<(IpFamily, Arc<Inbox>)>,
    pub(crate) config: Arc<ProxyConfig>,
    pub(crate) host: Arc<dyn HostAddresses>,
    pub(crate) metrics: ProxyMetrics,
    pub(crate) health: HealthMonitor,
}

impl Watcher {
    /// Subscribes to the watches.
    pub(crate) fn new(
        cache: &Cache,
        node: &str,
        parts: WatcherParts,
    ) -> Result<Self, SelectorError> {
        let services = WatchSpec::all()
            .labels(&format!("!{OTHER_PROXY_LABEL}"))?
            .fields("spec.clusterIP!=None")?;
        let slices = WatchSpec::all().labels(&format!("!{HEADLESS_LABEL}"))?;
        let this_node = own_node::watch(node)?;
        Ok(Self {
            services: cache.informer(&services).subscribe(),
            slices: cache.informer(&slices).subscribe(),
            node: cache.informer(&this_node).subscribe(),
            service_cidrs: match parts.config.mode {
                Mode::Iptables => None,
                Mode::Nftables => Some(cache.informer(&WatchSpec::all()).subscribe()),
            },
            known_service_cidrs: BTreeMap::new(),
            inboxes: parts.inboxes,
            config: parts.config,
            host: parts.host,
            metrics: parts.metrics,
            health: parts.health,
            started: Timestamp::now(),
            progress: Progress::default(),
            problems: HashMap::new(),
            node_known: None,
        })
    }

    /// Processes watch events until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), WatchEnded> {
        let timeout = match self.config.detect_local {
            DetectLocal::NodeNetworks => POD_NETWORK_TIMEOUT,
            _ => NODE_TIMEOUT,
        };
        let give_up = Instant::now() + timeout;
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                change = self.services.next() => {
                    self.service(&still_open("Services", change)?);
                }
                change = self.slices.next() => {
                    self.slice(&still_open("EndpointSlices", change)?);
                }
                change = self.node.next() => self.node(still_open("the Node", change)?),
                change = next(&mut self.service_cidrs) => self.service_cidr(change),
                () = sleep_until(give_up), if !self.progress.node => {
                    tracing::warn!(
                        ?timeout,
                        "node addresses still unknown, starting without them"
                    );
                    self.progress.node = true;
                }
            }
            self.begin_when_complete();
        }
    }

    fn begin_when_complete(&mut self) {
        let progress = &self.progress;
        if progress.services && progress.slices && progress.node {
            for (_, inbox) in &self.inboxes {
                inbox.complete();
            }
        }
    }

    fn service(&mut self, change: &Change<ServiceView>) {
        let mut problems = Vec::new();
        match change {
            Change::Added { new, .. } | Change::Updated { new, .. } => {
                let key = new.key();
                self.update(|content| {
                    problems.extend(content.model.set_service(&key, &new.spec, &new.status));
                });
            }
            Change::Deleted { last, .. } => {
                let key = last.key();
                self.update(|content| content.model.remove_service(&key));
            }
            Change::Undecodable(object) => problems.push(Problem {
                kind: "Service",
                object: object.key.clone(),
                effect: Effect::LeftOut,
                what: object.error.clone(),
            }),
            Change::Synced => self.progress.services = true,
            Change::Closed(_) => {}
        }
        if let Some(key) = change.key() {
            for (_, inbox) in &self.inboxes {
                self.metrics.service_changed(inbox.lock().model.news());
            }
            self.report_problems("Service", key, problems);
        }
    }

    fn slice(&mut self, change: &Change<EndpointSliceView>) {
        let mut problems = Vec::new();
        let mut changed = false;
        match change {
            Change::Added { new, .. } | Change::Updated { new, .. } => {
                let key = new.key();
                // Changes from before this process started say nothing about its latency.
                let trigger = new.trigger_time().filter(|time| *time > self.started);
                let service = ObjectKey::new(new.namespace(), new.service());
                changed = self.update(|content| {
                    let before = content.model.revision();
                    problems.extend(content.model.set_slice(&key, new.view()));
                    if content.model.revision() != before
                        && let Some(time) = trigger
                    {
                        content
                            .triggers
                            .entry(service.clone())
                            .or_default()
                            .push(time);
                    }
                });
            }
            Change::Deleted { last, .. } => {
                let key = last.key();
                let service = ObjectKey::new(last.namespace(), last.service());
                changed = self.update(|content| {
                    content.model.remove_slice(&key);
                    content.triggers.remove(&service);
                });
            }
            Change::Undecodable(object) => problems.push(Problem {
                kind: "EndpointSlice",
                object: object.key.clone(),
                effect: Effect::LeftOut,
                what: object.error.clone(),
            }),
            Change::Synced => self.progress.slices = true,
            Change::Closed(_) => {}
        }
        if let Some(key) = change.key() {
            self.metrics.endpoints_changed(changed);
            self.report_problems("EndpointSlice", key, problems);
        }
    }

    /// Applies a change of Services or slices to every family, and wakes those that it changes.
    /// Returns whether there was one.
    fn update(&self, mut take: impl FnMut(&mut Content)) -> bool {
        let mut any = false;
        for (family, inbox) in &self.inboxes {
            let mut content = inbox.lock();
            let before = content.model.revision();
            take(&mut content);
            if before != content.model.revision() {
                any = true;
                self.queue(*family, inbox);
            }
        }
        any
    }

    /// Applies a change that may also be one of settings.
    fn update_settings(&self, mut take: impl FnMut(IpFamily, &mut Content)) {
        for (family, inbox) in &self.inboxes {
            let mut content = inbox.lock();
            let before = (content.model.revision(), content.settings.clone());
            take(*family, &mut content);
            if before.0 != content.model.revision() || before.1 != content.settings {
                self.queue(*family, inbox);
            }
        }
    }

    /// Wakes a family's loop: a sync counts as queued from now on, even if the loop is busy.
    fn queue(&self, family: IpFamily, inbox: &Inbox) {
        let now = ClockReading::now();
        self.health.with(|health| health.queued(family, now));
        self.metrics
            .sync_queued(family, now.wall.as_duration().as_secs_f64());
        inbox.wake();
    }

    fn node(&mut self, change: Change<NodeView>) {
        match change {
            Change::Added { new, .. } | Change::Updated { new, .. } => self.update_node(&new),
            Change::Deleted { .. } => self.health.with(|health| health.set_node_eligible(false)),
            Change::Undecodable(object) => {
                tracing::warn!(node = %object.key, error = %object.error, "cannot decode the Node");
            }
            Change::Synced if !self.progress.node => {
                tracing::info!("waiting for the Node's addresses before writing rules");
            }
            Change::Synced | Change::Closed(_) => {}
        }
    }

    fn update_node(&mut self, node: &NodeView) {
        let taints = node.spec.taints.iter().map(|taint| &*taint.key);
        let eligible = node_is_eligible(node.metadata.is_terminating(), taints);
        self.health
            .with(|health| health.set_node_eligible(eligible));
        // A Node that was created again has no addresses at first: the known ones stay.
        let known = self.node_known.get_or_insert_default();
        let (addresses, pod_networks) = (node.addresses(), node.pod_networks());
        if !addresses.is_empty() {
            known.addresses = addresses;
        }
        if !pod_networks.is_empty() {
            known.pod_networks = pod_networks.to_vec();
        }
        if let Some(addresses) = self.host.addresses() {
            known.host_addresses = addresses;
        }
        let enough = match self.config.detect_local {
            DetectLocal::NodeNetworks => !known.pod_networks.is_empty(),
            _ => !known.addresses.is_empty(),
        };
        self.progress.node |= enough;
        self.update_settings(|family, content| {
            let settings = self.settings(family);
            content.model.set_zone(node.zone());
            if content.settings != settings {
                tracing::info!(%family, "node addresses or pod networks changed");
                content.settings = settings;
            }
        });
    }

    fn service_cidr(&mut self, change: Option<Change<ServiceCidrView>>) {
        match change {
            // Services are served without them.
            None | Some(Change::Closed(_)) => {
                tracing::warn!("the watch of ServiceCIDRs ended, going on without them");
                self.service_cidrs = None;
                self.known_service_cidrs.clear();
            }
            Some(Change::Added { new, .. } | Change::Updated { new, .. }) => {
                self.known_service_cidrs.insert(new.key(), new);
            }
            Some(Change::Deleted { last, .. }) => {
                self.known_service_cidrs.remove(&last.key());
            }
            Some(Change::Undecodable(object)) => {
                tracing::warn!(object = %object.key, error = %object.error, "cannot decode a ServiceCIDR");
            }
            Some(Change::Synced) => {}
        }
        self.update_settings(|family, content| {
            content.settings.service_networks = self.service_networks(family);
        });
    }

    fn service_networks(&self, family: IpFamily) -> Vec<ipnet::IpNet> {
        let known = self.known_service_cidrs.values();
        let texts = known.flat_map(|object| object.spec.cidrs.iter());
        service_networks(texts.map(|text| &**text), family)
    }

    fn settings(&self, family: IpFamily) -> weft_proxy::Settings {
        let unknown = KnownNode::default();
        let known = self.node_known.as_ref().unwrap_or(&unknown);
        let node = NodeNetwork {
            node_ip: node_ip(&self.config, family, &known.addresses),
            pod_networks: known.pod_networks.clone(),
            addresses: known.host_addresses.clone(),
        };
        weft_proxy::Settings {
            service_networks: self.service_networks(family),
            ..self.config.settings(family, &node)
        }
    }

    fn report_problems(&mut self, kind: &'static str, object: ObjectKey, problems: Vec<Problem>) {
        let mut found: Vec<(Effect, String)> = problems
            .into_iter()
            .map(|problem| (problem.effect, problem.what))
            .collect();
        found.sort_unstable();
        found.dedup();
        if found.is_empty() {
            self.problems.remove(&(kind, object));
            return;
        }
        let known = self.problems.insert((kind, object.clone()), found.clone());
        if known.as_ref() != Some(&found) {
            for (effect, what) in found {
                match effect {
                    Effect::LeftOut => {
                        tracing::warn!(kind, %object, what, "left out of the rules");
                    }
                    Effect::Clamped => tracing::warn!(kind, %object, what, "value clamped"),
                }
                self.metrics.object_problem(kind);
            }
        }
    }
}

/// The next change of a watch that may not be there.
async fn next<K: weft_runtime::Object>(watch: &mut Option<Subscription<K>>) -> Option<Change<K>> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

/// The node's address of a family: as configured, else the Node's, else loopback.
pub(crate) fn node_ip(config: &ProxyConfig, family: IpFamily, addresses: &[IpAddr]) -> IpAddr {
    let configured = config.node_ip.into_iter();
    configured
        .chain(addresses.iter().copied())
        .find(|address| IpFamily::of(*address) == family)
        .unwrap_or(match family {
            IpFamily::V4 => std::net::Ipv4Addr::LOCALHOST.into(),
            IpFamily::V6 => std::net::Ipv6Addr::LOCALHOST.into(),
        })
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use serde_json::{Value, json};
    use weft_apiserver::ApiServer;
    use weft_proxy::{Model, NodeFacts, config::KubeProxyConfiguration};

    use super::*;
    use crate::health::Health;

    /// A host whose addresses cannot be read.
    struct UnreadableHost;

    impl HostAddresses for UnreadableHost {
        fn addresses(&self) -> Option<Vec<IpAddr>> {
            None
        }
    }

    fn watcher(configure: impl FnOnce(&mut KubeProxyConfiguration)) -> (Watcher, Registry) {
        let mut configuration = KubeProxyConfiguration::default();
        configure(&mut configuration);
        let config = Arc::new(configuration.check().unwrap());
        let mut registry = Registry::default();
        let metrics = ProxyMetrics::register(&mut registry, Mode::Iptables, Arc::new(()));
        let inboxes = IpFamily::ALL.map(|family| {
            let facts = NodeFacts {
                name: "here".into(),
                zone: None,
            };
            let network = NodeNetwork {
                node_ip: node_ip(&config, family, &[]),
                pod_networks: Vec::new(),
                addresses: Vec::new(),
            };
            let settings = config.settings(family, &network);
            let inbox = Inbox::new(Model::new(family, facts), settings);
            (family, Arc::new(inbox))
        });
        let parts = WatcherParts {
            inboxes: inboxes.into(),
            config,
            host: Arc::new(UnreadableHost),
            metrics,
            health: HealthMonitor::new(Health::new(Duration::from_secs(60))),
        };
        let cache = Cache::new(ApiServer::builder().build().client());
        (Watcher::new(&cache, "here", parts).unwrap(), registry)
    }

    fn node(addresses: &Value, networks: &Value) -> NodeView {
        serde_json::from_value(json!({"metadata": {"name": "here"},
            "spec": {"podCIDRs": networks}, "status": {"addresses": addresses}}))
        .unwrap()
    }

    #[tokio::test]
    async fn a_change_is_queued_and_timed_for_the_family_that_it_concerns() {
        let (mut watcher, registry) = watcher(|_| {});
        let slice = serde_json::from_value(json!({
            "metadata": {"name": "s", "namespace": "n",
                "labels": {"kubernetes.io/service-name": "web"},
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2999-01-01T00:00:00Z"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}],
            "ports": [{"name": "http", "port": 80}]}));
        let change = Change::Added {
            new: Arc::new(slice.unwrap()),
            initial: false,
        };
        watcher.slice(&change);
        let samples = |watcher: &Watcher, index: usize| {
            let content = watcher.inboxes[index].1.lock();
            content.triggers.values().flatten().count()
        };
        assert_eq!((samples(&watcher, 0), samples(&watcher, 1)), (1, 0));
        // The same again: nothing changed, so there is nothing to time.
        watcher.slice(&change);
        assert_eq!((samples(&watcher, 0), samples(&watcher, 1)), (1, 0));
        let page = weft_runtime::prometheus_text(&registry);
        let queued: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("kubeproxy_sync_proxy_rules_last_queued"))
            .collect();
        assert_eq!(queued.len(), 1, "{queued:?}");
        assert!(queued[0].contains("IPv4"), "{queued:?}");
    }

    #[tokio::test]
    async fn a_node_without_addresses_keeps_the_known_ones() {
        let (mut watcher, _) = watcher(|c| c.detect_local_mode = "NodeCIDR".to_owned());
        let settings = |watcher: &Watcher| watcher.inboxes[0].1.lock().settings.clone();
        let unknown = settings(&watcher);
        let address = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
        watcher.update_node(&node(&address, &json!(["10.0.0.0/24"])));
        let known = settings(&watcher);
        assert_ne!(known, unknown);
        assert!(known.local_detector.is_some());
        watcher.update_node(&node(&json!([]), &json!(null)));
        assert_eq!(settings(&watcher), known);
    }

    #[tokio::test]
    async fn service_cidrs_are_followed_in_the_nftables_mode_and_may_be_missing() {
        let networks = |watcher: &Watcher| {
            let inboxes = watcher.inboxes.iter();
            let settings = inboxes.map(|(_, inbox)| inbox.lock().settings.clone());
            let networks = settings.flat_map(|settings| settings.service_networks);
            networks.map(|n| n.to_string()).collect::<Vec<_>>()
        };
        let object = |name: &str, cidrs: Value| -> Arc<ServiceCidrView> {
            let object = json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs}});
            Arc::new(serde_json::from_value(object).unwrap())
        };
        let (iptables, _) = watcher(|_| {});
        assert!(iptables.service_cidrs.is_none());
        let (mut watcher, _) = watcher(|c| c.mode = "nftables".to_owned());
        let first = object("kubernetes", json!(["10.96.0.0/16", "fd00:96::/108"]));
        let second = object("more", json!(["10.97.0.0/16"]));
        for new in [&first, &second] {
            let new = new.clone();
            watcher.service_cidr(Some(Change::Added { new, initial: true }));
        }
        assert_eq!(networks(&watcher), ["10.96.0.0/15", "fd00:96::/108"]);
        // What is known of the node changes nothing in them.
        watcher.update_node(&node(&json!([]), &json!(null)));
        assert_eq!(networks(&watcher).len(), 2);
        watcher.service_cidr(Some(Change::Deleted {
            last: first,
            final_state_unknown: false,
        }));
        assert_eq!(networks(&watcher), ["10.97.0.0/16"]);
        watcher.service_cidr(None);
        assert_eq!(networks(&watcher), [""; 0]);
    }

    #[test]
    fn a_watch_that_ended_is_an_error() {
        assert!(still_open::<NodeView>("the Node", None).is_err());
        let synced: Change<NodeView> = Change::Synced;
        assert!(still_open("the Node", Some(synced)).is_ok());
    }
}
