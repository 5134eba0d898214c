//! From flags and file to what the proxy works with. Touches nothing.

use std::path::Path;

use weft_host::iptables::VariantChoice;
use weft_iptables::RestoreScope;
use weft_nftables::TableOptions;
use weft_proxy::config::{
    self, EXTERNAL_IPS_GATE, HEALTHZ_PORT, KubeProxyConfiguration, LOCALHOST_GATE, METRICS_PORT,
    ProxyConfig, address_with_port,
};
use weft_proxy_agent::process::ProxySetup;
use weft_runtime::{FeatureGate, FeatureGates, Features, Stage, UnknownGates};

use super::{ProxyArguments, flags::FLAGS};
use weft_program::{
    config::{ConfigError, LogConfig, Origin, Setting},
    logging::LogFormat,
};

/// On: a sync writes only what changed. Off: every sync looks at everything.
pub(crate) const MINIMIZE_RESTORE: &str = "MinimizeIPTablesRestore";

/// kube-proxy's choice between netlink and the program nft. There is only netlink here.
const NETLINK: &str = "NFTablesNetlink";

const GATES: [FeatureGate; 4] = [
    FeatureGate {
        name: MINIMIZE_RESTORE,
        default: true,
        stage: Stage::Stable,
        locked: false,
    },
    FeatureGate {
        name: EXTERNAL_IPS_GATE,
        default: true,
        stage: Stage::Stable,
        locked: false,
    },
    FeatureGate {
        name: LOCALHOST_GATE,
        default: false,
        stage: Stage::Alpha,
        locked: false,
    },
    FeatureGate {
        name: NETLINK,
        default: true,
        stage: Stage::Beta,
        locked: false,
    },
];

/// The effective configuration of the proxy.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// In kube-proxy's words, to be printed.
    pub(crate) configuration: KubeProxyConfiguration,
    /// The configuration after validation.
    pub(crate) config: ProxyConfig,
    /// The gates.
    pub(crate) features: Features,
    /// Warnings to log at start.
    pub(crate) warnings: Vec<String>,
}

impl Resolved {
    /// Puts flags over defaults, or over the text of a file.
    pub(crate) fn new(arguments: &ProxyArguments, file: Option<&str>) -> Result<Self, ConfigError> {
        let mut warnings = Vec::new();
        let configuration = match file {
            Some(text) => beside_file(arguments, text, &mut warnings)?,
            None => by_flags(arguments, &mut warnings)?,
        };
        Self::check(configuration, warnings)
    }

    /// The configuration of a file, or the defaults without one, changed by `amend`.
    pub(crate) fn of_file(
        file: Option<(&Path, &str)>,
        amend: impl FnOnce(&mut KubeProxyConfiguration),
    ) -> Result<Self, ConfigError> {
        let mut warnings = Vec::new();
        let mut configuration = match file {
            None => KubeProxyConfiguration::default(),
            Some((path, text)) => decode(path, text, &mut warnings)?,
        };
        amend(&mut configuration);
        Self::check(configuration, warnings)
    }

    fn check(
        configuration: KubeProxyConfiguration,
        mut warnings: Vec<String>,
    ) -> Result<Self, ConfigError> {
        let config = configuration.check().map_err(|error| {
            ConfigError::invalid("the configuration of the proxy is not valid", error)
        })?;
        if config.profiling {
            warnings.push("profiles are asked for, and there are none".to_owned());
        }
        let mut gates = FeatureGates::new(&GATES);
        for (name, enabled) in &configuration.feature_gates {
            let set = gates.set(&format!("{name}={enabled}"), UnknownGates::Warn);
            warnings.extend(
                set.map_err(|error| ConfigError::invalid("cannot set a feature gate", error))?,
            );
        }
        let features = gates.freeze();
        if !features.is_enabled(NETLINK) {
            warnings.push(format!(
                "{NETLINK}=false has no effect: nftables is always written by netlink"
            ));
        }
        Ok(Self {
            configuration,
            config,
            features,
            warnings,
        })
    }

    /// The setup of the process.
    pub(crate) fn setup(self, variant: VariantChoice, table: TableOptions) -> ProxySetup {
        ProxySetup {
            configuration: self.configuration.to_json(),
            flags: self.flags(),
            restore: if self.features.is_enabled(MINIMIZE_RESTORE) {
                RestoreScope::Changes
            } else {
                RestoreScope::Everything
            },
            config: self.config.into(),
            variant,
            table,
        }
    }

    /// The settings of logging: weft's own, and kube-proxy's where those are unset.
    pub(crate) fn logging(&self, mut own: LogConfig) -> LogConfig {
        let logging = &self.configuration.logging;
        if own.format.origin == Origin::Default && logging.format == "json" {
            own.format = Setting {
                value: LogFormat::Json,
                origin: Origin::Flag,
            };
        }
        let level = match logging.verbosity {
            0..4 => None,
            4..6 => Some("debug"),
            6.. => Some("trace"),
        };
        if let (Origin::Default, Some(level)) = (own.level.origin, level) {
            own.level = Setting {
                value: level.parse().expect("levels are filters"),
                origin: Origin::Flag,
            };
        }
        own
    }

    /// All flags with their effective values by name, for `/flagz`.
    pub(crate) fn flags(&self) -> Vec<(String, String)> {
        let flags = FLAGS.iter();
        let mut flags: Vec<_> = flags
            .map(|flag| (flag.name.to_owned(), flag.value_in(&self.configuration)))
            .collect();
        flags.sort();
        flags
    }
}

fn by_flags(
    arguments: &ProxyArguments,
    warnings: &mut Vec<String>,
) -> Result<KubeProxyConfiguration, ConfigError> {
    let mut configuration = KubeProxyConfiguration::default();
    let applied = arguments.flags.apply(&mut configuration);
    applied.map_err(ConfigError::Flag)?;
    apply_ports(arguments, &mut configuration, warnings);
    Ok(configuration)
}

fn beside_file(
    arguments: &ProxyArguments,
    text: &str,
    warnings: &mut Vec<String>,
) -> Result<KubeProxyConfiguration, ConfigError> {
    let path = arguments.file.as_deref().unwrap_or(Path::new(""));
    let mut configuration = decode(path, text, warnings)?;
    let applied = arguments.flags.apply_beside_file(&mut configuration);
    let mut ignored = applied.map_err(ConfigError::Flag)?;
    ignored.extend(arguments.healthz_port.map(|_| "healthz-port"));
    ignored.extend(arguments.metrics_port.map(|_| "metrics-port"));
    let ignored = ignored.into_iter();
    warnings.extend(ignored.map(|name| format!("--{name} is ignored because --config is set")));
    Ok(configuration)
}

fn decode(
    path: &Path,
    text: &str,
    warnings: &mut Vec<String>,
) -> Result<KubeProxyConfiguration, ConfigError> {
    let decoded = config::decode(text).map_err(|source| {
        let path = path.display();
        ConfigError::invalid(
            format!("cannot decode the KubeProxyConfiguration in {path}"),
            source,
        )
    })?;
    warnings.extend(decoded.warnings);
    Ok(decoded.configuration)
}

/// The deprecated ports: 0 serves nothing, and another one counts for an address without a port.
fn apply_ports(
    arguments: &ProxyArguments,
    configuration: &mut KubeProxyConfiguration,
    warnings: &mut Vec<String>,
) {
    for (name, given, default, address) in [
        (
            "healthz",
            arguments.healthz_port,
            HEALTHZ_PORT,
            &mut configuration.healthz_bind_address,
        ),
        (
            "metrics",
            arguments.metrics_port,
            METRICS_PORT,
            &mut configuration.metrics_bind_address,
        ),
    ] {
        if given.is_some() {
            warnings.push(format!(
                "--{name}-port is deprecated in favour of --{name}-bind-address"
            ));
        }
        *address = match given.unwrap_or(default) {
            0 => String::new(),
            port => address_with_port(address, port),
        };
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, FromArgMatches as _};

    use super::*;
    use crate::args::{Arguments, Command};

    fn arguments(given: &[&str]) -> ProxyArguments {
        let line = ["weft", "proxy"].iter().chain(given);
        let matches = Arguments::command().try_get_matches_from(line).unwrap();
        match Arguments::from_arg_matches(&matches).unwrap().command {
            Command::Proxy(arguments) => *arguments,
            other => panic!("{other:?}"),
        }
    }

    fn file(fields: &str) -> String {
        let (version, kind) = (config::API_VERSION, config::KIND);
        format!("apiVersion: {version}\nkind: {kind}\n{fields}")
    }

    fn resolved(given: &[&str], file: Option<&str>) -> Resolved {
        Resolved::new(&arguments(given), file).unwrap()
    }

    #[test]
    fn flags_and_file_mean_the_same_and_zero_does_not() {
        let by_flag = resolved(&["--masquerade-all", "--iptables-min-sync-period=0"], None);
        let text = file("iptables: {masqueradeAll: true, minSyncPeriod: 0s}\n");
        let by_file = resolved(&[], Some(&text));
        assert!(by_flag.config.masquerade_all && by_file.config.masquerade_all);
        assert_eq!(by_flag.config.min_sync_period.as_secs(), 0);
        assert_eq!(by_file.config.min_sync_period.as_secs(), 1);
        assert_eq!(by_flag.warnings, [""; 0]);
    }

    #[test]
    fn beside_a_file_most_flags_are_ignored_and_that_is_told() {
        let text = file("masqueradeAll: true\nhostnameOverride: file\n");
        let given = [
            "--config=x",
            "--masquerade-all",
            "--healthz-port=0",
            "--hostname-override=Flag",
        ];
        let resolved = resolved(&given, Some(&text));
        assert_eq!(
            resolved.warnings,
            [
                "unknown field \"masqueradeAll\"",
                "--masquerade-all is ignored because --config is set",
                "--healthz-port is ignored because --config is set"
            ]
        );
        assert!(!resolved.config.masquerade_all);
        assert_eq!(resolved.config.hostname_override.as_deref(), Some("flag"));
        assert!(resolved.config.healthz.is_some());
    }

    #[test]
    fn deprecated_ports_count_for_addresses_without_one() {
        for (given, healthz, metrics) in [
            (&[][..], "0.0.0.0:10256", "127.0.0.1:10249"),
            (&["--healthz-port=0", "--metrics-port=0"], "", ""),
            (&["--metrics-port=7"], "0.0.0.0:10256", "127.0.0.1:10249"),
            (
                &["--metrics-port=7", "--metrics-bind-address=::1"],
                "0.0.0.0:10256",
                "[::1]:7",
            ),
            (
                &["--healthz-bind-address=10.0.0.1"],
                "10.0.0.1:10256",
                "127.0.0.1:10249",
            ),
            // As in kube-proxy, the family of this flag decides nothing about the others.
            (&["--bind-address=::"], "0.0.0.0:10256", "127.0.0.1:10249"),
        ] {
            let resolved = resolved(given, None).configuration;
            assert_eq!(resolved.healthz_bind_address, healthz, "{given:?}");
            assert_eq!(resolved.metrics_bind_address, metrics, "{given:?}");
        }
    }

    #[test]
    fn a_mode_that_was_not_chosen_is_known_as_such() {
        let is_default = |words: &[&str]| resolved(words, None).config.is_mode_default;
        assert!(is_default(&[]));
        assert!(!is_default(&["--proxy-mode=iptables"]));
        assert!(!is_default(&["--proxy-mode=nftables"]));
    }

    #[test]
    fn gates_of_others_are_warned_about_and_ours_can_be_switched() {
        let on = resolved(&[], None);
        assert!(on.features.is_enabled(MINIMIZE_RESTORE));
        let flag = "--feature-gates=MinimizeIPTablesRestore=false,TopologyAwareHints=true";
        let off = resolved(&[flag], None);
        assert!(!off.features.is_enabled(MINIMIZE_RESTORE));
        assert_eq!(off.warnings.len(), 1, "{:?}", off.warnings);
        assert!(off.warnings[0].contains("TopologyAwareHints"));
        let text = file("featureGates: {MinimizeIPTablesRestore: false}");
        let off = resolved(&[], Some(&text));
        assert!(!off.features.is_enabled(MINIMIZE_RESTORE));
    }

    #[test]
    fn our_own_log_settings_win_over_kube_proxys() {
        let own = |origin| LogConfig {
            format: Setting {
                value: LogFormat::Text,
                origin,
            },
            level: Setting {
                value: "warn".parse().unwrap(),
                origin,
            },
        };
        let resolved = resolved(&["-v", "6", "--logging-format=json"], None);
        let log = resolved.logging(own(Origin::Default));
        assert_eq!(log.format.value, LogFormat::Json);
        assert_eq!(log.level.value.to_string(), "trace");
        let log = resolved.logging(own(Origin::Environment));
        assert_eq!(log.format.value, LogFormat::Text);
        assert_eq!(log.level.value.to_string(), "warn");
    }

    #[test]
    fn flags_are_listed_with_their_effective_values() {
        let text = file("iptables: {masqueradeBit: 3}\nnodePortAddresses: [primary]\n");
        let flags = resolved(&["--iptables-masquerade-bit=9"], Some(&text)).flags();
        assert!(flags.is_sorted());
        let value = |name: &str| {
            let found = flags.iter().find(|(known, _)| known == name);
            found.unwrap().1.clone()
        };
        assert_eq!(value("iptables-masquerade-bit"), "3");
        assert_eq!(value("nodeport-addresses"), "[primary]");
        assert_eq!(value("proxy-mode"), "iptables");
    }
}
