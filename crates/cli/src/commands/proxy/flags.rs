//! kube-proxy's flags, each with its place in the configuration.
//!
//! One table says everything about a flag: how it is parsed, where its value goes, what its
//! default is, and whether it counts beside a configuration file.

use std::{fmt::Display, str::FromStr};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, error::Error};
use serde_json::{Value, json};
use weft_proxy::config::{DurationError, GoDuration, KubeProxyConfiguration};

type Get = fn(&KubeProxyConfiguration) -> String;
type Set = fn(&mut KubeProxyConfiguration, &str) -> Result<(), String>;

/// A flag that says something about the configuration.
#[derive(Clone, Copy)]
pub(crate) struct Flag {
    pub(crate) name: &'static str,
    value: Taking,
    help: &'static str,
    beside_file: BesideFile,
    get: Get,
    set: Set,
}

/// The type of a flag's value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taking {
    /// Nothing, or `=true` and `=false`.
    Switch,
    /// One value of that name. The last one counts.
    One(&'static str),
    /// Values of that name, separated by commas or given one by one.
    Many(&'static str),
}

/// Precedence of a flag over a configuration file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BesideFile {
    Ignored,
    Honoured,
}

use BesideFile::{Honoured, Ignored};
use Taking::{Many, One, Switch};

const fn flag(name: &'static str, value: Taking, help: &'static str, get: Get, set: Set) -> Flag {
    Flag {
        name,
        value,
        help,
        beside_file: Ignored,
        get,
        set,
    }
}

const fn honoured(flag: Flag) -> Flag {
    Flag {
        beside_file: Honoured,
        ..flag
    }
}

/// Accepted so that a DaemonSet of kube-proxy starts; of no effect in iptables mode.
const fn hidden(name: &'static str, value: Taking, get: Get, set: Set) -> Flag {
    flag(name, value, "", get, set)
}

fn parse<T: FromStr<Err: Display>>(into: &mut T, text: &str) -> Result<(), String> {
    *into = text.parse().map_err(|error: T::Err| error.to_string())?;
    Ok(())
}

/// All spellings that Go reads as a truth value.
fn switch(into: &mut bool, text: &str) -> Result<(), String> {
    *into = match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
        "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
        _ => return Err(format!("`{text}` is neither true nor false")),
    };
    Ok(())
}

/// Names of Nodes are in lower case.
fn host(into: &mut String, text: &str) -> Result<(), String> {
    let name = text.trim().to_lowercase();
    if name.is_empty() && !text.is_empty() {
        return Err("a name must not be blank".to_owned());
    }
    *into = name;
    Ok(())
}

fn list(text: &str) -> Vec<String> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

fn gates(config: &mut KubeProxyConfiguration, text: &str) -> Result<(), String> {
    for pair in text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
    {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("`{pair}` is not Name=true or Name=false"))?;
        let mut enabled = false;
        switch(&mut enabled, value.trim())?;
        config.feature_gates.insert(name.trim().to_owned(), enabled);
    }
    Ok(())
}

fn gates_text(config: &KubeProxyConfiguration) -> String {
    let pairs = config.feature_gates.iter();
    let pairs: Vec<String> = pairs.map(|(name, on)| format!("{name}={on}")).collect();
    pairs.join(",")
}

fn ipvs(config: &KubeProxyConfiguration, key: &str) -> String {
    match &config.ipvs[key] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn set_ipvs(
    config: &mut KubeProxyConfiguration,
    key: &str,
    value: Result<Value, String>,
) -> Result<(), String> {
    config.ipvs.insert(key.to_owned(), value?);
    Ok(())
}

fn duration(text: &str) -> Result<Value, String> {
    let duration: GoDuration = text.parse().map_err(|e: DurationError| e.to_string())?;
    Ok(json!(duration.to_string()))
}

/// Every flag, in the order in which help lists them.
pub(crate) const FLAGS: &[Flag] = &[
    flag(
        "proxy-mode",
        One("MODE"),
        "Mode of the proxy: iptables or nftables",
        |c| c.effective_mode().to_owned(),
        |c, v| parse(&mut c.mode, v),
    ),
    flag(
        "kubeconfig",
        One("FILE"),
        "Path to a kubeconfig; defaults to in-cluster",
        |c| c.client_connection.kubeconfig.clone(),
        |c, v| parse(&mut c.client_connection.kubeconfig, v),
    ),
    honoured(flag(
        "hostname-override",
        One("NAME"),
        "Name of this machine's Node, if it is not the host name",
        |c| c.hostname_override.clone(),
        |c, v| host(&mut c.hostname_override, v),
    )),
    flag(
        "bind-address",
        One("IP"),
        "Primary address of the node, if it is not that of the Node object; nothing binds to it",
        |c| c.bind_address.clone(),
        |c, v| parse(&mut c.bind_address, v),
    ),
    flag(
        "cluster-cidr",
        One("CIDRS"),
        "CIDRs of all pods, one for each family; used by --detect-local-mode=ClusterCIDR",
        |c| c.cluster_cidr.clone(),
        |c, v| parse(&mut c.cluster_cidr, v),
    ),
    flag(
        "detect-local-mode",
        One("MODE"),
        "Mode to detect traffic of local pods: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix",
        |c| c.detect_local_mode.clone(),
        |c, v| parse(&mut c.detect_local_mode, v),
    ),
    flag(
        "pod-bridge-interface",
        One("NAME"),
        "Bridge of the pods, for --detect-local-mode=BridgeInterface",
        |c| c.detect_local.bridge_interface.clone(),
        |c, v| parse(&mut c.detect_local.bridge_interface, v),
    ),
    flag(
        "pod-interface-name-prefix",
        One("PREFIX"),
        "Prefix of the pods' interface names, for --detect-local-mode=InterfaceNamePrefix",
        |c| c.detect_local.interface_name_prefix.clone(),
        |c, v| parse(&mut c.detect_local.interface_name_prefix, v),
    ),
    flag(
        "nodeport-addresses",
        Many("CIDRS"),
        "Node addresses that serve NodePorts: CIDRs, primary (the addresses of the Node object), localhost (127.0.0.0/8 and ::1) and all, in any combination [default: all; nftables mode: primary]",
        |c| {
            format!(
                "[{}]",
                c.node_port_addresses
                    .as_deref()
                    .unwrap_or_default()
                    .join(",")
            )
        },
        |c, v| {
            c.node_port_addresses = Some(list(v)).filter(|list| !list.is_empty());
            Ok(())
        },
    ),
    flag(
        "masquerade-all",
        Switch,
        "Masquerade all traffic to ClusterIPs",
        |c| c.iptables.masquerade_all.to_string(),
        |c, v| switch(&mut c.iptables.masquerade_all, v),
    ),
    flag(
        "iptables-masquerade-bit",
        One("BIT"),
        "Bit of the packet mark that requests masquerading, 0 to 31",
        |c| c.iptables.masquerade_bit.to_string(),
        |c, v| parse(&mut c.iptables.masquerade_bit, v),
    ),
    flag(
        "iptables-localhost-nodeports",
        Switch,
        "Serve NodePorts on 127.0.0.1 too",
        |c| c.iptables.localhost_node_ports.to_string(),
        |c, v| switch(&mut c.iptables.localhost_node_ports, v),
    ),
    flag(
        "iptables-min-sync-period",
        One("DURATION"),
        "Minimum time between two syncs; 0 for none",
        |c| c.iptables.min_sync_period.to_string(),
        |c, v| {
            parse(&mut c.iptables.min_sync_period, v)?;
            // As upstream, the flag counts in every mode.
            c.nftables.min_sync_period = c.iptables.min_sync_period;
            Ok(())
        },
    ),
    flag(
        "iptables-sync-period",
        One("DURATION"),
        "Time after which a failed sync is retried; a change that waits twice as long makes the node unhealthy",
        |c| c.iptables.sync_period.to_string(),
        |c, v| {
            parse(&mut c.iptables.sync_period, v)?;
            c.nftables.sync_period = c.iptables.sync_period;
            Ok(())
        },
    ),
    flag(
        "healthz-bind-address",
        One("IP:PORT"),
        "Address of /healthz and /livez; empty disables them",
        |c| c.healthz_bind_address.clone(),
        |c, v| parse(&mut c.healthz_bind_address, v),
    ),
    flag(
        "metrics-bind-address",
        One("IP:PORT"),
        "Address of metrics and diagnostics; empty disables them",
        |c| c.metrics_bind_address.clone(),
        |c, v| parse(&mut c.metrics_bind_address, v),
    ),
    flag(
        "bind-address-hard-fail",
        Switch,
        "Exit if one of these addresses cannot be bound, instead of retrying",
        |c| c.bind_address_hard_fail.to_string(),
        |c, v| switch(&mut c.bind_address_hard_fail, v),
    ),
    flag(
        "conntrack-max-per-core",
        One("NUMBER"),
        "Maximum number of conntrack entries per CPU core; 0 keeps the kernel's limit",
        |c| c.conntrack.max_per_core.to_string(),
        |c, v| parse(&mut c.conntrack.max_per_core, v),
    ),
    flag(
        "conntrack-min",
        One("NUMBER"),
        "Minimum number of conntrack entries, regardless of --conntrack-max-per-core",
        |c| c.conntrack.min.to_string(),
        |c, v| parse(&mut c.conntrack.min, v),
    ),
    flag(
        "conntrack-tcp-timeout-established",
        One("DURATION"),
        "Conntrack timeout of idle TCP connections; 0 keeps the kernel's",
        |c| c.conntrack.tcp_established_timeout.to_string(),
        |c, v| parse(&mut c.conntrack.tcp_established_timeout, v),
    ),
    flag(
        "conntrack-tcp-timeout-close-wait",
        One("DURATION"),
        "Conntrack timeout of TCP connections in CLOSE_WAIT; 0 keeps the kernel's",
        |c| c.conntrack.tcp_close_wait_timeout.to_string(),
        |c, v| parse(&mut c.conntrack.tcp_close_wait_timeout, v),
    ),
    flag(
        "conntrack-tcp-be-liberal",
        Switch,
        "Accept out-of-window TCP packets (nf_conntrack_tcp_be_liberal)",
        |c| c.conntrack.tcp_be_liberal.to_string(),
        |c, v| switch(&mut c.conntrack.tcp_be_liberal, v),
    ),
    flag(
        "conntrack-udp-timeout",
        One("DURATION"),
        "Conntrack timeout of unreplied UDP flows; 0 keeps the kernel's",
        |c| c.conntrack.udp_timeout.to_string(),
        |c, v| parse(&mut c.conntrack.udp_timeout, v),
    ),
    flag(
        "conntrack-udp-timeout-stream",
        One("DURATION"),
        "Conntrack timeout of replied UDP flows; 0 keeps the kernel's",
        |c| c.conntrack.udp_stream_timeout.to_string(),
        |c, v| parse(&mut c.conntrack.udp_stream_timeout, v),
    ),
    flag(
        "oom-score-adj",
        One("NUMBER"),
        "oom_score_adj of this process, -1000 to 1000",
        |c| c.oom_score_adj.to_string(),
        |c, v| parse(&mut c.oom_score_adj, v),
    ),
    flag(
        "kube-api-qps",
        One("NUMBER"),
        "Accepted for compatibility, without effect",
        |c| c.client_connection.qps.to_string(),
        |c, v| parse(&mut c.client_connection.qps, v),
    ),
    flag(
        "kube-api-burst",
        One("NUMBER"),
        "Accepted for compatibility, without effect",
        |c| c.client_connection.burst.to_string(),
        |c, v| parse(&mut c.client_connection.burst, v),
    ),
    flag(
        "feature-gates",
        Many("NAME=BOOLEAN"),
        "Feature gates, Name=true|false. Known: MinimizeIPTablesRestore (default true)",
        gates_text,
        gates,
    ),
    honoured(flag(
        "v",
        One("LEVEL"),
        "Log verbosity: 4 and 5 mean --log-level=debug, 6 and more mean trace",
        |c| c.logging.verbosity.to_string(),
        |c, v| parse(&mut c.logging.verbosity, v),
    )),
    honoured(flag(
        "logging-format",
        One("FORMAT"),
        "Format of log lines: text or json; --log-format takes precedence",
        |c| c.logging.format.clone(),
        |c, v| parse(&mut c.logging.format, v),
    )),
    hidden(
        "profiling",
        Switch,
        |c| c.enable_profiling.to_string(),
        |c, v| switch(&mut c.enable_profiling, v),
    ),
    hidden(
        "config-sync-period",
        One("DURATION"),
        |c| c.config_sync_period.to_string(),
        |c, v| parse(&mut c.config_sync_period, v),
    ),
    hidden(
        "kube-api-content-type",
        One("TYPE"),
        |c| c.client_connection.content_type.clone(),
        |c, v| parse(&mut c.client_connection.content_type, v),
    ),
    hidden(
        "show-hidden-metrics-for-version",
        One("VERSION"),
        |c| c.show_hidden_metrics_for_version.clone(),
        |c, v| parse(&mut c.show_hidden_metrics_for_version, v),
    ),
    hidden(
        "ipvs-scheduler",
        One("NAME"),
        |c| ipvs(c, "scheduler"),
        |c, v| set_ipvs(c, "scheduler", Ok(json!(v))),
    ),
    hidden(
        "ipvs-exclude-cidrs",
        Many("CIDRS"),
        |c| ipvs(c, "excludeCIDRs"),
        |c, v| set_ipvs(c, "excludeCIDRs", Ok(json!(list(v)))),
    ),
    hidden(
        "ipvs-strict-arp",
        Switch,
        |c| ipvs(c, "strictARP"),
        |c, v| {
            let mut strict = false;
            switch(&mut strict, v)?;
            set_ipvs(c, "strictARP", Ok(json!(strict)))
        },
    ),
    hidden(
        "ipvs-sync-period",
        One("DURATION"),
        |c| ipvs(c, "syncPeriod"),
        |c, v| set_ipvs(c, "syncPeriod", duration(v)),
    ),
    hidden(
        "ipvs-min-sync-period",
        One("DURATION"),
        |c| ipvs(c, "minSyncPeriod"),
        |c, v| set_ipvs(c, "minSyncPeriod", duration(v)),
    ),
    hidden(
        "ipvs-tcp-timeout",
        One("DURATION"),
        |c| ipvs(c, "tcpTimeout"),
        |c, v| set_ipvs(c, "tcpTimeout", duration(v)),
    ),
    hidden(
        "ipvs-tcpfin-timeout",
        One("DURATION"),
        |c| ipvs(c, "tcpFinTimeout"),
        |c, v| set_ipvs(c, "tcpFinTimeout", duration(v)),
    ),
    hidden(
        "ipvs-udp-timeout",
        One("DURATION"),
        |c| ipvs(c, "udpTimeout"),
        |c, v| set_ipvs(c, "udpTimeout", duration(v)),
    ),
    honoured(hidden(
        "log-flush-frequency",
        One("DURATION"),
        |c| {
            c.logging
                .flush_frequency
                .as_str()
                .unwrap_or_default()
                .to_owned()
        },
        |c, v| {
            c.logging.flush_frequency = json!(v);
            Ok(())
        },
    )),
    honoured(hidden(
        "vmodule",
        One("PATTERN=N"),
        |_| String::new(),
        |_, _| Ok(()),
    )),
    honoured(hidden(
        "log-json-info-buffer-size",
        One("SIZE"),
        |_| "0".into(),
        |_, _| Ok(()),
    )),
    honoured(hidden(
        "log-text-info-buffer-size",
        One("SIZE"),
        |_| "0".into(),
        |_, _| Ok(()),
    )),
    honoured(hidden(
        "log-json-split-stream",
        Switch,
        |_| "false".into(),
        |_, _| Ok(()),
    )),
    honoured(hidden(
        "log-text-split-stream",
        Switch,
        |_| "false".into(),
        |_, _| Ok(()),
    )),
    honoured(hidden(
        "boot-id-file",
        One("FILE"),
        |_| String::new(),
        |_, _| Ok(()),
    )),
    honoured(hidden(
        "machine-id-file",
        One("FILE"),
        |_| String::new(),
        |_, _| Ok(()),
    )),
];

impl Flag {
    fn argument(&'static self) -> Arg {
        let default = self.value_in(&KubeProxyConfiguration::default());
        let help = match default.as_str() {
            "" | "[]" => self.help.to_owned(),
            default => format!("{} [default: {default}]", self.help),
        };
        let argument = Arg::new(self.name)
            .long(self.name)
            .help(help)
            .hide(self.help.is_empty())
            .value_parser(move |text: &str| self.check(text));
        let argument = match self.value {
            Switch => argument
                .action(ArgAction::Set)
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_name("BOOLEAN"),
            One(name) => argument
                .action(ArgAction::Set)
                .allow_hyphen_values(true)
                .value_name(name),
            Many(name) => argument.action(ArgAction::Append).value_name(name),
        };
        match self.name {
            "v" => argument.short('v'),
            _ => argument,
        }
    }

    /// Its value in a configuration.
    pub(crate) fn value_in(&self, config: &KubeProxyConfiguration) -> String {
        (self.get)(config)
    }

    /// A value that its place does not take is clap's to refuse.
    fn check(&self, text: &str) -> Result<String, String> {
        (self.set)(&mut KubeProxyConfiguration::default(), text)?;
        Ok(text.to_owned())
    }
}

/// The flags that were given, each with its value.
#[derive(Clone, Default)]
pub(crate) struct GivenFlags(Vec<(&'static Flag, String)>);

impl std::fmt::Debug for GivenFlags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.0.iter().map(|(flag, value)| (flag.name, value));
        f.debug_map().entries(names).finish()
    }
}

impl GivenFlags {
    /// Puts them over the defaults.
    pub(crate) fn apply(&self, config: &mut KubeProxyConfiguration) -> Result<(), String> {
        self.apply_those(config, |_| true)
    }

    /// Puts those that count beside a file over what the file says; returns the names of others.
    pub(crate) fn apply_beside_file(
        &self,
        config: &mut KubeProxyConfiguration,
    ) -> Result<Vec<&'static str>, String> {
        let counts = |flag: &Flag| flag.beside_file == Honoured;
        self.apply_those(config, counts)?;
        let ignored = self.0.iter().filter(|(flag, _)| !counts(flag));
        Ok(ignored.map(|(flag, _)| flag.name).collect())
    }

    fn apply_those(
        &self,
        config: &mut KubeProxyConfiguration,
        which: impl Fn(&Flag) -> bool,
    ) -> Result<(), String> {
        for (flag, value) in self.0.iter().filter(|(flag, _)| which(flag)) {
            (flag.set)(config, value).map_err(|error| format!("--{}: {error}", flag.name))?;
        }
        Ok(())
    }
}

impl FromArgMatches for GivenFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = FLAGS.iter().filter_map(|flag| {
            let values: Vec<&str> = matches
                .get_many::<String>(flag.name)?
                .map(String::as_str)
                .collect();
            Some((flag, values.join(",")))
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for GivenFlags {
    fn augment_args(command: Command) -> Command {
        command
            // As in Go's programs, the last of several counts.
            .args_override_self(true)
            .args(FLAGS.iter().map(Flag::argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn given(arguments: &[&str]) -> GivenFlags {
        let command = GivenFlags::augment_args(Command::new("proxy").no_binary_name(true));
        let matches = command.try_get_matches_from(arguments).unwrap();
        GivenFlags::from_arg_matches(&matches).unwrap()
    }

    fn applied(arguments: &[&str]) -> KubeProxyConfiguration {
        let mut config = KubeProxyConfiguration::default();
        given(arguments).apply(&mut config).unwrap();
        config
    }

    /// Every flag of kube-proxy 1.36.4 besides those that are no part of the configuration.
    #[test]
    fn every_flag_of_kube_proxy_is_there() {
        let upstream = "bind-address bind-address-hard-fail boot-id-file cluster-cidr \
            config-sync-period conntrack-max-per-core conntrack-min conntrack-tcp-be-liberal \
            conntrack-tcp-timeout-close-wait conntrack-tcp-timeout-established \
            conntrack-udp-timeout conntrack-udp-timeout-stream detect-local-mode feature-gates \
            healthz-bind-address hostname-override iptables-localhost-nodeports \
            iptables-masquerade-bit iptables-min-sync-period iptables-sync-period \
            ipvs-exclude-cidrs ipvs-min-sync-period ipvs-scheduler ipvs-strict-arp \
            ipvs-sync-period ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout \
            kube-api-burst kube-api-content-type kube-api-qps kubeconfig log-flush-frequency \
            log-json-info-buffer-size log-json-split-stream log-text-info-buffer-size \
            log-text-split-stream logging-format machine-id-file masquerade-all \
            metrics-bind-address nodeport-addresses oom-score-adj pod-bridge-interface \
            pod-interface-name-prefix profiling proxy-mode show-hidden-metrics-for-version v \
            vmodule";
        let expected: BTreeSet<&str> = upstream.split_whitespace().collect();
        let names: BTreeSet<&str> = FLAGS.iter().map(|flag| flag.name).collect();
        assert_eq!(names, expected);
        assert_eq!(names.len(), FLAGS.len(), "a flag is listed twice");
    }

    /// Sets each flag to something that is not its default and reads it from its place.
    #[test]
    fn every_flag_writes_what_it_reads() {
        for flag in FLAGS.iter().filter(|flag| !flag.help.is_empty()) {
            let mut config = KubeProxyConfiguration::default();
            let before = (flag.get)(&config);
            let value = match (flag.value, before.as_str()) {
                (Switch, "true") => "false",
                (Switch, _) => "true",
                (One("DURATION"), _) => "7m0s",
                (One("NUMBER" | "BIT" | "LEVEL"), _) => "7",
                (Many("NAME=BOOLEAN"), _) => "A=true,B=false",
                _ => "seven",
            };
            (flag.set)(&mut config, value).unwrap();
            let after = (flag.get)(&config);
            assert_eq!(after.trim_matches(['[', ']']), value, "{}", flag.name);
            assert_ne!(after, before, "{}", flag.name);
        }
    }

    #[test]
    fn flags_are_read_as_go_reads_them() {
        let config = applied(&[
            "--masquerade-all",
            "--iptables-localhost-nodeports=F",
            "--iptables-min-sync-period",
            "0",
            "--oom-score-adj=-7",
            "--conntrack-min",
            "-5",
            "--nodeport-addresses=10.0.0.0/8,127.0.0.0/8",
            "--nodeport-addresses",
            "::1/128",
            "--feature-gates=A=true",
            "--feature-gates=B=false",
            "--cluster-cidr=10.0.0.0/8",
            "--cluster-cidr=10.1.0.0/16,fd00::/48",
            "-v5",
        ]);
        assert!(config.iptables.masquerade_all);
        assert!(!config.iptables.localhost_node_ports);
        assert!(config.iptables.min_sync_period.is_zero());
        assert_eq!(config.oom_score_adj, -7);
        assert_eq!(config.conntrack.min, -5);
        let addresses = config.node_port_addresses.unwrap();
        assert_eq!(addresses, ["10.0.0.0/8", "127.0.0.0/8", "::1/128"]);
        assert_eq!(config.feature_gates.len(), 2);
        assert_eq!(
            config.cluster_cidr, "10.1.0.0/16,fd00::/48",
            "the last counts"
        );
        assert_eq!(config.logging.verbosity, 5);
        assert_eq!(applied(&[]), KubeProxyConfiguration::default());
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_and_the_flag_named() {
        for (name, value) in [
            ("iptables-sync-period", "5"),
            ("iptables-masquerade-bit", "x"),
            ("masquerade-all", "yes"),
            ("feature-gates", "A"),
            ("kube-api-qps", "fast"),
            ("hostname-override", " "),
        ] {
            let argument = format!("--{name}={value}");
            let command = GivenFlags::augment_args(Command::new("proxy").no_binary_name(true));
            let error = command.try_get_matches_from([&argument]).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn beside_a_file_only_the_name_and_logging_count() {
        let mut config = KubeProxyConfiguration::default();
        let given = given(&["--hostname-override=n", "-v=3", "--masquerade-all"]);
        let ignored = given.apply_beside_file(&mut config).unwrap();
        assert_eq!(ignored, ["masquerade-all"]);
        assert_eq!(config.hostname_override, "n");
        assert_eq!(config.logging.verbosity, 3);
        assert!(!config.iptables.masquerade_all);
    }
}
