//! Flags of `weft controller` and `weft routes`: those of a cloud-controller-manager, and ours.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::{ArgAction, Args, ValueEnum};
use ipnet::IpNet;
use weft_providers::netlink::{Gateways, NetlinkSettings};
use weft_routes::{ConditionPolicy, Unmarked};
use weft_routes_agent::Egress;

use super::GoTime;

/// The default of --route-reconciliation-period, as upstream's.
pub(super) const POLLING_PERIOD: Duration = Duration::from_secs(10);

/// The flags of both commands.
#[derive(Debug, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line, and they are independent"
)]
pub(crate) struct ManagerFlags {
    #[command(flatten)]
    pub(super) api: ApiFlags,
    /// Provider whose route table is managed: aws, hcloud, or netlink for the kernel of this machine,
    /// on each node
    #[arg(long, value_name = "NAME")]
    pub(super) cloud_provider: Option<String>,
    /// Configuration file of the provider
    #[arg(long, value_name = "FILE")]
    pub(super) cloud_config: Option<PathBuf>,
    /// Range of pod addresses in which routes are managed; two for dual stack
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub(super) cluster_cidr: Vec<IpNet>,
    /// Name of the cluster, where several share a provider's project
    #[arg(long, value_name = "NAME", default_value = "kubernetes")]
    pub(super) cluster_name: String,
    /// Manage routes; false disables the route controller
    #[arg(long, value_name = "BOOLEAN", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value = "true", default_missing_value = "true")]
    pub(super) configure_cloud_routes: bool,
    /// Also route the address blocks of nodes' NodeNetworkConfigs that lie within --cluster-cidr
    #[arg(long)]
    pub(super) route_blocks: bool,
    /// Period of reconciliation with the feature gate
    /// CloudControllerManagerWatchBasedRoutesReconciliation off [default: 10s]
    #[arg(long, value_name = "DURATION")]
    pub(super) route_reconciliation_period: Option<GoTime>,
    /// Longest time between two passes that list the route table
    #[arg(long, value_name = "DURATION", default_value = "12h")]
    pub(super) min_resync_period: GoTime,
    /// Period at which the route table is read to find drift; 0 disables it
    #[arg(long, value_name = "DURATION", default_value = "30m")]
    pub(super) route_verification_period: GoTime,
    /// Plan, log and count, but write nothing: no routes, conditions or events
    #[arg(long)]
    pub(super) observe: bool,
    /// Policy for the Node condition NetworkUnavailable
    #[arg(long, value_name = "POLICY", default_value = "own")]
    pub(super) node_conditions: NodeConditions,
    /// Policy for unmarked routes in --cluster-cidr that match no node
    #[arg(long, value_name = "POLICY", default_value = "leave")]
    pub(super) unmarked_routes: UnmarkedRoutes,
    /// Refuse a pass that would delete more than this percentage of our routes
    #[arg(long, value_name = "PERCENT", default_value = "50",
        value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(super) max_deleted_routes_percent: u8,
    /// Allow a pass to delete any number of unneeded routes
    #[arg(long)]
    pub(super) force_deletes: bool,
    /// Compare a node's address with that of its instance at the provider before a route is created
    #[arg(long, value_name = "BOOLEAN", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value = "true", default_missing_value = "true")]
    pub(super) check_node_addresses: bool,
    /// Feature gates, Name=true|false. Known:
    /// CloudControllerManagerWatchBasedRoutesReconciliation (default true)
    #[arg(long, value_name = "GATES")]
    pub(super) feature_gates: Vec<String>,
    /// Elect a leader; controllers run only in the process that holds the lease
    #[arg(long, value_name = "BOOLEAN", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value = "true", default_missing_value = "true")]
    pub(super) leader_elect: bool,
    /// Time without renewal after which another candidate may take the lease
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    pub(super) leader_elect_lease_duration: GoTime,
    /// Time without a successful renewal after which the leader stops leading
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub(super) leader_elect_renew_deadline: GoTime,
    /// Time between two attempts to take or renew the lease
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    pub(super) leader_elect_retry_period: GoTime,
    /// Kind of the lock; leases is the only one
    #[arg(long, value_name = "KIND", default_value = "leases", hide = true)]
    pub(super) leader_elect_resource_lock: String,
    /// Name of the lease
    #[arg(long, value_name = "NAME")]
    pub(super) leader_elect_resource_name: Option<String>,
    /// Namespace of the lease and of the ConfigMap that records our routes
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub(super) leader_elect_resource_namespace: String,
    /// Address of the HTTPS listener for health, metrics and diagnostics; on a non-loopback address
    /// diagnostics need a bearer token
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(super) bind_address: IpAddr,
    /// HTTPS port for health, metrics and diagnostics; 0 disables it
    #[arg(long, value_name = "PORT", default_value_t = 10258)]
    pub(super) secure_port: u16,
    /// TLS certificate; a self-signed one is generated if unset
    #[arg(long, value_name = "FILE")]
    pub(super) tls_cert_file: Option<PathBuf>,
    /// Private key for --tls-cert-file
    #[arg(long, value_name = "FILE")]
    pub(super) tls_private_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) control: ControlFlags,
    #[command(flatten)]
    pub(super) addresses: AddressFlags,
    /// Name of this machine's Node [default: the host name]
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "Options of the provider netlink"
    )]
    pub(super) node_name: Option<String>,
    #[command(flatten)]
    pub(super) kernel: KernelFlags,
    /// Delete all routes with our protocol number from the kernel, and exit
    #[arg(long, help_heading = "Options of the provider netlink")]
    pub(super) cleanup: bool,
    #[command(flatten)]
    pub(super) ignored: IgnoredFlags,
}

/// Flags of the controllers ipam and pod-cidr.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the controllers ipam and pod-cidr")]
pub(super) struct AddressFlags {
    /// API group of the NodeNetworkConfigs to serve; acn.azure.com is refused, Azure allocates for it
    #[arg(long, value_name = "GROUP", default_value = "ipam.weft.dev")]
    pub(super) nnc_group: String,
    /// Time after which the addresses of a deleted node are freed; its pods may still run until then
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(super) node_address_grace: GoTime,
    /// Allocate spec.podCIDRs of nodes from --cluster-cidr
    #[arg(long, value_name = "BOOLEAN", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value = "false", default_missing_value = "true")]
    pub(super) allocate_node_cidrs: bool,
    /// Prefix length of a node's pod CIDR in a single-stack cluster
    #[arg(long, value_name = "LENGTH")]
    pub(super) node_cidr_mask_size: Option<u8>,
    /// Prefix length of a node's IPv4 pod CIDR in a dual-stack cluster [default: 24]
    #[arg(long, value_name = "LENGTH")]
    pub(super) node_cidr_mask_size_ipv4: Option<u8>,
    /// Prefix length of a node's IPv6 pod CIDR in a dual-stack cluster [default: 64]
    #[arg(long, value_name = "LENGTH")]
    pub(super) node_cidr_mask_size_ipv6: Option<u8>,
}

/// Flags of --cloud-provider=netlink.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the provider netlink")]
pub(crate) struct KernelFlags {
    /// Protocol number that marks our routes in the kernel
    #[arg(
        long = "netlink-protocol",
        value_name = "NUMBER",
        default_value_t = 201
    )]
    protocol: u8,
    /// Metric of our routes in the kernel
    #[arg(long = "netlink-metric", value_name = "NUMBER", default_value_t = 201)]
    metric: u32,
    /// Kernel routing table of our routes
    #[arg(long = "netlink-table", value_name = "NUMBER", default_value_t = 254)]
    table: u32,
    /// Interface through which all nodes are reached, as on-link gateways
    #[arg(long = "netlink-on-link", value_name = "INTERFACE")]
    on_link: Option<String>,
    /// Install unreachable routes for --cluster-cidr, so that packets to unassigned pod ranges do not
    /// follow the default route
    #[arg(long = "netlink-unreachable")]
    unreachable: bool,
    /// Masquerade pod traffic that leaves --cluster-cidr
    #[arg(long)]
    masquerade_egress: bool,
}

impl KernelFlags {
    /// The component that installs the masquerade rules, if the flag is set.
    pub(crate) fn egress(&self, ranges: &[IpNet]) -> Option<Egress> {
        self.masquerade_egress
            .then(|| Egress::new(ranges.iter().copied()))
    }

    /// The settings of the provider netlink for these ranges.
    pub(crate) fn netlink(&self, ranges: &[IpNet]) -> NetlinkSettings {
        let on_link = self.on_link.clone();
        NetlinkSettings {
            protocol: self.protocol,
            table: self.table,
            metric: self.metric,
            gateways: on_link.map_or(Gateways::Direct, |interface| Gateways::OnLink { interface }),
            fallback: self.unreachable,
            ..NetlinkSettings::new(ranges.iter().copied())
        }
    }
}

/// The connection to the API server, of every command that runs agents or controllers.
#[derive(Debug, Args)]
pub(crate) struct ApiFlags {
    /// Path to a kubeconfig; defaults to in-cluster or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// URL of the API server; overrides the kubeconfig
    #[arg(long, value_name = "URL")]
    pub(crate) master: Option<String>,
}

/// Flags of the control socket.
#[derive(Debug, Args)]
pub(crate) struct ControlFlags {
    /// Unix socket for weft node status, start, stop and restart
    #[arg(long, value_name = "PATH")]
    pub(crate) control_socket: Option<PathBuf>,
}

impl ManagerFlags {
    /// Kubeconfig and URL of the API server.
    pub(crate) fn api_server(&self) -> (Option<PathBuf>, Option<&str>) {
        (self.api.kubeconfig.clone(), self.api.master.as_deref())
    }
}

/// Accepted so that a cloud-controller-manager's manifest starts.
#[derive(Debug, Args)]
pub(super) struct IgnoredFlags {
    #[arg(long, hide = true)]
    cidr_allocator_type: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_untagged_cloud: Option<String>,
    #[arg(long, hide = true)]
    concurrent_node_syncs: Option<String>,
    #[arg(long, hide = true)]
    concurrent_node_status_updates: Option<String>,
    #[arg(long, hide = true)]
    concurrent_service_syncs: Option<String>,
    #[arg(long, hide = true)]
    controller_start_interval: Option<String>,
    #[arg(long, hide = true)]
    kube_api_qps: Option<String>,
    #[arg(long, hide = true)]
    kube_api_burst: Option<String>,
    #[arg(long, hide = true)]
    kube_api_content_type: Option<String>,
    #[arg(long, hide = true)]
    node_monitor_period: Option<String>,
    #[arg(long, hide = true)]
    node_status_update_frequency: Option<String>,
    #[arg(long, hide = true)]
    node_sync_period: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    use_service_account_credentials: Option<String>,
    #[arg(long, hide = true)]
    authentication_kubeconfig: Option<String>,
    #[arg(long, hide = true)]
    authorization_kubeconfig: Option<String>,
    #[arg(short = 'v', hide = true)]
    verbosity: Option<String>,
}

impl IgnoredFlags {
    /// The names of the ignored flags on the command line.
    pub(super) fn given(&self) -> Vec<&'static str> {
        let all = [
            ("cidr-allocator-type", &self.cidr_allocator_type),
            ("allow-untagged-cloud", &self.allow_untagged_cloud),
            ("concurrent-node-syncs", &self.concurrent_node_syncs),
            (
                "concurrent-node-status-updates",
                &self.concurrent_node_status_updates,
            ),
            ("concurrent-service-syncs", &self.concurrent_service_syncs),
            ("controller-start-interval", &self.controller_start_interval),
            ("kube-api-qps", &self.kube_api_qps),
            ("kube-api-burst", &self.kube_api_burst),
            ("kube-api-content-type", &self.kube_api_content_type),
            ("node-monitor-period", &self.node_monitor_period),
            (
                "node-status-update-frequency",
                &self.node_status_update_frequency,
            ),
            ("node-sync-period", &self.node_sync_period),
            (
                "use-service-account-credentials",
                &self.use_service_account_credentials,
            ),
            ("authentication-kubeconfig", &self.authentication_kubeconfig),
            ("authorization-kubeconfig", &self.authorization_kubeconfig),
            ("v", &self.verbosity),
        ];
        let given = all.into_iter().filter(|(_, value)| value.is_some());
        given.map(|(name, _)| name).collect()
    }
}

/// Policy for the condition `NetworkUnavailable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum NodeConditions {
    /// always write it
    Own,
    /// write it unless a CNI's reason is set
    RespectCni,
    /// never write it
    Off,
}

impl From<NodeConditions> for ConditionPolicy {
    fn from(policy: NodeConditions) -> Self {
        match policy {
            NodeConditions::Own => Self::Own,
            NodeConditions::RespectCni => Self::RespectCni,
            NodeConditions::Off => Self::Off,
        }
    }
}

/// Policy for unmarked routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum UnmarkedRoutes {
    /// report it: another program may own it
    Leave,
    /// delete it, as upstream does: the range belongs to this cluster alone
    Claim,
}

impl From<UnmarkedRoutes> for Unmarked {
    fn from(unmarked: UnmarkedRoutes) -> Self {
        match unmarked {
            UnmarkedRoutes::Leave => Self::Leave,
            UnmarkedRoutes::Claim => Self::Claim,
        }
    }
}
