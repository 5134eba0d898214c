//! Configuration and main function of the command `apiserver`.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use weft_listener::PrivateSocket;

use crate::{
    auth::{AuthorizationMode, DEFAULT_ISSUER, SigningKey, SigningKeyError, TokenFileError, User},
    persistence::{OnDamage, PersistenceError},
    private_file,
    server::ApiServer,
    transport::ListenError,
};

/// Settings of the command.
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// HTTPS address.
    pub bind: SocketAddr,
    /// Plain HTTP address; `None` disables it.
    pub http: Option<SocketAddr>,
    /// Unix socket for plain HTTP. Only root and the user of this process can connect; both act as the
    /// administrator.
    pub unix_socket: Option<PathBuf>,
    /// File to write a kubeconfig of the administrator to.
    pub kubeconfig: Option<PathBuf>,
    /// Data directory; `None` keeps the state in memory only.
    pub data_dir: Option<PathBuf>,
    /// Starts with a damaged data directory, with the objects whose checksums match.
    pub salvage_data_dir: bool,
    /// Authorization mode.
    pub authorization_mode: AuthorizationMode,
    /// Ranges of cluster IPs; the default when empty.
    pub service_ranges: Vec<IpNet>,
    /// Static bearer tokens with their users.
    pub tokens: Vec<(String, User)>,
    /// File of further tokens, in the format of kube-apiserver's `--token-auth-file`.
    pub token_file: Option<PathBuf>,
    /// PEM file of the key that signs ServiceAccount tokens; a key is generated if unset.
    pub service_account_signing_key_file: Option<PathBuf>,
    /// Issuer of ServiceAccount tokens, and their default audience.
    pub service_account_issuer: String,
    /// Allows a non-loopback address in mode AlwaysAllow, where every client is administrator.
    pub allow_unauthenticated_remote: bool,
    /// Seed of names, UIDs and fault rates; never of keys and tokens.
    pub seed: Option<u64>,
    /// Serves the fault endpoint `/weft/faults`; an error in builds without the feature
    /// `fault-endpoint`.
    pub fault_endpoint: bool,
    /// Additional names in the server's certificate.
    pub names: Vec<String>,
}

impl RunConfig {
    /// HTTPS on this address, in memory, mode AlwaysAllow.
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            http: None,
            unix_socket: None,
            kubeconfig: None,
            data_dir: None,
            salvage_data_dir: false,
            authorization_mode: AuthorizationMode::default(),
            service_ranges: Vec::new(),
            tokens: Vec::new(),
            token_file: None,
            service_account_signing_key_file: None,
            service_account_issuer: DEFAULT_ISSUER.to_owned(),
            allow_unauthenticated_remote: false,
            seed: None,
            fault_endpoint: false,
            names: Vec::new(),
        }
    }
}

/// A failure to start the server.
#[derive(Debug, Error)]
pub enum RunError {
    /// An address or socket cannot be served.
    #[error("cannot listen")]
    Listen(#[from] ListenError),
    /// The data directory cannot be used.
    #[error("cannot open the data directory")]
    Persistence(#[from] PersistenceError),
    /// The token file cannot be used.
    #[error("cannot read --token-auth-file")]
    Tokens(#[from] TokenFileError),
    /// The key of ServiceAccount tokens cannot be used.
    #[error("cannot use --service-account-signing-key-file")]
    SigningKey(#[from] SigningKeyError),
    /// `fault_endpoint` is set in a build without the feature.
    #[error("cannot enable the fault endpoint: this build lacks the feature fault-endpoint")]
    NoFaultEndpoint,
    /// The kubeconfig cannot be written.
    #[error("cannot write kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// Of writing or renaming the file.
        source: std::io::Error,
    },
}

/// Time that a stopping server waits for open connections.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a server; it runs until it is dropped or shut down.
pub async fn start(config: RunConfig) -> Result<ApiServer, RunError> {
    let mut builder = ApiServer::builder()
        .authorization_mode(config.authorization_mode)
        .service_account_issuer(&config.service_account_issuer)
        .allow_unauthenticated_remote(config.allow_unauthenticated_remote);
    #[cfg(feature = "fault-endpoint")]
    {
        builder = builder.fault_endpoint(config.fault_endpoint);
    }
    if config.fault_endpoint && !cfg!(feature = "fault-endpoint") {
        return Err(RunError::NoFaultEndpoint);
    }
    let tokens_of_file = match &config.token_file {
        Some(path) => crate::auth::read_tokens(path)?,
        None => Vec::new(),
    };
    if let Some(path) = &config.service_account_signing_key_file {
        builder = builder.service_account_signing_key(SigningKey::read(path)?);
    }
    if let Some(seed) = config.seed {
        builder = builder.seed(seed);
    }
    if !config.service_ranges.is_empty() {
        builder = builder.service_ranges(config.service_ranges);
    }
    for (token, user) in config.tokens.into_iter().chain(tokens_of_file) {
        builder = builder.token(&token, user);
    }
    let mut server = match &config.data_dir {
        Some(directory) => {
            let on_damage = if config.salvage_data_dir {
                OnDamage::Salvage
            } else {
                OnDamage::Refuse
            };
            builder.on_damage(on_damage).open(directory)?
        }
        None => builder.build(),
    };
    server
        .listen(config.bind, config.http, &config.names)
        .await?;
    if let Some(path) = &config.unix_socket {
        server.serve_unix(bind_unix(path)?);
    }
    if let (Some(path), Some(listening)) = (&config.kubeconfig, server.listening()) {
        private_file::write(path, &listening.kubeconfig()).map_err(|source| {
            RunError::Kubeconfig {
                path: path.display().to_string(),
                source,
            }
        })?;
    }
    Ok(server)
}

/// Runs a server until `stop` is cancelled, then answers the requests in flight.
pub async fn run(config: RunConfig, stop: CancellationToken) -> Result<(), RunError> {
    let server = start(config).await?;
    if let Some(listening) = server.listening() {
        tracing::info!(address = %listening.https, "serving the Kubernetes API");
    }
    stop.cancelled().await;
    if !server.drain(DRAIN_TIMEOUT).await {
        tracing::warn!(timeout = ?DRAIN_TIMEOUT, "connections still open after the drain timeout");
    }
    Ok(())
}

fn bind_unix(path: &Path) -> Result<PrivateSocket, ListenError> {
    PrivateSocket::bind(path).map_err(|source| ListenError::Bind {
        address: path.display().to_string(),
        source,
    })
}
