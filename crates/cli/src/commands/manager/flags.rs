use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::{ArgAction, Args, ValueEnum};
use ipnet::IpNet;
use weft_providers::netlink::{Gateways, NetlinkSettings};
use weft_routes::{ConditionPolicy, Unmarked};
use weft_routes_agent::Egress;

use super::GoTime;

/// Upstream's period with the gate off.
pub(super) const POLLING_PERIOD: Duration = Duration::from_secs(10);

/// A cloud-controller-manager's flags as far as they mean something here, and ours.
#[derive(Debug, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line, and they are independent"
)]
pub(crate) struct ManagerFlags {
    /// Reach the API server by this kubeconfig; as this machine is set up without it
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Use this API server, whatever the kubeconfig says
    #[arg(long, value_name = "URL")]
    pub(super) master: Option<String>,
    /// Change routes at this provider: aws, hcloud, memory, or netlink for this machine's kernel,
    /// each node for itself
    #[arg(long, value_name = "NAME")]
    pub(super) cloud_provider: Option<String>,
    /// Read the provider's settings from this file
    #[arg(long, value_name = "FILE")]
    pub(super) cloud_config: Option<PathBuf>,
    /// Manage routes in this range; two for both families
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub(super) cluster_cidr: Vec<IpNet>,
    /// The cluster's name, where several share a provider's project
    #[arg(long, value_name = "NAME", default_value = "kubernetes")]
    pub(super) cluster_name: String,
    /// Manage routes at all
    #[arg(long, value_name = "BOOLEAN", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value = "true", default_missing_value = "true")]
    pub(super) configure_cloud_routes: bool,
    /// Route the blocks that nodes hold by their NodeNetworkConfigs as well, within --cluster-cidr
    #[arg(long)]
    pub(super) route_blocks: bool,
    /// Look at everything every so often, with the feature gate off; 10s unless given
    #[arg(long, value_name = "DURATION")]
    pub(super) route_reconciliation_period: Option<GoTime>,
    /// Run a pass with a fresh list at least every so often
    #[arg(long, value_name = "DURATION", default_value = "12h")]
    pub(super) min_resync_period: GoTime,
    /// Read the table every so often to see whether it is as believed; 0 for never
    #[arg(long, value_name = "DURATION", default_value = "30m")]
    pub(super) route_verification_period: GoTime,
    /// Plan, log and count, and write nothing: neither routes nor conditions nor events
    #[arg(long)]
    pub(super) observe: bool,
    /// Who writes the condition NetworkUnavailable of nodes
    #[arg(long, value_name = "WHO", default_value = "own")]
    pub(super) node_conditions: NodeConditions,
    /// What becomes of a route in the range that no node wants and nobody marked
    #[arg(long, value_name = "WHAT", default_value = "leave")]
    pub(super) unmarked_routes: UnmarkedRoutes,
    /// Believe a pass that deletes at most this share of our routes
    #[arg(long, value_name = "PERCENT", default_value = "50",
        value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(super) max_deleted_routes_percent: u8,
    /// Delete however many routes no node wants
    #[arg(long)]
    pub(super) force_deletes: bool,
    /// Compare a node's address with that of its machine at the provider
    #[arg(long, value_name = "BOOLEAN", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value = "true", default_missing_value = "true")]
    pub(super) check_node_addresses: bool,
    /// Switch features, as Name=true; known is
    /// CloudControllerManagerWatchBasedRoutesReconciliation, which is on
    #[arg(long, value_name = "GATES")]
    pub(super) feature_gates: Vec<String>,
    /// Run only while this process holds the lease
    #[arg(long, value_name = "BOOLEAN", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value = "true", default_missing_value = "true")]
    pub(super) leader_elect: bool,
    /// Take the lease from a leader that was not heard of for so long
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    pub(super) leader_elect_lease_duration: GoTime,
    /// Give up leading when the lease cannot be renewed for so long
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    pub(super) leader_elect_renew_deadline: GoTime,
    /// Try to take or renew the lease every so often
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    pub(super) leader_elect_retry_period: GoTime,
    /// What is locked; leases and nothing else
    #[arg(long, value_name = "KIND", default_value = "leases", hide = true)]
    pub(super) leader_elect_resource_lock: String,
    /// Contend for the lease of this name
    #[arg(long, value_name = "NAME")]
    pub(super) leader_elect_resource_name: Option<String>,
    /// In this namespace, where the record of our routes is kept as well
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub(super) leader_elect_resource_namespace: String,
    /// Serve health, metrics and diagnostics on this address; beyond loopback diagnostics need a
    /// token
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(super) bind_address: IpAddr,
    /// And this port, by HTTPS; 0 serves nothing
    #[arg(long, value_name = "PORT", default_value_t = 10258)]
    pub(super) secure_port: u16,
    /// Serve with this certificate; one is made up without it
    #[arg(long, value_name = "FILE")]
    pub(super) tls_cert_file: Option<PathBuf>,
    /// And this key
    #[arg(long, value_name = "FILE")]
    pub(super) tls_private_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) control: ControlFlags,
    #[command(flatten)]
    pub(super) addresses: AddressFlags,
    /// The node that this machine is; its host name unless given
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "Options of the provider netlink"
    )]
    pub(super) node_name: Option<String>,
    #[command(flatten)]
    pub(super) kernel: KernelFlags,
    /// Delete every route of ours from the kernel and exit
    #[arg(long, help_heading = "Options of the provider netlink")]
    pub(super) cleanup: bool,
    #[command(flatten)]
    pub(super) ignored: IgnoredFlags,
}

/// How nodes get addresses, with --controllers=ipam and pod-cidr.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the controllers ipam and pod-cidr")]
pub(super) struct AddressFlags {
    /// Serve NodeNetworkConfigs of this group; acn.azure.com has an allocator of its own
    #[arg(long, value_name = "GROUP", default_value = "ipam.weft.dev")]
    pub(super) nnc_group: String,
    /// Take the addresses of a node that was deleted only after so long: its pods may still run
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub(super) node_address_grace: GoTime,
    /// Give nodes their pod CIDRs out of --cluster-cidr
    #[arg(long, value_name = "BOOLEAN", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value = "false", default_missing_value = "true")]
    pub(super) allocate_node_cidrs: bool,
    /// The prefix length of a node's pod CIDR, in a cluster of one family
    #[arg(long, value_name = "LENGTH")]
    pub(super) node_cidr_mask_size: Option<u8>,
    /// The same of IPv4; 24 unless given
    #[arg(long, value_name = "LENGTH")]
    pub(super) node_cidr_mask_size_ipv4: Option<u8>,
    /// The same of IPv6; 64 unless given
    #[arg(long, value_name = "LENGTH")]
    pub(super) node_cidr_mask_size_ipv6: Option<u8>,
}

/// How this machine's kernel is used, with --cloud-provider=netlink.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the provider netlink")]
pub(crate) struct KernelFlags {
    /// Mark our routes with this protocol number
    #[arg(
        long = "netlink-protocol",
        value_name = "NUMBER",
        default_value_t = 201
    )]
    protocol: u8,
    /// Give our routes this metric
    #[arg(long = "netlink-metric", value_name = "NUMBER", default_value_t = 201)]
    metric: u32,
    /// Write into this table
    #[arg(long = "netlink-table", value_name = "NUMBER", default_value_t = 254)]
    table: u32,
    /// Reach all nodes through this interface, whatever its addresses say
    #[arg(long = "netlink-on-link", value_name = "INTERFACE")]
    on_link: Option<String>,
    /// Refuse packets to pods of no node here, instead of sending them the default way
    #[arg(long = "netlink-unreachable")]
    unreachable: bool,
    /// Let what pods send beyond --cluster-cidr carry this node's address
    #[arg(long)]
    masquerade_egress: bool,
}

impl KernelFlags {
    /// What keeps the rules by which pods leave the cluster.
    pub(crate) fn egress(&self, ranges: &[IpNet]) -> Option<Egress> {
        self.masquerade_egress
            .then(|| Egress::new(ranges.iter().copied()))
    }

    /// Which kernel routes are ours.
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

/// Orders to a process that runs.
#[derive(Debug, Args)]
pub(crate) struct ControlFlags {
    /// Take orders on this Unix socket: weft node status, stop, start and restart use it
    #[arg(long, value_name = "PATH")]
    pub(crate) control_socket: Option<PathBuf>,
}

impl ManagerFlags {
    /// Kubeconfig and URL of the API server.
    pub(crate) fn api_server(&self) -> (Option<PathBuf>, Option<&str>) {
        (self.kubeconfig.clone(), self.master.as_deref())
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
    /// The names of those that were given.
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

/// Who writes `NetworkUnavailable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum NodeConditions {
    /// We do, over whatever is there
    Own,
    /// We do, unless somebody else's reason is there
    RespectCni,
    /// Nobody here
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

/// What becomes of unmarked routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum UnmarkedRoutes {
    /// It may be somebody else's: report it
    Leave,
    /// The range is ours alone: delete it, as upstream does
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
