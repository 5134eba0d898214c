use std::{
    ffi::OsString,
    fmt::Display,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use weft_proxy::config::{DecodeError, InvalidConfiguration};
use weft_runtime::FeatureGateError;

use super::ServiceRanges;
use crate::logging::{LogDirectives, LogFormat};

/// What one source says. The fields are the keys of the configuration file; clap fills the
/// sections from flags.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct Layer {
    pub(crate) log: LogLayer,
    pub(crate) apiserver: ApiserverLayer,
}

#[derive(Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct LogLayer {
    /// Write log lines as text or json, to stderr [env: WEFT_LOG_FORMAT] [default: text]
    #[arg(
        long = "log-format",
        global = true,
        value_name = "FORMAT",
        hide_possible_values = true
    )]
    pub(crate) format: Option<LogFormat>,
    /// Log what passes this filter: a level, or info,weft_runtime=debug
    /// [env: WEFT_LOG_LEVEL] [default: info]
    #[arg(long = "log-level", global = true, value_name = "FILTER")]
    pub(crate) level: Option<LogDirectives>,
}

#[derive(Debug, Default, Clone, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct ApiserverLayer {
    /// Serve HTTPS on this address; port 0 lets the system choose one
    /// [env: WEFT_APISERVER_BIND] [default: 127.0.0.1:6443]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) bind: Option<SocketAddr>,
    /// Write an administrator's kubeconfig to this file [env: WEFT_APISERVER_KUBECONFIG]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Let everyone do everything (AlwaysAllow), or ask the roles (RBAC)
    /// [env: WEFT_APISERVER_AUTHORIZATION_MODE] [default: AlwaysAllow]
    #[arg(long, value_name = "MODE", hide_possible_values = true)]
    pub(crate) authorization_mode: Option<Authorization>,
    /// Take cluster IPs from this network, or from two of different families, with a comma between
    /// [env: WEFT_APISERVER_SERVICE_CLUSTER_IP_RANGE] [default: 10.96.0.0/12]
    #[arg(long, value_name = "CIDRS")]
    pub(crate) service_cluster_ip_range: Option<ServiceRanges>,
    /// Accept the tokens of this file too: lines of token,user,uid,"group,group"
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
    /// Keep objects in this directory over restarts; without it they are gone with the process
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
    /// Serve plain HTTP on this Unix socket too: whoever may open it is the administrator
    /// [env: WEFT_APISERVER_UNIX_SOCKET]
    #[arg(long, value_name = "FILE")]
    pub(crate) unix_socket: Option<PathBuf>,
    /// Let clients cut watches, delay and refuse requests over HTTP
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

/// How rights are decided, in the spelling of kube-apiserver.
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

/// A source that says something wrong; the user's to correct.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("read the configuration file {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("understand the configuration file {}", path.display())]
    Parse {
        path: PathBuf,
        source: Box<serde_saphyr::Error>,
    },
    #[error("understand the KubeProxyConfiguration in {}", path.display())]
    ProxyFile { path: PathBuf, source: DecodeError },
    #[error("the configuration of the proxy is not valid")]
    Proxy(#[source] InvalidConfiguration),
    #[error("{0}")]
    Flag(String),
    #[error("set a feature gate")]
    Gate(#[source] FeatureGateError),
    #[error("environment variable {name}: {reason}")]
    Variable { name: &'static str, reason: String },
}

impl Layer {
    pub(crate) fn from_environment(environment: &Environment) -> Result<Self, ConfigError> {
        let log = LogLayer {
            format: environment.parse("WEFT_LOG_FORMAT")?,
            level: environment.parse("WEFT_LOG_LEVEL")?,
        };
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

    pub(crate) fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::from_yaml(&text).map_err(|source| ConfigError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }

    fn from_yaml(text: &str) -> Result<Self, serde_saphyr::Error> {
        // The excerpt that the parser could add repeats the message it illustrates.
        let options = serde_saphyr::options! { with_snippet: false };
        // A file of comments only is a YAML document without value: everything stays default.
        let layer: Option<Self> = serde_saphyr::from_str_with_options(text, options)?;
        Ok(layer.unwrap_or_default())
    }
}

/// Environment variables; a function, so that tests need not change the process's own.
pub(crate) struct Environment<'a>(Box<Read<'a>>);

type Read<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

impl<'a> Environment<'a> {
    pub(crate) fn new(read: impl Fn(&str) -> Option<OsString> + 'a) -> Self {
        Self(Box::new(read))
    }

    /// A variable that is a path. Empty counts as unset, as everywhere.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.read(name).map(PathBuf::from)
    }

    fn parse<T: FromStr<Err: Display>>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.read(name) else {
            return Ok(None);
        };
        let error = |reason| ConfigError::Variable { name, reason };
        let text = value
            .to_str()
            .ok_or_else(|| error("is not UTF-8".to_owned()))?;
        text.parse()
            .map(Some)
            .map_err(|reason: T::Err| error(reason.to_string()))
    }

    fn read(&self, name: &str) -> Option<OsString> {
        (self.0)(name).filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    use super::*;

    fn variables<'a>(given: &'a [(&'a str, &'a [u8])]) -> Environment<'a> {
        Environment::new(|name| {
            let value = given.iter().find(|(known, _)| *known == name)?.1;
            Some(OsStr::from_bytes(value).to_owned())
        })
    }

    #[test]
    fn a_wrong_variable_is_named() {
        for wrong in [b"xml".as_slice(), b"\xff"] {
            let given = [("WEFT_LOG_FORMAT", wrong)];
            let error = Layer::from_environment(&variables(&given)).unwrap_err();
            assert!(
                error.to_string().contains("variable WEFT_LOG_FORMAT"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        let given: [(&str, &[u8]); 1] = [("WEFT_LOG_LEVEL", b"")];
        let layer = Layer::from_environment(&variables(&given)).unwrap();
        assert_eq!(layer.log.level, None);
    }

    #[test]
    fn unknown_keys_of_a_file_are_errors_that_name_the_key() {
        for (text, key) in [("log:\n  levle: debug\n", "levle"), ("lgo: {}\n", "lgo")] {
            let error = Layer::from_yaml(text).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn a_file_may_be_empty_or_hold_comments_only() {
        for text in ["", "# nothing yet\n", "log:\n"] {
            let layer = Layer::from_yaml(text).unwrap();
            assert_eq!(
                (layer.log.format, layer.log.level),
                (None, None),
                "{text:?}"
            );
        }
    }
}
