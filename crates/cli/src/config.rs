//! The typed configuration and its one precedence order: flag, environment, file, default.
//!
//! Each source is read into the same [`Layer`], in which everything is optional; [`Config`] takes
//! each value from the strongest layer that has it and remembers which one that was. Defaults
//! stand here and nowhere else.
//!
//! Unknown keys of the file are errors. Unknown variables are not: a Kubernetes Service that is
//! called `weft` puts `WEFT_SERVICE_HOST` and `WEFT_PORT` into every container of its namespace.

use std::{
    env,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use crate::logging::{LogDirectives, LogFormat};

mod layer;
mod ranges;
mod settings;

pub(crate) use layer::{ApiserverLayer, Authorization, ConfigError, Environment, Layer, LogLayer};
pub(crate) use ranges::ServiceRanges;
pub(crate) use settings::{Origin, Setting, Settings};

/// What the program works with.
#[derive(Debug)]
pub(crate) struct Config {
    /// The file that was read, if any.
    pub(crate) file: Option<PathBuf>,
    pub(crate) log: LogConfig,
    pub(crate) apiserver: ApiserverConfig,
}

/// How and what to log.
#[derive(Debug)]
pub(crate) struct LogConfig {
    pub(crate) format: Setting<LogFormat>,
    pub(crate) level: Setting<LogDirectives>,
}

/// What `weft apiserver` serves, and where.
#[derive(Debug)]
pub(crate) struct ApiserverConfig {
    pub(crate) bind: Setting<SocketAddr>,
    pub(crate) kubeconfig: Setting<Option<PathBuf>>,
    pub(crate) authorization_mode: Setting<Authorization>,
    pub(crate) service_cluster_ip_range: Setting<ServiceRanges>,
    pub(crate) token_auth_file: Setting<Option<PathBuf>>,
    pub(crate) service_account_signing_key_file: Setting<Option<PathBuf>>,
    pub(crate) service_account_issuer: Setting<String>,
    pub(crate) allow_unauthenticated_remote: Setting<bool>,
    pub(crate) data_dir: Setting<Option<PathBuf>>,
    pub(crate) salvage_data_dir: Setting<bool>,
    pub(crate) unix_socket: Setting<Option<PathBuf>>,
    pub(crate) fault_endpoint: Setting<bool>,
    pub(crate) seed: Setting<Option<u64>>,
}

impl Config {
    /// Reads the other sources and adds them to what the flags say.
    pub(crate) fn load(file: Option<PathBuf>, flags: Layer) -> Result<Self, ConfigError> {
        let environment = Environment::new(|name| env::var_os(name));
        let file = file.or_else(|| environment.path("WEFT_CONFIG"));
        let layers = Layers {
            file: file
                .as_deref()
                .map(Layer::from_file)
                .transpose()?
                .unwrap_or_default(),
            environment: Layer::from_environment(&environment)?,
            flags,
        };
        Ok(Self {
            file,
            ..Self::resolve(&layers)
        })
    }

    /// All settings with their origins, in the order of the file.
    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.push("log", "format", &self.log.format);
        settings.push("log", "level", &self.log.level);
        let apiserver = &self.apiserver;
        settings.push("apiserver", "bind", &apiserver.bind);
        settings.push("apiserver", "kubeconfig", &apiserver.kubeconfig);
        settings.push(
            "apiserver",
            "authorizationMode",
            &apiserver.authorization_mode,
        );
        settings.push(
            "apiserver",
            "serviceClusterIpRange",
            &apiserver.service_cluster_ip_range,
        );
        settings.push("apiserver", "tokenAuthFile", &apiserver.token_auth_file);
        settings.push(
            "apiserver",
            "serviceAccountSigningKeyFile",
            &apiserver.service_account_signing_key_file,
        );
        settings.push(
            "apiserver",
            "serviceAccountIssuer",
            &apiserver.service_account_issuer,
        );
        settings.push(
            "apiserver",
            "allowUnauthenticatedRemote",
            &apiserver.allow_unauthenticated_remote,
        );
        settings.push("apiserver", "dataDir", &apiserver.data_dir);
        settings.push("apiserver", "salvageDataDir", &apiserver.salvage_data_dir);
        settings.push("apiserver", "unixSocket", &apiserver.unix_socket);
        settings.push("apiserver", "faultEndpoint", &apiserver.fault_endpoint);
        settings.push("apiserver", "seed", &apiserver.seed);
        settings
    }

    fn resolve(layers: &Layers) -> Self {
        let log = LogConfig {
            format: layers.strongest(|layer| layer.log.format, LogFormat::Text),
            level: layers.strongest(
                |layer| layer.log.level.clone(),
                "info".parse().expect("the default filter is valid"),
            ),
        };
        let api = |layer: &Layer| layer.apiserver.clone();
        let apiserver = ApiserverConfig {
            bind: layers.strongest(
                |l| api(l).bind,
                SocketAddr::from((Ipv4Addr::LOCALHOST, 6443)),
            ),
            kubeconfig: layers.strongest(|l| api(l).kubeconfig.map(Some), None),
            authorization_mode: layers
                .strongest(|l| api(l).authorization_mode, Authorization::AlwaysAllow),
            service_cluster_ip_range: layers.strongest(
                |l| api(l).service_cluster_ip_range,
                "10.96.0.0/12".parse().expect("the default range is valid"),
            ),
            token_auth_file: layers.strongest(|l| api(l).token_auth_file.map(Some), None),
            service_account_signing_key_file: layers
                .strongest(|l| api(l).service_account_signing_key_file.map(Some), None),
            service_account_issuer: layers.strongest(
                |l| api(l).service_account_issuer,
                weft_apiserver::DEFAULT_ISSUER.to_owned(),
            ),
            allow_unauthenticated_remote: layers
                .strongest(|l| api(l).allow_unauthenticated_remote, false),
            data_dir: layers.strongest(|l| api(l).data_dir.map(Some), None),
            salvage_data_dir: layers.strongest(|l| api(l).salvage_data_dir, false),
            unix_socket: layers.strongest(|l| api(l).unix_socket.map(Some), None),
            fault_endpoint: layers.strongest(|l| api(l).fault_endpoint, false),
            seed: layers.strongest(|l| api(l).seed.map(Some), None),
        };
        Self {
            file: None,
            log,
            apiserver,
        }
    }
}

#[derive(Default)]
struct Layers {
    flags: Layer,
    environment: Layer,
    file: Layer,
}

impl Layers {
    fn strongest<T>(&self, field: impl Fn(&Layer) -> Option<T>, default: T) -> Setting<T> {
        let ordered = [
            (Origin::Flag, &self.flags),
            (Origin::Environment, &self.environment),
            (Origin::File, &self.file),
        ];
        ordered
            .into_iter()
            .find_map(|(origin, layer)| {
                Some(Setting {
                    value: field(layer)?,
                    origin,
                })
            })
            .unwrap_or(Setting {
                value: default,
                origin: Origin::Default,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(level: Option<&str>) -> Layer {
        let mut layer = Layer::default();
        layer.log.level = level.map(|text| text.parse().unwrap());
        layer
    }

    #[test]
    fn the_strongest_source_wins_in_every_combination() {
        for given in 0..8 {
            let [flag, variable, file] = [4, 2, 1].map(|bit| given & bit != 0);
            let layers = Layers {
                flags: layer(flag.then_some("error")),
                environment: layer(variable.then_some("warn")),
                file: layer(file.then_some("debug")),
            };
            let expected = match (flag, variable, file) {
                (true, _, _) => ("error", Origin::Flag),
                (_, true, _) => ("warn", Origin::Environment),
                (_, _, true) => ("debug", Origin::File),
                _ => ("info", Origin::Default),
            };
            let Setting { value, origin } = Config::resolve(&layers).log.level;
            assert_eq!((value.to_string().as_str(), origin), expected);
        }
    }

    #[test]
    fn sources_are_chosen_for_each_setting_alone() {
        let mut layers = Layers {
            flags: layer(Some("trace")),
            ..Layers::default()
        };
        layers.file.log.format = Some(LogFormat::Json);
        let LogConfig { format, level } = Config::resolve(&layers).log;
        assert_eq!(
            (format.value, format.origin),
            (LogFormat::Json, Origin::File)
        );
        assert_eq!(level.origin, Origin::Flag);
    }
}
