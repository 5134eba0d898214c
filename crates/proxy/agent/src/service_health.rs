//! Health checks of single Services, for load balancers that send traffic only to nodes with
//! endpoints: one port for each Service with `healthCheckNodePort`.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use axum::{
    Router,
    extract::State,
    http::{HeaderName, HeaderValue},
    response::Response,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use weft_listener::{ConnectionPool, Limits, Listener, descriptor_limit, serve};
use weft_model::{IpFamily, ObjectKey};
use weft_runtime::{EventLevel, EventNote};

use crate::{
    health::{ClockReading, HealthMonitor},
    pages::health_answer,
};

/// Number of ready endpoint addresses on this node, by Service and health check port.
pub type LocalEndpoints = BTreeMap<(ObjectKey, u16), usize>;

/// A port that cannot be opened. The next sync tries again.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for the health check of {service}")]
pub struct ListenError {
    /// The Service.
    pub service: ObjectKey,
    /// Address and port.
    pub address: SocketAddr,
    /// The cause.
    pub source: io::Error,
}

impl ListenError {
    /// The event about the Service.
    pub fn event(&self, node: &str) -> EventNote {
        let Self {
            service,
            address,
            source,
        } = self;
        EventNote {
            level: EventLevel::Warning,
            reason: "FailedToStartServiceHealthcheck",
            action: "Listen",
            note: format!(
                "node {node} failed to start healthcheck \"{service}\" on port {}: {source}",
                address.port()
            ),
        }
    }
}

/// The open ports of one family.
pub struct ServiceHealth {
    addresses: Vec<IpAddr>,
    health: HealthMonitor,
    open: BTreeMap<(ObjectKey, u16), Open>,
    /// Shared by all ports, for any number of Services.
    pool: ConnectionPool,
    /// Maximum number of sockets of all Services together.
    most_sockets: usize,
}

/// Health checks get one part in this many of the process's descriptors: programs, API connections
/// and pages need some as well. Each family has its own ports.
const DESCRIPTOR_SHARE: u64 = 4;

struct Open {
    endpoints: Arc<AtomicUsize>,
    /// Ends the servers when it is dropped.
    servers: DropGuard,
    /// Resolve when their sockets are closed.
    closed: Vec<oneshot::Receiver<()>>,
}

impl ServiceHealth {
    /// Without ports at first. They are opened on all addresses of the family, or on those that
    /// NodePorts are restricted to.
    pub fn new(family: IpFamily, restricted: Option<Vec<IpAddr>>, health: HealthMonitor) -> Self {
        // Half of the share for each of two families.
        let most = descriptor_limit() / DESCRIPTOR_SHARE / 2;
        Self {
            most_sockets: usize::try_from(most).unwrap_or(usize::MAX),
            addresses: restricted.unwrap_or_else(|| vec![any(family)]),
            health,
            open: BTreeMap::new(),
            pool: ConnectionPool::new("service health", Limits::PAGES),
        }
    }

    /// Limits the number of sockets, instead of a share of the process's descriptors.
    #[must_use]
    pub fn with_most_sockets(mut self, most: usize) -> Self {
        self.most_sockets = most;
        self
    }

    /// Closes the ports of deleted Services. Unlike [`sync`](Self::sync), this does not require
    /// that the rules are written.
    pub async fn close_unwanted(&mut self, wanted: &LocalEndpoints) {
        self.close(|key| !wanted.contains_key(key)).await;
    }

    /// Opens and closes ports and updates the numbers. Returns the ports that could not be opened.
    /// Must be called after each successful sync, within a tokio runtime.
    pub async fn sync(&mut self, wanted: &LocalEndpoints) -> Vec<ListenError> {
        self.close_unwanted(wanted).await;
        let mut failures = Vec::new();
        for (key, count) in wanted {
            if let Some(open) = self.open.get(key) {
                open.endpoints.store(*count, Relaxed);
                continue;
            }
            match self.listen(key, *count) {
                Ok(open) => {
                    self.open.insert(key.clone(), open);
                }
                Err(error) => failures.push(error),
            }
        }
        failures
    }

    /// Sets the addresses; open ports move there with the next sync.
    pub async fn set_addresses(&mut self, family: IpFamily, restricted: Option<Vec<IpAddr>>) {
        let addresses = restricted.unwrap_or_else(|| vec![any(family)]);
        if self.addresses != addresses {
            self.addresses = addresses;
            self.close(|_| true).await;
        }
    }

    /// Closes ports and waits until they are closed: another Service may need a port at once.
    async fn close(&mut self, which: impl Fn(&(ObjectKey, u16)) -> bool) {
        let closing: Vec<Open> = self
            .open
            .extract_if(.., |key, _| which(key))
            .map(|(_, open)| open)
            .collect();
        for open in closing {
            drop(open.servers);
            for closed in open.closed {
                // An error means that the sender was dropped, and the socket with it.
                let _closed = closed.await;
            }
        }
    }

    /// Opens a port on all addresses or on none: half a health check would confuse a load balancer.
    fn listen(&self, key: &(ObjectKey, u16), count: usize) -> Result<Open, ListenError> {
        let (service, port) = key;
        let open = self.open.values().map(|open| open.closed.len());
        if open.sum::<usize>() + self.addresses.len() > self.most_sockets
            && let Some(address) = self.addresses.first()
        {
            return Err(ListenError {
                service: service.clone(),
                address: SocketAddr::new(*address, *port),
                source: io::Error::other(format!(
                    "too many health checks: at most {} sockets",
                    self.most_sockets
                )),
            });
        }
        let mut sockets = Vec::new();
        for address in &self.addresses {
            let address = SocketAddr::new(*address, *port);
            let socket = listen(address).map_err(|source| ListenError {
                service: service.clone(),
                address,
                source,
            })?;
            sockets.push(socket);
        }
        let endpoints = Arc::new(AtomicUsize::new(count));
        let router = Router::new().fallback(check).with_state(Check {
            service: service.clone(),
            endpoints: endpoints.clone(),
            health: self.health.clone(),
        });
        let stop = CancellationToken::new();
        let closed = sockets.into_iter().map(|socket| {
            let (listener, closed) = NotifyOnClose::new(socket);
            let (router, pool) = (router.clone(), self.pool.clone());
            let stopped = stop.clone().cancelled_owned();
            tokio::spawn(async move { serve(listener, &pool, router, stopped).await });
            closed
        });
        Ok(Open {
            closed: closed.collect(),
            endpoints,
            servers: stop.drop_guard(),
        })
    }
}

fn any(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
        IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Each family has its own listener on the same port, so IPv6 must not bind IPv4.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(128)?;
    TcpListener::from_std(socket.into())
}

/// A listener that reports when it is closed. Fields are dropped in their order.
struct NotifyOnClose {
    tcp: TcpListener,
    _closed: oneshot::Sender<()>,
}

impl NotifyOnClose {
    fn new(tcp: TcpListener) -> (Self, oneshot::Receiver<()>) {
        let (sender, closed) = oneshot::channel();
        let listener = Self {
            tcp,
            _closed: sender,
        };
        (listener, closed)
    }
}

impl Listener for NotifyOnClose {
    type Stream = TcpStream;

    fn widen_backlog(&self) {
        self.tcp.widen_backlog();
    }

    async fn accept(&self) -> io::Result<TcpStream> {
        Listener::accept(&self.tcp).await
    }
}

#[derive(Clone)]
struct Check {
    service: ObjectKey,
    endpoints: Arc<AtomicUsize>,
    health: HealthMonitor,
}

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

async fn check(State(check): State<Check>) -> Response {
    let count = check.endpoints.load(Relaxed);
    let healthy = check
        .health
        .with(|health| health.is_healthy(ClockReading::now()));
    let body = body(&check.service, count, healthy);
    let mut response = health_answer(count != 0 && healthy, body);
    response
        .headers_mut()
        .insert(WEIGHT, HeaderValue::from(count));
    response
}

fn body(service: &ObjectKey, count: usize, healthy: bool) -> String {
    let namespace = service.namespace.as_deref().unwrap_or_default();
    let [namespace, name] = [namespace, &*service.name].map(serde_json::Value::from);
    format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace},\n\t\t\"name\": {name}\n\t}},\n\
         \t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    )
}
