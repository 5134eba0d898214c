//! The flags that `weft controller` and `weft routes` share, and their run.

use std::{fmt, net::SocketAddr, str::FromStr, time::Duration};

use anyhow::Context as _;
use ipnet::IpNet;
use tracing::{info, warn};
use weft_ipam::objects::NetworkObjects;
use weft_process::identity;
use weft_providers::netlink::NetlinkSettings;
use weft_proxy::config::{DurationError, GoDuration};
use weft_routes::{ConditionPolicy, DeleteCap, Timing};
use weft_routes_agent::{
    Egress, Mode, RoutesSettings,
    process::{RoutesProcess, Table, flush},
};
use weft_runtime::{
    FeatureGate, FeatureGates, Features, LeaderConfig, Stage, TlsFiles, UnknownGates,
};

use weft_program::{
    SharedArguments,
    config::{ConfigError, LogOnly},
    signals,
};

use crate::process::{
    controller::{ControllerProcess, Pages},
    dashboard::Dashboard,
};

mod addresses;
mod flags;
mod selection;

pub(crate) use flags::{ApiFlags, ControlFlags, KernelFlags, ManagerFlags};
pub(crate) use selection::Selection;

/// On: routes follow the nodes. Off: everything is looked at every period, as upstream does.
const WATCH_ROUTES: &str = "CloudControllerManagerWatchBasedRoutesReconciliation";

const GATES: [FeatureGate; 1] = [FeatureGate {
    name: WATCH_ROUTES,
    default: true,
    stage: Stage::Beta,
    locked: false,
}];

/// The names by which the two commands differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// The name in metrics.
    pub(crate) manager: &'static str,
    /// The lease, unless another is named.
    pub(crate) lease: &'static str,
}

pub(crate) fn wrong(flag: &str, reason: impl fmt::Display) -> ConfigError {
    ConfigError::Flag(format!("--{flag}: {reason}"))
}

/// Runs the controllers that were chosen until a signal comes.
pub(crate) fn run(
    flags: &ManagerFlags,
    selection: &Selection,
    who: Identity,
    dashboard: Option<Dashboard>,
    shared: SharedArguments,
) -> anyhow::Result<()> {
    let (features, warnings) = flags.features()?;
    let process = ControllerProcess {
        dashboard,
        ..flags.process(selection, who, features.clone())?
    };
    let log = shared.start_logging::<LogOnly>()?;
    for warning in warnings {
        warn!("{warning}");
    }
    flags.warn_about_what_has_no_effect(selection, &features);
    if process.routes.is_none() {
        info!("routes are not configured here");
    }
    if let Some(settings) = flags.cleanup()? {
        let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
        let flushed = runtime.block_on(flush(settings));
        let routes = flushed.map_err(anyhow::Error::from_boxed)?;
        Egress::new([]).remove()?;
        info!(routes, "deleted our routes");
        return Ok(());
    }
    signals::serve(log, |shutdown| process.run(shutdown))
}

impl ManagerFlags {
    /// The feature gates, and warnings about unknown ones.
    pub(crate) fn features(&self) -> Result<(Features, Vec<String>), ConfigError> {
        let mut gates = FeatureGates::new(&GATES);
        let mut warnings = Vec::new();
        for text in &self.feature_gates {
            let set = gates.set(text, UnknownGates::Warn);
            warnings.extend(
                set.map_err(|error| ConfigError::invalid("cannot set a feature gate", error))?,
            );
        }
        Ok((gates.freeze(), warnings))
    }

    fn warn_about_what_has_no_effect(&self, selection: &Selection, features: &Features) {
        match (
            self.addresses.allocate_node_cidrs,
            selection.includes("pod-cidr"),
        ) {
            (true, false) => warn!("--allocate-node-cidrs has no effect without pod-cidr"),
            (false, true) => warn!("pod-cidr does nothing without --allocate-node-cidrs"),
            _ => {}
        }
        let watching = features.is_enabled(WATCH_ROUTES);
        if watching && self.route_reconciliation_period.is_some() {
            warn!("--route-reconciliation-period has no effect: routes follow the nodes");
        }
        for name in self.ignored.given() {
            warn!("--{name} has no effect here");
        }
    }

    fn process(
        &self,
        selection: &Selection,
        who: Identity,
        features: Features,
    ) -> Result<ControllerProcess, ConfigError> {
        let routes = if selection.includes("route") && self.configure_cloud_routes {
            Some(self.routes_process(&features)?)
        } else {
            None
        };
        // Observing needs no leadership, and a kernel's table belongs to one node.
        let shared = !self.is_kernel() || selection.includes_others("route");
        let elects = self.leader_elect && !self.observe && shared;
        Ok(ControllerProcess {
            name: who.manager,
            kubeconfig: self.api.kubeconfig.clone(),
            master: self.api.master.clone(),
            election: elects.then(|| self.election(who)).transpose()?,
            pages: self.pages()?,
            control: self.control.control_socket.clone(),
            features,
            routes,
            allocator: self.addresses.allocator(selection)?,
            pod_cidrs: self.addresses.pod_cidrs(selection, &self.cluster_cidr)?,
            dashboard: None,
        })
    }

    fn election(&self, who: Identity) -> Result<LeaderConfig, ConfigError> {
        if self.leader_elect_resource_lock != "leases" {
            return Err(wrong(
                "leader-elect-resource-lock",
                "only leases can be locked",
            ));
        }
        let config = LeaderConfig {
            namespace: self.leader_elect_resource_namespace.clone(),
            name: self
                .leader_elect_resource_name
                .clone()
                .unwrap_or_else(|| who.lease.to_owned()),
            identity: identity(),
            lease_duration: self.leader_elect_lease_duration.0,
            renew_deadline: self.leader_elect_renew_deadline.0,
            retry_period: self.leader_elect_retry_period.0,
        };
        config
            .validate()
            .map_err(|error| wrong("leader-elect-lease-duration", error))?;
        Ok(config)
    }

    fn pages(&self) -> Result<Option<Pages>, ConfigError> {
        if self.secure_port == 0 {
            return Ok(None);
        }
        let tls = match (&self.tls_cert_file, &self.tls_private_key_file) {
            (Some(certificate), Some(key)) => Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
            }),
            (None, None) => None,
            _ => {
                let reason = "certificate and key are given together or not at all";
                return Err(wrong("tls-cert-file", reason));
            }
        };
        Ok(Some(Pages {
            address: SocketAddr::new(self.bind_address, self.secure_port),
            tls,
        }))
    }

    /// The route controller as the flags have it.
    pub(crate) fn routes_process(&self, features: &Features) -> Result<RoutesProcess, ConfigError> {
        let Some(provider) = self.cloud_provider.clone() else {
            return Err(wrong("cloud-provider", "say which provider has the routes"));
        };
        let mut settings = self.routes_settings(features)?;
        let table = if self.is_kernel() {
            // A node knows its own way to the others and not theirs.
            settings.conditions = ConditionPolicy::Off;
            Table::Kernel {
                settings: self.netlink(),
                egress: self.kernel.egress(&self.cluster_cidr),
                node: node_name(self.node_name.as_deref())?,
            }
        } else {
            let config = self.cloud_config.clone();
            Table::Cloud { provider, config }
        };
        Ok(RoutesProcess {
            table,
            settings,
            namespace: self.leader_elect_resource_namespace.clone(),
        })
    }

    /// `--cluster-name`.
    pub(super) fn cluster_name(&self) -> &str {
        &self.cluster_name
    }

    fn is_kernel(&self) -> bool {
        self.cloud_provider.as_deref() == Some("netlink")
    }

    /// The settings of the provider netlink.
    fn netlink(&self) -> NetlinkSettings {
        self.kernel.netlink(&self.cluster_cidr)
    }

    /// The table to remove our routes from, with --cleanup.
    fn cleanup(&self) -> Result<Option<NetlinkSettings>, ConfigError> {
        match (self.cleanup, self.is_kernel()) {
            (false, _) => Ok(None),
            (true, true) => Ok(Some(self.netlink())),
            (true, false) => Err(wrong("cleanup", "only with --cloud-provider=netlink")),
        }
    }

    fn routes_settings(&self, features: &Features) -> Result<RoutesSettings, ConfigError> {
        let ranges = &self.cluster_cidr;
        check_ranges(
            ranges,
            "say which range is managed, or --configure-cloud-routes=false",
        )?;
        let period = self.route_reconciliation_period;
        if period.is_some_and(|period| period.0.is_zero()) {
            let reason = "a pass without pause would be nothing but calls";
            return Err(wrong("route-reconciliation-period", reason));
        }
        if self.min_resync_period.0 < Duration::from_secs(1) {
            return Err(wrong("min-resync-period", "at least 1s"));
        }
        if self.route_blocks && !features.is_enabled(WATCH_ROUTES) {
            let reason = format!("only with the feature gate {WATCH_ROUTES}");
            return Err(wrong("route-blocks", reason));
        }
        let mode = if features.is_enabled(WATCH_ROUTES) {
            Mode::Watch
        } else {
            Mode::Poll(period.map_or(flags::POLLING_PERIOD, |period| period.0))
        };
        Ok(RoutesSettings {
            cluster_name: self.cluster_name.clone(),
            mode,
            timing: Timing {
                verify: (!self.route_verification_period.0.is_zero())
                    .then_some(self.route_verification_period.0),
                resync: self.min_resync_period.0,
                ..Timing::default()
            },
            conditions: self.node_conditions.into(),
            unmarked: self.unmarked_routes.into(),
            delete_cap: DeleteCap {
                percent: self.max_deleted_routes_percent.into(),
                ..DeleteCap::default()
            },
            force: self.force_deletes,
            observe: self.observe,
            check_addresses: self.check_node_addresses,
            blocks: self.route_blocks.then(|| NetworkObjects {
                group: self.addresses.nnc_group.clone(),
                ..NetworkObjects::default()
            }),
            ..RoutesSettings::new(ranges.iter().copied())
        })
    }
}

/// The name of this node: as given, or the host's.
pub(crate) fn node_name(given: Option<&str>) -> Result<String, ConfigError> {
    if let Some(name) = given {
        return Ok(name.to_owned());
    }
    weft_host::hostname::node_name().map_err(|error| wrong("node-name", error))
}

/// At least one range, and at most one of each family.
pub(crate) fn check_ranges(ranges: &[IpNet], missing: &str) -> Result<(), ConfigError> {
    let families = ranges.iter().filter(|range| range.addr().is_ipv4()).count();
    match (ranges.len(), families) {
        (1, _) | (2, 1) => Ok(()),
        (0, _) => Err(wrong("cluster-cidr", missing)),
        (2, _) => Err(wrong("cluster-cidr", "two ranges are one of each family")),
        _ => Err(wrong("cluster-cidr", "at most one range of each family")),
    }
}

/// A time as Go's programs write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GoTime(pub(crate) Duration);

impl FromStr for GoTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let duration: GoDuration = text
            .parse()
            .map_err(|error: DurationError| error.to_string())?;
        let duration = duration.to_std();
        duration
            .map(Self)
            .ok_or_else(|| "must not be negative".to_owned())
    }
}
