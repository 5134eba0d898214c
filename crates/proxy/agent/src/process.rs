//! A whole proxy process: prepares the host, builds the parts, opens the servers.

use std::{path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use weft_host::{
    conntrack_limits::ConntrackLimits,
    hostname,
    iptables::VariantChoice,
    process::return_freed_memory,
    processors,
    sysctl::{self, Setting, SettingError},
};
use weft_iptables::{HostKernel, OwnWrites, RestoreScope};
use weft_model::{IpFamily, SharedStr, error_text};
use weft_nftables::{Counters, TableOptions};
use weft_proxy::config::{Mode, ProxyConfig};
use weft_runtime::{
    Access, ClientMetrics, Cluster, EventLevel, EventNote, EventRecorder, Failure, Manager, Unit,
    connect,
};

use weft_process::{client, run_until, serve_control_socket};

use crate::{
    agent::{FamilyKernel, PrepareRun, Proxy, ProxyParts, RunSetup},
    config_file::{self, ConfigFile},
    first_sync::{FirstSync, after_packets_in_flight},
    health::{Health, HealthMonitor},
    host::{self, HostCounters, HostDevices, HostFlows},
    listen::{BindError, BindPolicy, RetryingServer},
    metrics::{
        ProxyMetrics,
        connections::{self, HostConnections},
    },
    nftables,
    pages::{self, Diagnostics, HealthServer},
};

/// Configuration of a proxy and of the pages that show it.
#[derive(Clone, Debug)]
pub struct ProxySetup {
    /// The validated configuration.
    pub config: Arc<ProxyConfig>,
    /// The same in kube-proxy's format, for `/configz`.
    pub configuration: Value,
    /// All flags with their values, for `/flagz`.
    pub flags: Vec<(String, String)>,
    /// The iptables variant to use.
    pub variant: VariantChoice,
    /// The part of the rules that a sync of the iptables mode writes.
    pub restore: RestoreScope,
    /// Options of the table of the nftables mode.
    pub table: TableOptions,
}

/// The arguments of a proxy process.
#[derive(Debug)]
pub struct ProxyProcess {
    /// Configuration of the proxy.
    pub setup: ProxySetup,
    /// URL of an API server that overrides the kubeconfig's.
    pub master: Option<String>,
    /// Ends the process when it changes.
    pub file: Option<ConfigFile>,
    /// Path of the control socket.
    pub control: Option<PathBuf>,
    /// This program's version.
    pub version: String,
}

impl ProxyProcess {
    /// Runs the proxy until `stop` or until a fatal error.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Failure> {
        let mut registry = Registry::default();
        let client_metrics = ClientMetrics::register(&mut registry);
        let metrics = ProxyMetrics::register(
            &mut registry,
            self.setup.config.mode,
            Arc::new(HostCounters::default()),
        );
        self.setup.register_optional(&metrics, &mut registry);
        let config = self.setup.config.clone();
        let kubeconfig = config.client.kubeconfig.as_ref().map(PathBuf::from);
        let client_config = client::config(kubeconfig, self.master.as_deref()).await?;
        let client = connect(&client_config, Some(&client_metrics))?;
        let cluster = Cluster::new("local", client.clone());
        let manager = Manager::builder("proxy", cluster.clone())
            .registry(registry)
            .build()?;
        let node = node_name(&config)?;
        let servers = Servers::new(&manager, &config, &node, &cluster);
        let setup = self.setup.clone();
        let prepare: PrepareRun = Arc::new(move || setup.prepare_run(None));
        let (proxy, health) = servers.proxy(&cluster, metrics, prepare)?;
        let diagnostics = pages::diagnostics(self.setup.diagnostics(health, self.version));
        servers.open_metrics(diagnostics, Access::Review(client))?;
        serve_control_socket(&manager, self.control.as_deref())?;
        let (unit, failed) = Unit::once(proxy, &cluster);
        manager.add(unit)?;
        let changed = async {
            match self.file {
                Some(file) => file.changed(config_file::INTERVAL).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = run_until(&manager, failed, stop) => ended,
            // A running sync is cut off: the next process starts with a full one.
            changed = changed => Err(changed.into()),
        }
    }
}

impl ProxySetup {
    /// Registers the metrics of options that are on: connections, NodePorts on localhost.
    pub fn register_optional(&self, metrics: &ProxyMetrics, registry: &mut Registry) {
        if self.config.loopback_listeners {
            metrics.register_localhost(registry);
        }
        if self.config.mode == Mode::Nftables && self.table.counters == Counters::On {
            connections::register(registry, Arc::new(HostConnections));
        }
    }

    /// Prepares the host and finds its programs, for one run.
    pub fn prepare_run(&self, file: Option<ConfigFile>) -> Result<RunSetup, Failure> {
        // The first sync handles the text of all rules; later ones write a few lines.
        return_freed_memory();
        prepare_host(&self.config)?;
        let kernels = match self.config.mode {
            Mode::Iptables => kernels(&self.config, self.variant, self.restore)?,
            Mode::Nftables => nftables::kernels(&self.config, self.variant, self.table)?,
        };
        Ok(RunSetup {
            config: self.config.clone(),
            kernels,
            file,
        })
    }

    /// The data of the diagnostic pages.
    pub fn diagnostics(self, health: HealthMonitor, version: String) -> Diagnostics {
        Diagnostics {
            health,
            configuration: self.configuration,
            flags: self.flags,
            version,
            started: Timestamp::now(),
        }
    }
}

/// Does what needs full privileges, once per boot of a host: afterwards `CAP_NET_ADMIN` is enough,
/// and `CAP_NET_RAW` for legacy iptables.
///
/// Modules come first. Legacy iptables loads its own by `modprobe`, and the conntrack sysctls exist
/// only with its module.
pub fn initialize(config: &ProxyConfig, variant: VariantChoice) -> Result<(), Failure> {
    match config.mode {
        Mode::Iptables => drop(host::families(required_family(config), variant)?),
        Mode::Nftables => drop(nftables::families(
            required_family(config),
            TableOptions::default(),
        )?),
    }
    if let Err(error) = host::load_conntrack() {
        tracing::warn!(%error, "cannot read conntrack entries");
    }
    Ok(prepare_host(config)?)
}

/// Sets oom_score_adj and sysctls. A sysctl on a read-only file system is left as it is.
fn prepare_host(config: &ProxyConfig) -> Result<(), SettingError> {
    let settings = sysctl::Settings::default();
    let adjusted = std::fs::write("/proc/self/oom_score_adj", config.oom_score_adj.to_string());
    if let Err(error) = adjusted {
        tracing::warn!(%error, "cannot set oom_score_adj");
    }
    limits(config).apply(&settings, processors::online())?;
    if !config.serves_localhost() {
        return Ok(());
    }
    let setting = Setting::Sysctl("net/ipv4/conf/all/route_localnet");
    if settings.read_number(setting).is_ok_and(|value| value == 1) {
        return Ok(());
    }
    match settings.write(setting, "1") {
        Err(error) if error.is_read_only() => {
            tracing::warn!(%error, "cannot set route_localnet, NodePorts will not answer on 127.0.0.1");
            Ok(())
        }
        other => other,
    }
}

fn limits(config: &ProxyConfig) -> ConntrackLimits {
    let wanted = &config.conntrack;
    let or_leave = |timeout: Option<Duration>| timeout.unwrap_or_default();
    ConntrackLimits {
        max_per_core: wanted.max_per_core.map_or(0, u64::from),
        min: wanted.min.into(),
        tcp_established_timeout: or_leave(wanted.tcp_established),
        tcp_close_wait_timeout: or_leave(wanted.tcp_close_wait),
        udp_timeout: or_leave(wanted.udp),
        udp_stream_timeout: or_leave(wanted.udp_stream),
        tcp_be_liberal: wanted.tcp_be_liberal,
    }
}

/// Removes the rules of a service proxy in every available family, and with `auto` in both
/// variants. Continues after a failure.
pub fn cleanup(variant: VariantChoice) -> Result<(), Failure> {
    let mut outcome = remove_iptables_rules(variant, &IpFamily::ALL);
    for family in IpFamily::ALL {
        for table in [nftables::TABLE, KUBE_PROXY_TABLE] {
            if let Err(error) = remove_table(family, table) {
                outcome = Err(error.into());
            }
        }
    }
    outcome
}

/// Removes the nftables table of weft, and nothing else.
pub fn remove_own_table(family: IpFamily) -> std::io::Result<()> {
    remove_table(family, nftables::TABLE)
}

/// Removes the iptables rules of a service proxy.
pub(crate) fn remove_iptables_rules(
    variant: VariantChoice,
    wanted: &[IpFamily],
) -> Result<(), Failure> {
    let variants = match variant {
        VariantChoice::Auto => vec![VariantChoice::Nft, VariantChoice::Legacy],
        chosen => vec![chosen],
    };
    let mut outcome = Ok(());
    for variant in variants {
        let Ok(families) = host::families(None, variant) else {
            continue;
        };
        let families = families.into_iter();
        for (family, programs) in families.filter(|(family, _)| wanted.contains(family)) {
            let mut kernel = HostKernel::new(programs, OwnWrites::default());
            match weft_iptables::cleanup(&mut kernel, family) {
                Ok(plan) => {
                    tracing::info!(%family, ?variant, clean_already = plan.is_empty(), "cleaned up");
                }
                Err(error) => {
                    tracing::error!(%family, ?variant, error = error_text(&error), "cannot clean up");
                    outcome = Err(error.into());
                }
            }
        }
    }
    outcome
}

/// The table of kube-proxy's nftables mode.
pub const KUBE_PROXY_TABLE: &str = "kube-proxy";

/// Removes an nftables table of a service proxy, which would go on translating next to us.
pub(crate) fn remove_table(family: IpFamily, table: &str) -> std::io::Result<()> {
    let removed = match table {
        nftables::TABLE => weft_nftables::cleanup(family),
        other => weft_host::nftables::delete_table(family, other),
    };
    match removed {
        Ok(true) => {
            tracing::info!(%family, table, "nftables table removed");
            Ok(())
        }
        Ok(false) => Ok(()),
        Err(error) => {
            tracing::warn!(%family, table, %error, "cannot remove nftables table");
            Err(error)
        }
    }
}

/// The family that the configured node address requires.
pub fn required_family(config: &ProxyConfig) -> Option<IpFamily> {
    config.node_ip.map(IpFamily::of)
}

fn kernels(
    config: &ProxyConfig,
    variant: VariantChoice,
    restore: RestoreScope,
) -> Result<Vec<FamilyKernel>, host::HostError> {
    let own_writes = OwnWrites::default();
    let families = host::families(required_family(config), variant)?;
    let kernel = |(family, programs)| {
        let backend = host::backend(programs, own_writes.clone(), restore);
        // Failures are logged, and leave what was there before.
        let remove_others = after_packets_in_flight(move || {
            for table in [nftables::TABLE, KUBE_PROXY_TABLE] {
                let _ = remove_table(family, table);
            }
        });
        FamilyKernel {
            family,
            backend: Box::new(FirstSync::new(backend, remove_others)),
            flows: Box::new(HostFlows),
            disturbed: Arc::default(),
        }
    };
    Ok(families.into_iter().map(kernel).collect())
}

/// The node's name: as configured, or the host's in lower case as Kubernetes has it.
pub fn node_name(config: &ProxyConfig) -> std::io::Result<SharedStr> {
    if let Some(name) = &config.hostname_override {
        return Ok(name.as_str().into());
    }
    Ok(hostname::node_name()?.as_str().into())
}

/// The HTTP servers of a proxy.
pub struct Servers<'a> {
    manager: &'a Manager,
    config: &'a ProxyConfig,
    events: EventRecorder,
    node: &'a SharedStr,
}

impl<'a> Servers<'a> {
    /// The servers of one proxy, not yet bound.
    pub fn new(
        manager: &'a Manager,
        config: &'a ProxyConfig,
        node: &'a SharedStr,
        cluster: &Cluster,
    ) -> Self {
        Self {
            manager,
            config,
            events: EventRecorder::new(cluster.client().clone(), "kube-proxy", node),
            node,
        }
    }

    /// Opens the health pages. Returns the proxy that they report on, for the caller to run.
    pub fn proxy(
        &self,
        cluster: &Cluster,
        metrics: ProxyMetrics,
        prepare: PrepareRun,
    ) -> Result<(Proxy, HealthMonitor), Failure> {
        let health = HealthMonitor::new(Health::new(self.config.health_timeout()));
        self.open_health(&health, &metrics)?;
        self.events
            .record_about(node_reference(self.node), starting());
        if self.config.is_mode_default {
            let note = default_mode(self.config.mode);
            tracing::warn!(mode = self.config.mode.as_str(), "{}", note.note);
            self.events.record_about(node_reference(self.node), note);
        }
        let proxy = Proxy::new(ProxyParts {
            cluster: cluster.clone(),
            node: self.node.clone(),
            prepare,
            addresses: Arc::new(HostDevices),
            metrics,
            health: health.clone(),
            events: self.events.clone(),
        });
        Ok((proxy, health))
    }

    fn open_health(&self, health: &HealthMonitor, metrics: &ProxyMetrics) -> Result<(), Failure> {
        let Some(address) = self.config.healthz else {
            return Ok(());
        };
        let router = pages::health(health.clone(), metrics.clone());
        let open = move || HealthServer::bind(address, router.clone());
        let server = RetryingServer::new("health-server", address, self.policy(), open)
            .report(self.report("FailedToStartProxierHealthcheck"));
        self.manager.add_component(server)?;
        Ok(())
    }

    fn open_metrics(&self, routes: axum::Router, beyond: Access) -> Result<(), Failure> {
        let Some(address) = self.config.metrics else {
            return Ok(());
        };
        let manager = self.manager.clone();
        let open = move || pages::bind_metrics(&manager, address, routes.clone(), beyond.clone());
        let server = RetryingServer::new("metrics-server", address, self.policy(), open)
            .report(self.report("FailedToStartMetricServer"));
        self.manager.add_component(server)?;
        Ok(())
    }

    fn policy(&self) -> BindPolicy {
        if self.config.bind_hard_fail {
            BindPolicy::HardFail
        } else {
            BindPolicy::Retry
        }
    }

    fn report(&self, reason: &'static str) -> impl Fn(&BindError) + Send + Sync + 'static {
        let (events, node) = (self.events.clone(), self.node.clone());
        move |error| {
            let note = EventNote {
                level: EventLevel::Warning,
                reason,
                action: "StartKubeProxy",
                note: format!("{error}: {}", error.source),
            };
            events.record_about(node_reference(&node), note);
        }
    }
}

fn starting() -> EventNote {
    EventNote {
        level: EventLevel::Normal,
        reason: "Starting",
        action: "StartKubeProxy",
        note: String::new(),
    }
}

/// kube-proxy's event of 1.37 about a configuration that will mean another mode in 1.40.
fn default_mode(mode: Mode) -> EventNote {
    let mode = mode.as_str();
    EventNote {
        level: EventLevel::Warning,
        reason: "KubeProxyDefaultMode",
        action: "StartKubeProxy",
        note: format!(
            "no proxy mode is configured, using {mode}; the default becomes nftables in Kubernetes \
             1.40: to keep {mode}, set --proxy-mode={mode}, or mode: {mode} in the configuration file"
        ),
    }
}

/// A reference with the node's name as UID, as in kube-proxy, for programs that search by it.
fn node_reference(node: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    }
}
