//! Validation: converts the textual configuration to types and reports all errors at once.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use thiserror::Error;
use weft_model::{IpFamily, parse_sloppy};

use super::{
    ClientConfig, ConntrackLimits, DetectLocal, EXTERNAL_IPS_GATE, GoDuration,
    KubeProxyConfiguration, LOCALHOST_GATE, Mode, NodePortRange, ProxyConfig,
};
use crate::address::parse_network;

/// An invalid field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The field as in the file: `iptables.masqueradeBit`.
    pub field: String,
    /// The value and what is expected instead.
    pub problem: String,
}

impl FieldError {
    pub(super) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// All invalid fields of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct InvalidConfiguration(pub Vec<FieldError>);

impl fmt::Display for InvalidConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: Vec<String> = self.0.iter().map(FieldError::to_string).collect();
        f.write_str(&errors.join("; "))
    }
}

impl KubeProxyConfiguration {
    /// Validates by kube-proxy's rules, except for feature gates: their names are checked where
    /// they are defined.
    pub fn check(&self) -> Result<ProxyConfig, InvalidConfiguration> {
        let mut check = Check::default();
        let mode = check.mode(&self.mode);
        let (masquerade_all, masquerade_bit) = match mode {
            Mode::Iptables => (
                self.iptables.masquerade_all,
                check.masquerade_bit("iptables.masqueradeBit", self.iptables.masquerade_bit),
            ),
            Mode::Nftables => (
                self.nftables.masquerade_all,
                check.masquerade_bit("nftables.masqueradeBit", self.nftables.masquerade_bit),
            ),
        };
        check.logging(&self.logging.format);
        let (sync_period, min_sync_period) = check.sync_periods(self, mode);
        let config = ProxyConfig {
            mode,
            is_mode_default: self.mode.is_empty(),
            hostname_override: self.hostname(&mut check),
            node_ip: check.node_ip(&self.bind_address),
            healthz: check.socket("healthzBindAddress", &self.healthz_bind_address),
            metrics: check.socket("metricsBindAddress", &self.metrics_bind_address),
            bind_hard_fail: self.bind_address_hard_fail,
            profiling: self.enable_profiling,
            detect_local: check.detect_local(self),
            node_ports: match self.node_port_addresses.as_deref().unwrap_or_default() {
                // As upstream, each mode has its own default.
                [] if mode == Mode::Nftables => vec![NodePortRange::Primary],
                given => check.node_ports(given),
            },
            localhost_node_ports: mode == Mode::Iptables && self.iptables.localhost_node_ports,
            loopback_listeners: mode == Mode::Nftables
                && self.feature_gates.get(LOCALHOST_GATE) == Some(&true),
            external_ips: self
                .feature_gates
                .get(EXTERNAL_IPS_GATE)
                .copied()
                .unwrap_or(true),
            masquerade_all,
            masquerade_bit,
            sync_period,
            min_sync_period,
            config_sync_period: check.positive("configSyncPeriod", self.config_sync_period),
            oom_score_adj: check.oom_score(self.oom_score_adj),
            conntrack: check.conntrack(&self.conntrack),
            client: check.client(&self.client_connection),
        };
        if check.errors.is_empty() {
            Ok(config)
        } else {
            Err(InvalidConfiguration(check.errors))
        }
    }

    /// The node's name. As in kube-proxy, it is trimmed and in lower case, as names of Nodes are.
    fn hostname(&self, check: &mut Check) -> Option<String> {
        let given = &self.hostname_override;
        let name = given.trim().to_lowercase();
        if name.is_empty() && !given.is_empty() {
            check.wrong("hostnameOverride", "must not be blank");
        }
        (!name.is_empty()).then_some(name)
    }
}

/// Collects errors and continues with a harmless placeholder, which is never used.
#[derive(Default)]
struct Check {
    errors: Vec<FieldError>,
}

impl Check {
    fn wrong(&mut self, field: impl Into<String>, problem: impl Into<String>) {
        self.errors.push(FieldError::new(field, problem));
    }

    fn mode(&mut self, mode: &str) -> Mode {
        match mode {
            "" | "iptables" => return Mode::Iptables,
            "nftables" => return Mode::Nftables,
            _ => {}
        }
        let known = ["ipvs", "kernelspace"].contains(&mode);
        let advice = if known {
            "use kube-proxy for this one, or change the mode to iptables or nftables"
        } else {
            "kube-proxy does not know this one either"
        };
        self.wrong(
            "mode",
            format!("{mode:?}: weft proxy has the iptables and nftables modes only; {advice}"),
        );
        Mode::Iptables
    }

    fn logging(&mut self, format: &str) {
        if !matches!(format, "text" | "json") {
            self.wrong(
                "logging.format",
                format!("{format:?}: must be text or json"),
            );
        }
    }

    fn node_ip(&mut self, address: &str) -> Option<IpAddr> {
        let parsed = parse_sloppy(address);
        if parsed.is_none() {
            self.wrong("bindAddress", format!("{address:?}: must be an IP address"));
        }
        parsed.filter(|address| !address.is_unspecified())
    }

    fn socket(&mut self, field: &str, text: &str) -> Option<SocketAddr> {
        if text.is_empty() {
            return None;
        }
        let parsed = host_and_port(text)
            .ok_or("must be IP:port")
            .and_then(|(host, port)| {
                let host = parse_sloppy(host).ok_or("its host must be an IP address")?;
                let port = port.parse().ok().filter(|port| *port > 0);
                Ok(SocketAddr::new(
                    host,
                    port.ok_or("its port must be 1 to 65535")?,
                ))
            });
        match parsed {
            Ok(address) => Some(address),
            Err(problem) => {
                self.wrong(field, format!("{text:?}: {problem}"));
                None
            }
        }
    }

    fn detect_local(&mut self, config: &KubeProxyConfiguration) -> DetectLocal {
        let names = &config.detect_local;
        match config.detect_local_mode.as_str() {
            "" | "ClusterCIDR" => {
                DetectLocal::ClusterNetworks(self.cluster_networks(&config.cluster_cidr))
            }
            "NodeCIDR" => DetectLocal::NodeNetworks,
            "BridgeInterface" => {
                self.name("detectLocal.bridgeInterface", &names.bridge_interface, 15);
                DetectLocal::Bridge(names.bridge_interface.as_str().into())
            }
            "InterfaceNamePrefix" => {
                let prefix = &names.interface_name_prefix;
                // The rule appends a `+` to it.
                self.name("detectLocal.interfaceNamePrefix", prefix, 14);
                DetectLocal::InterfacePrefix(prefix.as_str().into())
            }
            other => {
                let known = "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix";
                self.wrong("detectLocalMode", format!("{other:?}: must be {known}"));
                DetectLocal::NodeNetworks
            }
        }
    }

    /// Checks the name of an interface. Stricter than kube-proxy, because the name becomes part of
    /// a rule: it must be one that an interface can have.
    fn name(&mut self, field: &str, name: &str, limit: usize) {
        if name.is_empty() {
            self.wrong(field, "must not be empty in this detectLocalMode");
        } else if name.len() > limit {
            self.wrong(
                field,
                format!("{name:?}: must be an interface name of at most {limit} bytes"),
            );
        } else if name.starts_with('-')
            || !name.bytes().all(|b| {
                b.is_ascii_graphic() && !matches!(b, b'/' | b'"' | b'\'' | b'\\' | b'+' | b'!')
            })
        {
            self.wrong(field, format!("{name:?}: must be an interface name"));
        }
    }

    fn cluster_networks(&mut self, text: &str) -> Vec<IpNet> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut networks = Vec::new();
        for part in text.split(',') {
            match network(part) {
                Some(network) => networks.push(network),
                None => self.wrong("clusterCIDR", format!("{part:?}: must be a CIDR")),
            }
        }
        let of = |family| {
            let own = |network: &&IpNet| IpFamily::of(network.addr()) == family;
            networks.iter().filter(own).count()
        };
        if text.split(',').count() > 2 || of(IpFamily::V4) > 1 || of(IpFamily::V6) > 1 {
            let problem = format!("{text:?}: must be one CIDR, or one for each family");
            self.wrong("clusterCIDR", problem);
        }
        networks
    }

    fn node_ports(&mut self, given: &[String]) -> Vec<NodePortRange> {
        let mut ranges = Vec::new();
        for (index, text) in given.iter().enumerate() {
            let field = format!("nodePortAddresses[{index}]");
            let keyword = match text.as_str() {
                "primary" => Some(NodePortRange::Primary),
                "localhost" => Some(NodePortRange::Localhost),
                "all" => Some(NodePortRange::All),
                _ => None,
            };
            match keyword.or_else(|| network(text).map(NodePortRange::Network)) {
                Some(range) if keyword.is_some() && ranges.contains(&range) => {
                    self.wrong(field, format!("{text:?}: must be given once"));
                }
                Some(range) => ranges.push(range),
                None => {
                    let expected = "must be a CIDR, primary, localhost or all";
                    self.wrong(field, format!("{text:?}: {expected}"));
                }
            }
        }
        ranges
    }

    fn masquerade_bit(&mut self, field: &str, bit: i32) -> u8 {
        let fine = u8::try_from(bit).ok().filter(|bit| *bit < 32);
        fine.unwrap_or_else(|| {
            self.wrong(field, format!("{bit}: must be 0 to 31"));
            0
        })
    }

    fn sync_periods(
        &mut self,
        config: &KubeProxyConfiguration,
        mode: Mode,
    ) -> (Duration, Duration) {
        let (full, min) = match mode {
            Mode::Iptables => (config.iptables.sync_period, config.iptables.min_sync_period),
            Mode::Nftables => {
                let given = config.nftables.sync_period;
                let full = if given.is_zero() {
                    GoDuration::from_seconds(30)
                } else {
                    given
                };
                (full, config.nftables.min_sync_period)
            }
        };
        let section = mode.as_str();
        let periods = (
            self.positive(&format!("{section}.syncPeriod"), full),
            self.not_negative(&format!("{section}.minSyncPeriod"), min),
        );
        if min > full {
            let problem = format!("{min}: must not be longer than {section}.syncPeriod, {full}");
            self.wrong(format!("{section}.minSyncPeriod"), problem);
        }
        periods
    }

    fn positive(&mut self, field: &str, duration: GoDuration) -> Duration {
        let positive = duration.to_std().filter(|duration| !duration.is_zero());
        positive.unwrap_or_else(|| {
            self.wrong(field, format!("{duration}: must be greater than 0"));
            Duration::ZERO
        })
    }

    fn not_negative(&mut self, field: &str, duration: GoDuration) -> Duration {
        duration.to_std().unwrap_or_else(|| {
            self.wrong(field, format!("{duration}: must not be negative"));
            Duration::ZERO
        })
    }

    fn count(&mut self, field: &str, count: i32) -> u32 {
        u32::try_from(count).unwrap_or_else(|_| {
            self.wrong(field, format!("{count}: must not be negative"));
            0
        })
    }

    fn oom_score(&mut self, score: i32) -> i32 {
        if !(-1000..=1000).contains(&score) {
            self.wrong("oomScoreAdj", format!("{score}: must be -1000 to 1000"));
        }
        score
    }

    fn conntrack(&mut self, given: &super::Conntrack) -> ConntrackLimits {
        let max_per_core = self.count("conntrack.maxPerCore", given.max_per_core);
        let min = self.count("conntrack.min", given.min);
        let mut limit = |field: &str, duration| {
            let limit = self.not_negative(&format!("conntrack.{field}"), duration);
            (!limit.is_zero()).then_some(limit)
        };
        ConntrackLimits {
            max_per_core: (max_per_core > 0).then_some(max_per_core),
            min,
            tcp_be_liberal: given.tcp_be_liberal,
            tcp_close_wait: limit("tcpCloseWaitTimeout", given.tcp_close_wait_timeout),
            tcp_established: limit("tcpEstablishedTimeout", given.tcp_established_timeout),
            udp_stream: limit("udpStreamTimeout", given.udp_stream_timeout),
            udp: limit("udpTimeout", given.udp_timeout),
        }
    }

    fn client(&mut self, given: &super::ClientConnection) -> ClientConfig {
        ClientConfig {
            kubeconfig: Some(given.kubeconfig.clone()).filter(|path| !path.is_empty()),
            // Go's client has no limit if this is negative.
            qps: (given.qps > 0.0).then_some(given.qps),
            burst: self.count("clientConnection.burst", given.burst),
        }
    }
}

/// Parses a network as the configuration has it: Kubernetes' sloppy numbers, but no blanks.
fn network(text: &str) -> Option<IpNet> {
    parse_network(text).filter(|_| text.trim() == text)
}

/// Splits `host:port` and `[host]:port`.
fn host_and_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    match host.strip_prefix('[') {
        Some(host) => Some((host.strip_suffix(']')?, port)),
        None => Some((host, port)).filter(|_| !host.contains(':')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut KubeProxyConfiguration);

    fn problems(change: Change) -> Vec<String> {
        let mut config = KubeProxyConfiguration::default();
        change(&mut config);
        match config.check() {
            Ok(_) => Vec::new(),
            Err(InvalidConfiguration(errors)) => errors.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn what_kube_proxy_refuses_is_refused_and_the_field_named() {
        let cases: [(Change, &[&str]); 26] = [
            (
                |c| c.iptables.masquerade_bit = 32,
                &["iptables.masqueradeBit: 32: must be 0 to 31"],
            ),
            (
                |c| c.iptables.masquerade_bit = -1,
                &["iptables.masqueradeBit: -1: must be 0 to 31"],
            ),
            (
                |c| c.iptables.sync_period = GoDuration::ZERO,
                &[
                    "iptables.syncPeriod: 0s: must be greater than 0",
                    "iptables.minSyncPeriod: 1s: must not be longer than iptables.syncPeriod, 0s",
                ],
            ),
            (
                |c| c.iptables.min_sync_period = GoDuration::from_seconds(-1),
                &["iptables.minSyncPeriod: -1s: must not be negative"],
            ),
            (
                |c| c.iptables.min_sync_period = GoDuration::from_seconds(31),
                &["iptables.minSyncPeriod: 31s: must not be longer than iptables.syncPeriod, 30s"],
            ),
            (
                |c| c.config_sync_period = GoDuration::ZERO,
                &["configSyncPeriod: 0s: must be greater than 0"],
            ),
            (
                |c| c.oom_score_adj = 1001,
                &["oomScoreAdj: 1001: must be -1000 to 1000"],
            ),
            (
                |c| c.oom_score_adj = -1001,
                &["oomScoreAdj: -1001: must be -1000 to 1000"],
            ),
            (
                |c| c.bind_address = "x".into(),
                &["bindAddress: \"x\": must be an IP address"],
            ),
            (
                |c| c.healthz_bind_address = "foo".into(),
                &["healthzBindAddress: \"foo\": must be IP:port"],
            ),
            (
                |c| c.healthz_bind_address = "fd00::1:80".into(),
                &["healthzBindAddress: \"fd00::1:80\": must be IP:port"],
            ),
            (
                |c| c.metrics_bind_address = "a:1".into(),
                &["metricsBindAddress: \"a:1\": its host must be an IP address"],
            ),
            (
                |c| c.metrics_bind_address = "1.2.3.4:0".into(),
                &["metricsBindAddress: \"1.2.3.4:0\": its port must be 1 to 65535"],
            ),
            (
                |c| c.node_port_addresses = Some(vec!["all".into(), "0/8".into(), "all".into()]),
                &[
                    "nodePortAddresses[1]: \"0/8\": must be a CIDR, primary, localhost or all",
                    "nodePortAddresses[2]: \"all\": must be given once",
                ],
            ),
            (
                |c| c.node_port_addresses = Some(vec!["10.0.0.0/8".into(), "x".into()]),
                &["nodePortAddresses[1]: \"x\": must be a CIDR, primary, localhost or all"],
            ),
            (
                |c| c.cluster_cidr = "10.0.0.0/8,10.1.0.0/16".into(),
                &[
                    "clusterCIDR: \"10.0.0.0/8,10.1.0.0/16\": must be one CIDR, or one for each family",
                ],
            ),
            (
                |c| c.cluster_cidr = "10.0.0.0/8, fd00::/8".into(),
                &["clusterCIDR: \" fd00::/8\": must be a CIDR"],
            ),
            (
                |c| c.detect_local_mode = "x".into(),
                &[
                    "detectLocalMode: \"x\": must be ClusterCIDR, NodeCIDR, BridgeInterface or \
                 InterfaceNamePrefix",
                ],
            ),
            (
                |c| c.detect_local_mode = "BridgeInterface".into(),
                &["detectLocal.bridgeInterface: must not be empty in this detectLocalMode"],
            ),
            (
                |c| c.detect_local_mode = "InterfaceNamePrefix".into(),
                &["detectLocal.interfaceNamePrefix: must not be empty in this detectLocalMode"],
            ),
            (
                |c| c.conntrack.max_per_core = -1,
                &["conntrack.maxPerCore: -1: must not be negative"],
            ),
            (
                |c| c.conntrack.udp_timeout = GoDuration::from_seconds(-3),
                &["conntrack.udpTimeout: -3s: must not be negative"],
            ),
            (
                |c| c.client_connection.burst = -1,
                &["clientConnection.burst: -1: must not be negative"],
            ),
            (
                |c| c.logging.format = "xml".into(),
                &["logging.format: \"xml\": must be text or json"],
            ),
            (
                |c| c.hostname_override = " ".into(),
                &["hostnameOverride: must not be blank"],
            ),
            (
                |c| c.mode = "ipvs".into(),
                &[
                    "mode: \"ipvs\": weft proxy has the iptables and nftables modes only; use \
                 kube-proxy for this one, or change the mode to iptables or nftables",
                ],
            ),
        ];
        for (change, expected) in cases {
            assert_eq!(problems(change), expected);
        }
    }

    #[test]
    fn what_kube_proxy_accepts_is_accepted() {
        let cases: [Change; 8] = [
            |_| {},
            |c| c.mode = String::new(),
            |c| c.iptables.min_sync_period = GoDuration::ZERO,
            |c| c.cluster_cidr = "fd00::/48,010.0.0.0/8".into(),
            // Not used in this mode, so not checked either.
            |c| (c.detect_local_mode, c.cluster_cidr) = ("NodeCIDR".into(), "x".into()),
            |c| c.node_port_addresses = Some(vec!["::/0".into(), "0.0.0.0/0".into()]),
            |c| c.conntrack.tcp_established_timeout = GoDuration::ZERO,
            |c| c.metrics_bind_address = String::new(),
        ];
        for change in cases {
            assert_eq!(problems(change), [""; 0]);
        }
    }

    #[test]
    fn a_device_name_cannot_say_more_than_a_name() {
        for name in ["a b", "veth\n-A", "x\"", "abcdefghijklmnop", "br+", "a/b"] {
            let mut config = KubeProxyConfiguration {
                detect_local_mode: "BridgeInterface".into(),
                ..KubeProxyConfiguration::default()
            };
            config.detect_local.bridge_interface = name.into();
            let error = config.check().unwrap_err().to_string();
            assert!(
                error.starts_with("detectLocal.bridgeInterface: "),
                "{error}"
            );
        }
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let found = problems(|c| {
            c.oom_score_adj = 2000;
            c.bind_address = String::new();
            c.mode = "foo".into();
        });
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn the_nftables_mode_has_its_own_section_and_defaults() {
        let mut given = KubeProxyConfiguration {
            mode: "nftables".into(),
            ..KubeProxyConfiguration::default()
        };
        given.iptables.masquerade_all = true;
        let config = given.check().unwrap();
        assert_eq!(config.mode, Mode::Nftables);
        assert_eq!(config.node_ports, [NodePortRange::Primary]);
        assert_eq!(config.min_sync_period, Duration::ZERO);
        assert_eq!(config.sync_period, Duration::from_secs(30));
        assert!(!config.masquerade_all && !config.localhost_node_ports);

        given.nftables.masquerade_all = true;
        given.nftables.masquerade_bit = 3;
        given.nftables.sync_period = GoDuration::from_seconds(5);
        given.node_port_addresses = Some(vec!["10.0.0.0/8".to_owned()]);
        let config = given.check().unwrap();
        assert!(config.masquerade_all);
        assert_eq!(config.masquerade_bit, 3);
        assert_eq!(config.sync_period, Duration::from_secs(5));
        let network = "10.0.0.0/8".parse().unwrap();
        assert_eq!(config.node_ports, [NodePortRange::Network(network)]);

        given.nftables.min_sync_period = GoDuration::from_seconds(6);
        given.nftables.masquerade_bit = 32;
        let problems = given.check().unwrap_err().to_string();
        for words in [
            "nftables.masqueradeBit: 32: must be 0 to 31",
            "nftables.minSyncPeriod: 6s: must not be longer than nftables.syncPeriod, 5s",
        ] {
            assert!(problems.contains(words), "{problems}");
        }
    }

    #[test]
    fn the_defaults_mean_what_kube_proxy_means_by_them() {
        let config = KubeProxyConfiguration::default().check().unwrap();
        assert_eq!(config.healthz, Some("0.0.0.0:10256".parse().unwrap()));
        assert_eq!(config.metrics, Some("127.0.0.1:10249".parse().unwrap()));
        assert_eq!(config.node_ip, None);
        assert_eq!(config.sync_period, Duration::from_secs(30));
        assert_eq!(config.min_sync_period, Duration::from_secs(1));
        assert_eq!(config.health_timeout(), Duration::from_secs(60));
        assert_eq!(config.conntrack.udp, None);
        assert_eq!(config.client.kubeconfig, None);
    }
}
