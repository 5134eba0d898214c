//! Listeners of the API server: HTTPS, plain HTTP and a Unix socket.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_rustls::{TlsAcceptor, rustls};
use weft_listener::{
    Connection, HostCheck, Limits, Listener, MISDIRECTED, PrivateSocket, Protocols, RequestBody,
};

use super::{
    subject,
    tls::{Authority, Identity},
};
use crate::{api::Api, auth::User, reply::Body};

/// Connection limits of all listeners of a server together. Clients keep connections open for
/// watches, and nothing else in the process needs many file descriptors.
pub(crate) const LIMITS: Limits = Limits {
    connections: 16_384,
    descriptor_share: 2,
    header: Duration::from_secs(10),
    body: Duration::from_secs(60),
    stall: Duration::from_secs(60),
    ..Limits::PAGES
};

/// Concurrent streams per HTTP/2 connection, as kube-apiserver advertises.
const MAX_STREAMS: u32 = 100;

/// A failure to listen.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The address cannot be bound.
    #[error("cannot bind {address}")]
    Bind {
        /// The requested address or socket path.
        address: String,
        /// Of the system call.
        source: std::io::Error,
    },
    /// A non-loopback address in mode AlwaysAllow.
    #[error(
        "cannot listen on {0} with AlwaysAllow: every client that can connect would be \
         administrator; expected a loopback address, RBAC or --allow-unauthenticated-remote"
    )]
    UnauthenticatedRemote(SocketAddr),
    /// A certificate cannot be generated.
    #[error("cannot generate a certificate")]
    Certificate(#[from] rcgen::Error),
    /// TLS cannot be configured.
    #[error("cannot configure TLS")]
    Tls(#[from] rustls::Error),
    /// The verification of client certificates cannot be configured.
    #[error("cannot configure the verification of client certificates")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// Addresses of a server, and the administrator's credentials.
#[derive(Debug, Clone)]
pub struct Listening {
    /// The HTTPS address.
    pub https: SocketAddr,
    /// The plain HTTP address, if there is one.
    pub http: Option<SocketAddr>,
    /// PEM of the CA that issued the server's certificate.
    pub ca: String,
    admin: Identity,
}

impl Listening {
    /// A kubeconfig with the administrator's client certificate, as YAML.
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

    /// A configuration of `kube::Client`: HTTPS with the administrator's client certificate.
    pub fn kube_config(&self) -> kube::Config {
        let uri = format!("https://{}", self.https).parse();
        let mut config = kube::Config::new(uri.unwrap_or_default());
        config.root_cert = pem_der(&self.ca).map(|der| vec![der]);
        config.auth_info.client_certificate_data = Some(STANDARD.encode(&self.admin.certificate));
        config.auth_info.client_key_data = Some(STANDARD.encode(&self.admin.key).into());
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

pub(crate) fn local_address(listener: &TcpListener) -> Result<SocketAddr, ListenError> {
    listener.local_addr().map_err(|source| ListenError::Bind {
        address: "listener".to_owned(),
        source,
    })
}

/// Serves HTTPS on one listener and plain HTTP on another.
pub(crate) fn start(
    api: &Arc<Api>,
    https: TcpListener,
    http: Option<TcpListener>,
    extra_names: &[String],
) -> Result<Listening, ListenError> {
    let authority = Authority::generate()?;
    let address = local_address(&https)?;
    let http_address = http.as_ref().map(local_address).transpose()?;
    // Discovery documents name the first address.
    let _ = api.address.set(address);
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
        admin,
    })
}

async fn accept_tls(api: Arc<Api>, listener: TcpListener, acceptor: TlsAcceptor) {
    let (pool, stop) = (api.pool.clone(), api.shutdown.clone());
    weft_listener::accept(listener, &pool, stop.cancelled(), |stream, connection| {
        let (api, acceptor) = (api.clone(), acceptor.clone());
        async move {
            let Some(stream) = connection.handshake(acceptor.accept(stream)).await else {
                return;
            };
            let certificates = stream.get_ref().1.peer_certificates();
            let user = certificates
                .and_then(|chain| chain.first())
                .and_then(|certificate| subject::user(certificate));
            serve(api, stream, connection, Client { user, check: None }).await;
        }
    })
    .await;
}

/// Serves plain HTTP on a TCP listener.
pub(crate) async fn accept_plain(api: Arc<Api>, listener: TcpListener) {
    // Protects against DNS rebinding: without a certificate, a web site could resolve its own name to
    // loopback and send requests by the browser.
    let check = listener.local_addr().ok().and_then(HostCheck::for_address);
    accept_http(api, listener, Client { user: None, check }).await;
}

/// Serves plain HTTP on a Unix socket; its peers act as the administrator.
pub(crate) async fn accept_unix(api: Arc<Api>, listener: PrivateSocket) {
    let client = Client {
        user: Some(User::admin()),
        check: None,
    };
    accept_http(api, listener, client).await;
}

async fn accept_http(api: Arc<Api>, listener: impl Listener, client: Client) {
    let (pool, stop) = (api.pool.clone(), api.shutdown.clone());
    weft_listener::accept(listener, &pool, stop.cancelled(), |stream, connection| {
        serve(api.clone(), stream, connection, client.clone())
    })
    .await;
}

/// Properties of a connection that apply to all its requests.
#[derive(Clone)]
struct Client {
    /// The user by client certificate or Unix socket; a bearer token takes precedence.
    user: Option<User>,
    check: Option<HostCheck>,
}

async fn serve<S>(api: Arc<Api>, stream: S, connection: Connection, client: Client)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: hyper::Request<RequestBody>| {
        let refused = client
            .check
            .is_some_and(|check| !check.accepts_request(request.uri(), request.headers()));
        if let Some(user) = &client.user
            && !request.headers().contains_key(http::header::AUTHORIZATION)
        {
            request.extensions_mut().insert(user.clone());
        }
        let api = api.clone();
        async move {
            if refused {
                return Ok(misdirected());
            }
            api.serve(request).await
        }
    });
    let protocols = Protocols::Http1And2 {
        concurrent_streams: MAX_STREAMS,
    };
    connection.serve_http(stream, protocols, service).await;
}

fn misdirected() -> http::Response<Body> {
    let body = Full::from(MISDIRECTED).map_err(Into::into).boxed_unsync();
    let mut response = http::Response::new(body);
    *response.status_mut() = http::StatusCode::MISDIRECTED_REQUEST;
    response
}
