//! The whole command: `weft apiserver`.

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

/// What the command is told.
#[derive(Debug, Clone)]
pub struct RunConfig {
    /// Where to serve HTTPS.
    pub bind: SocketAddr,
    /// Where to serve plain HTTP, if anywhere.
    pub http: Option<SocketAddr>,
    /// A Unix socket to serve plain HTTP on, for root and this user, who are the administrator.
    pub unix_socket: Option<PathBuf>,
    /// Where to write a kubeconfig for the administrator.
    pub kubeconfig: Option<PathBuf>,
    /// Where to keep state over restarts; memory only when absent.
    pub data_dir: Option<PathBuf>,
    /// Starts although the data directory is damaged, with what is whole of it.
    pub salvage_data_dir: bool,
    /// How rights are decided.
    pub authorization_mode: AuthorizationMode,
    /// Ranges of cluster IPs; the default when empty.
    pub service_ranges: Vec<IpNet>,
    /// More bearer tokens and whom they stand for.
    pub tokens: Vec<(String, User)>,
    /// A file of more of them, in the format of kube-apiserver.
    pub token_file: Option<PathBuf>,
    /// A PEM file with the key that signs ServiceAccount tokens; generated when absent.
    pub service_account_signing_key_file: Option<PathBuf>,
    /// The issuer of ServiceAccount tokens, and their audience unless they name another.
    pub service_account_issuer: String,
    /// Lets a server that allows everything listen on addresses other machines can reach.
    pub allow_unauthenticated_remote: bool,
    /// Makes names, identifiers and faults repeatable; never keys and tokens.
    pub seed: Option<u64>,
    /// Lets clients inject faults over HTTP; only for tests and playgrounds, and only in builds with
    /// the feature `fault-endpoint`.
    pub fault_endpoint: bool,
    /// More names for the server's certificate.
    pub names: Vec<String>,
}

impl RunConfig {
    /// HTTPS on an address and nothing else.
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

/// Why the command failed.
#[derive(Debug, Error)]
pub enum RunError {
    /// It cannot listen.
    #[error("cannot listen")]
    Listen(#[from] ListenError),
    /// It cannot keep or read its state.
    #[error("cannot open the data directory")]
    Persistence(#[from] PersistenceError),
    /// The file of tokens cannot be used.
    #[error("cannot read --token-auth-file")]
    Tokens(#[from] TokenFileError),
    /// The key of ServiceAccount tokens cannot be used.
    #[error("cannot use --service-account-signing-key-file")]
    SigningKey(#[from] SigningKeyError),
    /// Faults over HTTP are asked for.
    #[error("cannot enable the fault endpoint: this build lacks the feature fault-endpoint")]
    NoFaultEndpoint,
    /// The kubeconfig cannot be written.
    #[error("cannot write kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// How long a stopping server waits for its clients.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a server as configured; it runs until it is dropped or shut down.
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

/// Runs a server as configured until told to stop; then what is being answered is finished.
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
