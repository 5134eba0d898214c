//! Sockets.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
};
use tokio_rustls::{TlsAcceptor, rustls};

use super::{
    subject,
    tls::{Authority, Identity},
};
use crate::{api::Api, auth::User};

/// Streams one HTTP/2 connection may have, as the real server advertises.
const MAX_STREAMS: u32 = 100;

/// Why a server cannot listen.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The address cannot be bound.
    #[error("bind {address}")]
    Bind {
        /// The address asked for.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A certificate cannot be made.
    #[error("make certificate")]
    Certificate(#[from] rcgen::Error),
    /// TLS cannot be set up.
    #[error("set up TLS")]
    Tls(#[from] rustls::Error),
    /// Client certificates cannot be checked.
    #[error("set up the check of client certificates")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Where a server listens and how to get in.
#[derive(Debug, Clone)]
pub struct Listening {
    /// The HTTPS address.
    pub https: SocketAddr,
    /// The plain HTTP address, if there is one.
    pub http: Option<SocketAddr>,
    /// The authority of the server's certificate, as PEM.
    pub ca: String,
    /// A bearer token of the administrator.
    pub token: String,
    admin: Identity,
}

impl Listening {
    /// A kubeconfig for the administrator, with client certificate, as YAML.
    pub fn kubeconfig(&self) -> String {
        let encode = |text: &str| STANDARD.encode(text);
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: weft\nclusters:\n- name: weft\n  \
             cluster:\n    server: https://{}\n    certificate-authority-data: {}\ncontexts:\n- \
             name: weft\n  context:\n    cluster: weft\n    user: admin\nusers:\n- name: admin\n  \
             user:\n    client-certificate-data: {}\n    client-key-data: {}\n",
            self.https,
            encode(&self.ca),
            encode(&self.admin.certificate),
            encode(&self.admin.key),
        )
    }

    /// A configuration for `kube::Client`, over HTTPS as the administrator.
    pub fn kube_config(&self) -> kube::Config {
        let uri = format!("https://{}", self.https).parse();
        let mut config = kube::Config::new(uri.unwrap_or_default());
        config.root_cert = pem_der(&self.ca).map(|der| vec![der]);
        config.auth_info.token = Some(self.token.clone().into());
        config
    }
}

fn pem_der(pem: &str) -> Option<Vec<u8>> {
    let body: String = pem
        .lines()
        .filter(|line| !line.starts_with("-----"))
        .collect();
    STANDARD.decode(body).ok()
}

pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    let failed = |source| ListenError::Bind {
        address: address.to_string(),
        source,
    };
    TcpListener::bind(address).await.map_err(failed)
}

/// Serves HTTPS on one listener and plain HTTP on another.
pub(crate) fn start(
    api: &Arc<Api>,
    https: TcpListener,
    http: Option<TcpListener>,
    extra_names: &[String],
) -> Result<Listening, ListenError> {
    let local = |listener: &TcpListener| {
        listener.local_addr().map_err(|source| ListenError::Bind {
            address: "listener".to_owned(),
            source,
        })
    };
    let authority = Authority::generate()?;
    let address = local(&https)?;
    let http_address = http.as_ref().map(local).transpose()?;
    let mut names: Vec<String> = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
    ]
    .into_iter()
    .map(str::to_owned)
    .collect();
    names.extend_from_slice(extra_names);
    let addresses = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        "::1".parse().unwrap_or(address.ip()),
        address.ip(),
    ];
    let acceptor = TlsAcceptor::from(Arc::new(authority.server(&names, &addresses)?));
    let token = format!("weft-admin-{}", api.random.hex());
    api.authenticator.add_token(token.clone(), User::admin());
    let admin = authority.client("kubernetes-admin", crate::auth::MASTERS)?;
    let accepting = accept_tls(api.clone(), https, acceptor);
    api.connections.spawn(accepting);
    if let Some(http) = http {
        api.connections.spawn(accept_plain(api.clone(), http));
    }
    Ok(Listening {
        https: address,
        http: http_address,
        ca: authority.pem,
        token,
        admin,
    })
}

async fn accept_tls(api: Arc<Api>, listener: TcpListener, acceptor: TlsAcceptor) {
    loop {
        let accepted = tokio::select! {
            () = api.shutdown.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Some(stream) = settle(accepted.map(|(stream, _)| stream)).await else {
            continue;
        };
        let (api, acceptor) = (api.clone(), acceptor.clone());
        // Small answers must not wait for more to come.
        let _ = stream.set_nodelay(true);
        let connections = api.connections.clone();
        connections.spawn(async move {
            match acceptor.accept(stream).await {
                Ok(stream) => {
                    let certificates = stream.get_ref().1.peer_certificates();
                    let user = certificates
                        .and_then(|chain| chain.first())
                        .and_then(|certificate| subject::user(certificate));
                    connection(api, stream, user).await;
                }
                Err(error) => tracing::debug!(%error, "TLS handshake failed"),
            }
        });
    }
}

/// Serves plain HTTP on a TCP listener.
pub(crate) async fn accept_plain(api: Arc<Api>, listener: TcpListener) {
    loop {
        let accepted = tokio::select! {
            () = api.shutdown.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Some(stream) = settle(accepted.map(|(stream, _)| stream)).await else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        api.connections.spawn(connection(api.clone(), stream, None));
    }
}

/// Serves plain HTTP on a Unix socket; whoever may open the file is the administrator.
pub(crate) async fn accept_unix(api: Arc<Api>, listener: UnixListener) {
    loop {
        let accepted = tokio::select! {
            () = api.shutdown.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Some(stream) = settle(accepted.map(|(stream, _)| stream)).await else {
            continue;
        };
        let serving = connection(api.clone(), stream, Some(User::admin()));
        api.connections.spawn(serving);
    }
}

/// An accepted connection; a failure (out of descriptors) is waited out.
async fn settle<T>(accepted: std::io::Result<T>) -> Option<T> {
    match accepted {
        Ok(stream) => Some(stream),
        Err(error) => {
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            None
        }
    }
}

async fn connection<S>(api: Arc<Api>, stream: S, user: Option<User>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shutdown = api.shutdown.clone();
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        if let Some(user) = &user
            && !request.headers().contains_key(http::header::AUTHORIZATION)
        {
            request.extensions_mut().insert(user.clone());
        }
        api.clone().serve(request)
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(MAX_STREAMS);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let outcome = tokio::select! {
        outcome = &mut serving => outcome,
        () = shutdown.cancelled() => {
            // Watches end by themselves; what is being answered is finished.
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "connection ended");
    }
}
