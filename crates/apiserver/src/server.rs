//! Public API of the library: builds a server, and gives access to it in process or over sockets.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use weft_listener::{ConnectionPool, PrivateSocket};

use crate::{
    api::Api,
    auth::{
        Authenticator, AuthorizationMode, Authorizer, DEFAULT_ISSUER, SigningKey, TokenIssuer, User,
    },
    clock::Clock,
    controllers,
    fault::{FaultRules, Faults, OpenWatches},
    kind::Registry,
    persistence::{self, Journal, OnDamage, PersistenceError, Snapshot},
    pod_dialer::{PodDialer, PodPort},
    random::Random,
    rules::service::Allocator,
    stats::{RequestLog, Stats},
    store::Store,
    transport::{ListenError, Listening, MemoryService, listen},
};

/// Default range of cluster IPs.
const SERVICE_RANGE: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 12);

/// File of the ServiceAccount signing key in the data directory.
const SIGNING_KEY_FILE: &str = "service-account.key";

/// Default number of changes kept per kind, for watches and lists of older versions.
const HISTORY: usize = 10_000;

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Builder {
    seed: Option<u64>,
    history: usize,
    mode: AuthorizationMode,
    tokens: Vec<(String, User)>,
    service_ranges: Vec<IpNet>,
    fault_endpoint: bool,
    pod_dialer: Option<PodDialer>,
    on_damage: OnDamage,
    signing_key: Option<SigningKey>,
    issuer: String,
    allow_unauthenticated_remote: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            seed: None,
            history: HISTORY,
            mode: AuthorizationMode::default(),
            tokens: Vec::new(),
            service_ranges: vec![IpNet::V4(SERVICE_RANGE)],
            fault_endpoint: false,
            pod_dialer: None,
            on_damage: OnDamage::default(),
            signing_key: None,
            issuer: DEFAULT_ISSUER.to_owned(),
            allow_unauthenticated_remote: false,
        }
    }
}

impl Builder {
    /// Seeds names, UIDs, addresses and fault rates, so that a run is repeatable.
    ///
    /// Keys and tokens never depend on it: a client that knows the seed could compute them.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Number of changes kept per kind; watches from older versions are answered 410.
    #[must_use]
    pub fn history(mut self, changes: usize) -> Self {
        self.history = changes;
        self
    }

    /// Authorization mode; AlwaysAllow by default.
    #[must_use]
    pub fn authorization_mode(mut self, mode: AuthorizationMode) -> Self {
        self.mode = mode;
        self
    }

    /// Adds a static bearer token of a user.
    #[must_use]
    pub fn token(mut self, token: &str, user: User) -> Self {
        self.tokens.push((token.to_owned(), user));
        self
    }

    /// Sets the key that signs ServiceAccount tokens. By default one is generated, and kept in the
    /// data directory if there is one.
    #[must_use]
    pub fn service_account_signing_key(mut self, key: SigningKey) -> Self {
        self.signing_key = Some(key);
        self
    }

    /// Sets the issuer of ServiceAccount tokens, which is also their default audience.
    #[must_use]
    pub fn service_account_issuer(mut self, issuer: &str) -> Self {
        issuer.clone_into(&mut self.issuer);
        self
    }

    /// Allows non-loopback addresses in mode AlwaysAllow, where every client is administrator.
    #[must_use]
    pub fn allow_unauthenticated_remote(mut self, allowed: bool) -> Self {
        self.allow_unauthenticated_remote = allowed;
        self
    }

    /// Sets the ranges of cluster IPs: one, or one of each family for dual-stack Services.
    #[must_use]
    pub fn service_ranges(mut self, ranges: impl IntoIterator<Item = IpNet>) -> Self {
        self.service_ranges = ranges.into_iter().collect();
        self
    }

    /// Sets the function that connects `pods/proxy` to a port of a pod; without it, requests are
    /// answered 503.
    #[must_use]
    pub fn pod_dialer<F, S>(mut self, dial: impl Fn(PodPort) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.pod_dialer = Some(PodDialer::new(dial));
        self
    }

    /// Sets how [`Builder::open`] handles a damaged directory; an error by default.
    #[must_use]
    pub fn on_damage(mut self, on_damage: OnDamage) -> Self {
        self.on_damage = on_damage;
        self
    }

    /// Builds a server without sockets; [`ApiServer::client`] and [`ApiServer::service`] reach it.
    ///
    /// Must be called inside a tokio runtime, which runs the server's one background task.
    pub fn build(self) -> ApiServer {
        self.assemble(None, Snapshot::default())
    }

    /// Builds a server like [`Builder::build`], with its state persisted in a directory.
    pub fn open(mut self, directory: &Path) -> Result<ApiServer, PersistenceError> {
        let (journal, snapshot) = persistence::open(directory, self.on_damage)?;
        if self.signing_key.is_none() {
            self.signing_key = Some(SigningKey::kept_at(&directory.join(SIGNING_KEY_FILE))?);
        }
        Ok(self.assemble(Some(journal), snapshot))
    }

    /// Serves the fault endpoint `/weft/faults`; see `docs/apiserver.md`.
    #[cfg(feature = "fault-endpoint")]
    #[must_use]
    pub fn fault_endpoint(mut self, enabled: bool) -> Self {
        self.fault_endpoint = enabled;
        self
    }

    fn assemble(self, journal: Option<Journal>, snapshot: Snapshot) -> ApiServer {
        let key = self.signing_key.unwrap_or_else(|| {
            SigningKey::generate().expect("the operating system gives random bytes")
        });
        let accounts = TokenIssuer::new(key, self.issuer);
        let authenticator = Authenticator::new(self.tokens, accounts);
        let shutdown = CancellationToken::new();
        let api = Arc::new(Api {
            store: Store::new(self.history, journal),
            registry: Registry::new(),
            clock: Clock::start(),
            random: Random::new(self.seed),
            faults: FaultRules::new(self.seed),
            watches: OpenWatches::default(),
            requests: RequestLog::default(),
            authenticator,
            authorizer: Authorizer::new(self.mode),
            allocator: Allocator::new(self.service_ranges),
            shutdown: shutdown.clone(),
            connections: TaskTracker::new(),
            pool: ConnectionPool::new("apiserver", listen::LIMITS),
            wake_controllers: tokio::sync::Notify::new(),
            controller_queue: controllers::ControllerQueue::default(),
            event_expiry: crate::rules::event::Expiry::default(),
            policies: crate::admission::Policies::default(),
            definitions: crate::custom::Definitions::default(),
            write_lock: crate::write_lock::WriteLock::default(),
            rendering: crate::rendering::Rendering::default(),
            fault_endpoint: self.fault_endpoint,
            address: OnceLock::new(),
            pod_dialer: self.pod_dialer,
        });
        crate::bootstrap::restore(&api, snapshot);
        crate::bootstrap::create(&api);
        tokio::spawn(controllers::run(api.clone()));
        ApiServer {
            api,
            listening: None,
            allow_unauthenticated_remote: self.allow_unauthenticated_remote,
            _shutdown_on_drop: shutdown.drop_guard(),
        }
    }

    /// Builds a server that listens on free ports of 127.0.0.1, for HTTPS and for plain HTTP.
    pub async fn start(self) -> Result<ApiServer, ListenError> {
        let mut server = self.build();
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        server.listen(anywhere, Some(anywhere), &[]).await?;
        Ok(server)
    }
}

/// A running API server; dropping it ends every watch.
#[derive(Debug)]
pub struct ApiServer {
    pub(crate) api: Arc<Api>,
    listening: Option<Listening>,
    allow_unauthenticated_remote: bool,
    _shutdown_on_drop: DropGuard,
}

impl ApiServer {
    /// A builder with default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A client of the administrator that calls the server directly: no sockets, no threads, so tests
    /// can pause time.
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.service(User::admin()), "default")
    }

    /// A client like [`ApiServer::client`] that acts as a user.
    pub fn client_as(&self, user: User) -> kube::Client {
        kube::Client::new(self.service(user), "default")
    }

    /// The server as a tower service of HTTP requests, acting as a user.
    pub fn service(&self, user: User) -> MemoryService {
        MemoryService::new(self.api.clone(), user)
    }

    /// Serves HTTPS on one address and optionally plain HTTP on another. `names` are additional
    /// names in the certificate.
    ///
    /// In mode AlwaysAllow an address must be loopback, unless
    /// [`Builder::allow_unauthenticated_remote`] is set.
    pub async fn listen(
        &mut self,
        https: SocketAddr,
        http: Option<SocketAddr>,
        names: &[String],
    ) -> Result<&Listening, ListenError> {
        for address in [Some(https), http].into_iter().flatten() {
            self.check_address(address)?;
        }
        let https = listen::bind(https).await?;
        let http = match http {
            Some(address) => Some(listen::bind(address).await?),
            None => None,
        };
        self.listen_on(https, http, names)
    }

    /// Like [`ApiServer::listen`] on existing listeners, for instance of another network namespace.
    pub fn listen_on(
        &mut self,
        https: TcpListener,
        http: Option<TcpListener>,
        names: &[String],
    ) -> Result<&Listening, ListenError> {
        for listener in [Some(&https), http.as_ref()].into_iter().flatten() {
            self.check_address(listen::local_address(listener)?)?;
        }
        let listening = listen::start(&self.api, https, http, names)?;
        Ok(self.listening.insert(listening))
    }

    /// Refuses a non-loopback address in mode AlwaysAllow without `allow_unauthenticated_remote`.
    fn check_address(&self, address: SocketAddr) -> Result<(), ListenError> {
        let is_open = self.api.authorizer.mode == AuthorizationMode::AlwaysAllow
            && !address.ip().to_canonical().is_loopback();
        if is_open && !self.allow_unauthenticated_remote {
            return Err(ListenError::UnauthenticatedRemote(address));
        }
        Ok(())
    }

    /// Serves plain HTTP on another listener. The caller decides which clients can reach it: no
    /// address is refused here.
    pub fn serve_http(&self, listener: TcpListener) {
        let accepting = listen::accept_plain(self.api.clone(), listener);
        self.api.connections.spawn(accepting);
    }

    /// Serves plain HTTP on a Unix socket; its peers act as the administrator.
    pub fn serve_unix(&self, listener: PrivateSocket) {
        let accepting = listen::accept_unix(self.api.clone(), listener);
        self.api.connections.spawn(accepting);
    }

    /// The addresses of the server, once it listens.
    pub fn listening(&self) -> Option<&Listening> {
        self.listening.as_ref()
    }

    /// The handle for fault injection.
    pub fn faults(&self) -> Faults {
        Faults {
            api: self.api.clone(),
        }
    }

    /// Request log and counters.
    pub fn stats(&self) -> Stats {
        Stats {
            api: self.api.clone(),
        }
    }

    /// The newest resource version.
    pub fn resource_version(&self) -> u64 {
        self.api.store.version()
    }

    /// Ends every watch and stops listening; requests in flight are answered.
    pub fn shutdown(&self) {
        self.api.shutdown.cancel();
    }

    /// Shuts down and waits until every connection is closed; false when some are open after
    /// `limit`.
    pub async fn drain(&self, limit: Duration) -> bool {
        self.shutdown();
        self.api.connections.close();
        let closed = self.api.connections.wait();
        tokio::time::timeout(limit, closed).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, StatusCode};
    use tower::Service as _;

    use super::*;

    #[tokio::test]
    async fn with_a_broken_journal_writes_and_readiness_fail() {
        let server = Builder::default().assemble(Some(Journal::broken()), Snapshot::default());
        let version = server.resource_version();
        let send = async |method: &str, path: &str, body: &str| {
            let request = Request::builder().method(method).uri(path);
            let request = request.body(body.to_owned()).unwrap();
            let answer = server.service(User::admin()).call(request).await.unwrap();
            answer.status()
        };
        let maps = "/api/v1/namespaces/default/configmaps";
        let made = send("POST", maps, "{\"metadata\":{\"name\":\"a\"}}").await;
        assert_eq!(made, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(
            server.resource_version(),
            version,
            "the write is not visible"
        );
        assert_eq!(send("GET", maps, "").await, StatusCode::OK);
        for (path, status) in [
            ("/readyz", 500),
            ("/livez", 500),
            ("/healthz", 500),
            ("/livez?exclude=etcd", 200),
            ("/readyz?exclude=etcd", 500),
            ("/readyz/ping", 200),
            ("/readyz/etcd", 500),
            ("/readyz/etcd-readiness", 500),
            ("/readyz/informer-sync", 200),
        ] {
            assert_eq!(send("GET", path, "").await.as_u16(), status, "{path}");
        }
    }
}
