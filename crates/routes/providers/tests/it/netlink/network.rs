//! Three nodes on a link, a pod behind each, a provider in each.

use std::{net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;
use tokio::runtime::{Builder, Runtime};
use weft_host::sysctl::Settings;
use weft_model::IpFamily;
use weft_providers::{
    NetlinkProvider, Provider as _,
    netlink::{HostWarning, NetlinkSettings},
};
use weft_routes::{
    Cidr, CreateReason, DeleteReason, NextHop, ProviderError, ReplaceReason, Route, RouteAction,
    Step, Wanted,
};
use weft_testkit::lab::{Lab, Namespace, PodNetwork, node_addresses, pod_ranges};

/// Far beyond what anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Network {
    runtime: Arc<Runtime>,
    pub(crate) pods: PodNetwork,
    providers: Vec<NetlinkProvider>,
}

/// A node, and the provider on it.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    runtime: &'a Runtime,
    pub(crate) namespace: &'a Namespace,
    pub(crate) provider: &'a NetlinkProvider,
}

/// One of both families' values.
pub(crate) fn of<T>(both: [T; 2], family: IpFamily) -> T {
    let [v4, v6] = both;
    match family {
        IpFamily::V4 => v4,
        IpFamily::V6 => v6,
    }
}

/// The address of a node.
pub(crate) fn address(number: u8, family: IpFamily) -> IpAddr {
    of(node_addresses(number), family)
}

/// The range of a node.
pub(crate) fn range(number: u8, family: IpFamily) -> IpNet {
    of(pod_ranges(number), family)
}

impl Network {
    pub(crate) fn settings() -> NetlinkSettings {
        NetlinkSettings::new(["10.244.0.0/16", "fd00:10::/48"].map(|net| net.parse().unwrap()))
    }

    pub(crate) fn new(lab: &Lab) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = Arc::new(runtime.unwrap());
        let pods = lab.pod_network(3);
        let providers = (1..=3).map(|number| open(&runtime, pods.node(number), Self::settings()));
        Self {
            providers: providers.collect(),
            runtime,
            pods,
        }
    }

    pub(crate) fn node(&self, number: u8) -> Node<'_> {
        Node {
            runtime: &self.runtime,
            namespace: self.pods.node(number),
            provider: &self.providers[usize::from(number - 1)],
        }
    }

    /// Opens the provider of a node again, as after a restart with other settings.
    pub(crate) fn open(&mut self, number: u8, settings: NetlinkSettings) {
        let provider = open(&self.runtime, self.pods.node(number), settings);
        self.providers[usize::from(number - 1)] = provider;
    }

    /// Makes all routes there should be.
    pub(crate) fn route_everything(&self) {
        for number in 1..=3 {
            self.route_from(number);
        }
    }

    /// Makes all routes that a node should have.
    pub(crate) fn route_from(&self, number: u8) {
        for other in (1..=3).filter(|other| *other != number) {
            for family in IpFamily::ALL {
                let step = create(range(other, family), address(other, family));
                self.node(number).apply(&step).unwrap();
            }
        }
    }
}

fn open(runtime: &Runtime, node: &Namespace, settings: NetlinkSettings) -> NetlinkProvider {
    node.run(|| {
        let _context = runtime.enter();
        NetlinkProvider::open(settings).unwrap()
    })
}

impl Node<'_> {
    pub(crate) fn ip(self, command: &str) -> String {
        let words: Vec<&str> = command.split(' ').collect();
        self.namespace.program("ip", &words)
    }

    pub(crate) fn list(self) -> Vec<Route> {
        self.runtime.block_on(self.provider.list()).result.unwrap()
    }

    pub(crate) fn apply(self, step: &Step) -> Result<(), ProviderError> {
        self.runtime.block_on(self.provider.apply(step)).result
    }

    pub(crate) fn prepare(self) {
        self.runtime.block_on(self.provider.prepare()).unwrap();
    }

    pub(crate) fn flush(self) -> usize {
        self.runtime.block_on(self.provider.flush()).unwrap()
    }

    pub(crate) fn warnings(self) -> Vec<HostWarning> {
        let sysctls = Settings::default();
        let warnings = || self.runtime.block_on(self.provider.warnings(&sysctls));
        self.namespace.run(warnings).unwrap()
    }

    /// Waits until the provider reports a change.
    pub(crate) fn changes(self) {
        assert!(self.changes_within(PATIENCE), "no change was reported");
    }

    pub(crate) fn changes_within(self, limit: Duration) -> bool {
        let changed = async { tokio::time::timeout(limit, self.provider.changed()).await };
        self.runtime.block_on(changed).is_ok()
    }

    /// Waits until no more changes are reported.
    pub(crate) fn settles(self) {
        while self.changes_within(Duration::from_millis(600)) {}
    }
}

fn wanted(range: IpNet, gateway: IpAddr) -> Wanted {
    Wanted {
        destination: Cidr::from(range),
        node: "node".into(),
        uid: "uid".into(),
        next_hop: Some(NextHop::Address(gateway)),
        addresses: Vec::new(),
        provider_id: None,
    }
}

pub(crate) fn create(range: IpNet, gateway: IpAddr) -> Step {
    let new = wanted(range, gateway);
    let reason = CreateReason::Missing;
    Step {
        action: RouteAction::Create { new, reason },
    }
}

/// Leads the destination of a route somewhere else.
pub(crate) fn replace(old: &Route, gateway: IpAddr) -> Step {
    let new = wanted(old.destination.net().unwrap(), gateway);
    let (old, reason) = (old.clone(), ReplaceReason::Handover);
    Step {
        action: RouteAction::Replace { old, new, reason },
    }
}

pub(crate) fn delete(old: &Route) -> Step {
    let (old, reason) = (old.clone(), DeleteReason::NodeGone);
    Step {
        action: RouteAction::Delete { old, reason },
    }
}

/// The option of `ip` that selects a family.
pub(crate) fn option(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "-4",
        IpFamily::V6 => "-6",
    }
}
