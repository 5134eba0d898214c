//! The settings of `weft-lab`: logging and the API server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use weft_program::config::{ConfigError, Environment, Layer, Layers, LogLayer, Setting, Settings};

use crate::service_ranges::ServiceRanges;

/// The settings as one source gives them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct LabLayer {
    pub(crate) log: LogLayer,
    pub(crate) apiserver: ApiserverLayer,
}

#[derive(Debug, Default, Clone, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct ApiserverLayer {
    /// Address of the HTTPS listener; port 0 lets the system choose one
    /// [env: WEFT_APISERVER_BIND] [default: 127.0.0.1:6443]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) bind: Option<SocketAddr>,
    /// File for the administrator's kubeconfig, which is written at start [env: WEFT_APISERVER_KUBECONFIG]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Authorization: AlwaysAllow (every client may do everything) or RBAC
    /// [env: WEFT_APISERVER_AUTHORIZATION_MODE] [default: AlwaysAllow]
    #[arg(long, value_name = "MODE", hide_possible_values = true)]
    pub(crate) authorization_mode: Option<Authorization>,
    /// CIDR of cluster IPs, or two of different families separated by a comma
    /// [env: WEFT_APISERVER_SERVICE_CLUSTER_IP_RANGE] [default: 10.96.0.0/12]
    #[arg(long, value_name = "CIDRS")]
    pub(crate) service_cluster_ip_range: Option<ServiceRanges>,
    /// File of accepted bearer tokens: lines of token,user,uid,"group,group"
    /// [env: WEFT_APISERVER_TOKEN_AUTH_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_auth_file: Option<PathBuf>,
    /// PEM file with the private key that signs ServiceAccount tokens, RSA or P-256; generated if
    /// unset, and kept in --data-dir [env: WEFT_APISERVER_SERVICE_ACCOUNT_SIGNING_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) service_account_signing_key_file: Option<PathBuf>,
    // Not a doc comment: rustdoc would ask for a link.
    #[arg(
        long,
        value_name = "URL",
        help = "Issuer of ServiceAccount tokens, and their audience unless they name another \
                [env: WEFT_APISERVER_SERVICE_ACCOUNT_ISSUER] [default: https://kubernetes.default.svc]"
    )]
    pub(crate) service_account_issuer: Option<String>,
    /// Allow --bind on a non-loopback address with AlwaysAllow (no authorization: every client that
    /// can connect is administrator) [env: WEFT_APISERVER_ALLOW_UNAUTHENTICATED_REMOTE] [default: false]
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true,
        value_name = "BOOLEAN"
    )]
    pub(crate) allow_unauthenticated_remote: Option<bool>,
    /// Directory that keeps objects over restarts; without it they are lost with the process
    /// [env: WEFT_APISERVER_DATA_DIR]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Start from a damaged --data-dir: move the damaged file aside and keep the objects whose
    /// checksums match [env: WEFT_APISERVER_SALVAGE_DATA_DIR] [default: false]
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true,
        value_name = "BOOLEAN"
    )]
    pub(crate) salvage_data_dir: Option<bool>,
    /// Unix socket that serves plain HTTP too: every process that may open it is administrator
    /// [env: WEFT_APISERVER_UNIX_SOCKET]
    #[arg(long, value_name = "FILE")]
    pub(crate) unix_socket: Option<PathBuf>,
    /// Serve the HTTP endpoint that makes the server cut watches, delay and refuse requests
    /// [env: WEFT_APISERVER_FAULT_ENDPOINT] [default: false]
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true,
        value_name = "BOOLEAN"
    )]
    pub(crate) fault_endpoint: Option<bool>,
    /// Seed for names, identifiers and faults; keys and tokens are always random
    /// [env: WEFT_APISERVER_SEED]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
}

/// Authorization modes in the spelling of kube-apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Authorization {
    #[value(name = "AlwaysAllow")]
    AlwaysAllow,
    #[value(name = "RBAC")]
    #[serde(rename = "RBAC")]
    Rbac,
}

impl FromStr for Authorization {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false)
            .map_err(|_| format!("`{text}` is neither AlwaysAllow nor RBAC"))
    }
}

impl Layer for LabLayer {
    fn log(&self) -> &LogLayer {
        &self.log
    }

    fn of_log(log: LogLayer) -> Self {
        Self {
            log,
            ..Self::default()
        }
    }

    fn from_environment(environment: &Environment) -> Result<Self, ConfigError> {
        let log = LogLayer::from_environment(environment)?;
        let apiserver = ApiserverLayer {
            bind: environment.parse("WEFT_APISERVER_BIND")?,
            kubeconfig: environment.path("WEFT_APISERVER_KUBECONFIG"),
            authorization_mode: environment.parse("WEFT_APISERVER_AUTHORIZATION_MODE")?,
            service_cluster_ip_range: environment
                .parse("WEFT_APISERVER_SERVICE_CLUSTER_IP_RANGE")?,
            token_auth_file: environment.path("WEFT_APISERVER_TOKEN_AUTH_FILE"),
            service_account_signing_key_file: environment
                .path("WEFT_APISERVER_SERVICE_ACCOUNT_SIGNING_KEY_FILE"),
            service_account_issuer: environment.parse("WEFT_APISERVER_SERVICE_ACCOUNT_ISSUER")?,
            allow_unauthenticated_remote: environment
                .parse("WEFT_APISERVER_ALLOW_UNAUTHENTICATED_REMOTE")?,
            data_dir: environment.path("WEFT_APISERVER_DATA_DIR"),
            salvage_data_dir: environment.parse("WEFT_APISERVER_SALVAGE_DATA_DIR")?,
            unix_socket: environment.path("WEFT_APISERVER_UNIX_SOCKET"),
            fault_endpoint: environment.parse("WEFT_APISERVER_FAULT_ENDPOINT")?,
            seed: environment.parse("WEFT_APISERVER_SEED")?,
        };
        Ok(Self { log, apiserver })
    }
}

/// Effective settings of `weft-lab apiserver`.
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

impl ApiserverConfig {
    /// All settings of the program with their sources, in the order of the file.
    pub(crate) fn settings(layers: &Layers<LabLayer>) -> Settings {
        let mut settings = Settings::default();
        layers.log().push(&mut settings);
        let apiserver = Self::resolve(layers);
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

    /// The value of each setting from its strongest source, or its default.
    pub(crate) fn resolve(layers: &Layers<LabLayer>) -> Self {
        let api = |layer: &LabLayer| layer.apiserver.clone();
        Self {
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
        }
    }
}
