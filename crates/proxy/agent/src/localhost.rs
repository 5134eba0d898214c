//! TCP listeners for NodePorts on the loopback address, in the nftables mode.
//!
//! The kernel does not translate packets that go from loopback to elsewhere, so connections are
//! accepted here and copied to an endpoint. All clients have the same address: with session
//! affinity they share one endpoint.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use weft_listener::{Connection, ConnectionPool, Limits, accept, descriptor_limit};
use weft_model::{IpFamily, ObjectKey, Protocol, Random};
use weft_proxy::{Service, ServicePort};

use crate::metrics::ProxyMetrics;

/// Maximum number of connections to all NodePorts of a family; beyond it the oldest one is closed.
const CONNECTIONS: usize = 1_024;
/// Time to connect to an endpoint, as in kube-proxy.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Listeners get one part in this many of the process's descriptors.
const DESCRIPTOR_SHARE: u64 = 8;

/// NodePorts by number, with the Service that has each.
pub(crate) type LocalhostTargets = BTreeMap<u16, (ObjectKey, LocalhostTarget)>;

/// The destinations of a NodePort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalhostTarget {
    endpoints: Box<[SocketAddr]>,
    affinity: Option<Duration>,
}

/// The TCP NodePorts of a Service that have endpoints.
pub(crate) fn targets(service: &Service) -> impl Iterator<Item = (u16, LocalhostTarget)> + '_ {
    let ports = service.ports.iter();
    ports.filter_map(|port| Some((port.frontend.node_port?, target(port)?)))
}

fn target(port: &ServicePort) -> Option<LocalhostTarget> {
    let endpoints = if port.frontend.external_local {
        &port.local
    } else {
        &port.cluster
    };
    if port.frontend.protocol != Protocol::Tcp || endpoints.is_empty() {
        return None;
    }
    let affinity = port.frontend.affinity.map(u64::from);
    Some(LocalhostTarget {
        endpoints: endpoints.clone(),
        affinity: affinity.map(Duration::from_secs),
    })
}

/// The listeners of one family.
pub(crate) struct LocalhostPorts {
    family: IpFamily,
    metrics: ProxyMetrics,
    pool: ConnectionPool,
    open: BTreeMap<u16, Open>,
    most: usize,
}

struct Open {
    choice: Arc<Mutex<Choice>>,
    /// Ends listener and connections when it is dropped.
    _stop: DropGuard,
}

/// The choice of an endpoint for each connection.
#[derive(Debug)]
struct Choice {
    target: LocalhostTarget,
    pinned: Option<(SocketAddr, Instant)>,
    random: Random,
}

impl Choice {
    fn new(target: LocalhostTarget, seed: u64) -> Self {
        Self {
            target,
            pinned: None,
            random: Random::new(seed),
        }
    }

    fn update(&mut self, target: &LocalhostTarget) {
        if self.target.affinity != target.affinity {
            self.pinned = None;
        }
        self.target.clone_from(target);
    }

    /// The endpoint of a connection. Each one renews the affinity.
    fn next(&mut self, now: Instant) -> Option<SocketAddr> {
        let LocalhostTarget {
            endpoints,
            affinity,
        } = &self.target;
        let is_kept = |(endpoint, last): &(SocketAddr, Instant)| {
            affinity.is_some_and(|limit| now.duration_since(*last) <= limit)
                && endpoints.contains(endpoint)
        };
        let chosen = if let Some((endpoint, _)) = self.pinned.filter(is_kept) {
            endpoint
        } else {
            let count = u64::try_from(endpoints.len()).ok()?;
            let place = self.random.below(count);
            *endpoints.get(usize::try_from(place).ok()?)?
        };
        self.pinned = affinity.map(|_| (chosen, now));
        Some(chosen)
    }
}

impl LocalhostPorts {
    /// Without listeners at first.
    pub(crate) fn new(family: IpFamily, metrics: ProxyMetrics) -> Self {
        let limits = Limits {
            header: CONNECT_TIMEOUT,
            drain: Duration::ZERO,
            ..Limits::PAGES
        };
        Self {
            family,
            metrics,
            pool: ConnectionPool::new("localhost NodePorts", limits.with_connections(CONNECTIONS)),
            open: BTreeMap::new(),
            most: usize::try_from(descriptor_limit() / DESCRIPTOR_SHARE).unwrap_or(usize::MAX),
        }
    }

    /// Opens and closes listeners and updates their endpoints. Returns those that could not be
    /// opened, which the next sync tries again. Must be called within a tokio runtime.
    pub(crate) fn sync(&mut self, wanted: &LocalhostTargets) -> Vec<(ObjectKey, u16, io::Error)> {
        self.open.retain(|port, _| wanted.contains_key(port));
        let mut failures = Vec::new();
        for (port, (service, target)) in wanted {
            if let Some(open) = self.open.get(port) {
                let mut choice = open.choice.lock();
                choice.update(target);
                continue;
            }
            match self.listen(*port, target) {
                Ok(open) => {
                    self.open.insert(*port, open);
                }
                Err(error) => {
                    self.metrics.localhost_listener_failed(self.family);
                    failures.push((service.clone(), *port, error));
                }
            }
        }
        self.metrics
            .localhost_listeners(self.family, self.open.len());
        failures
    }

    fn listen(&self, port: u16, target: &LocalhostTarget) -> io::Result<Open> {
        if self.open.len() >= self.most {
            let problem = format!("too many NodePorts on localhost: at most {}", self.most);
            return Err(io::Error::other(problem));
        }
        let address: IpAddr = match self.family {
            IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
            IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
        };
        let listener = std::net::TcpListener::bind((address, port))?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let choice = Choice::new(target.clone(), port.into());
        let choice = Arc::new(Mutex::new(choice));
        let stop = CancellationToken::new();
        let (pool, stopped, shared) = (self.pool.clone(), stop.clone(), choice.clone());
        tokio::spawn(async move {
            let copy = |stream, connection| copy(stream, connection, shared.clone());
            accept(listener, &pool, stopped.cancelled_owned(), copy).await;
        });
        Ok(Open {
            choice,
            _stop: stop.drop_guard(),
        })
    }
}

/// Connects to an endpoint and copies in both directions until one side fails, both are done, or the
/// connection has to make room.
async fn copy(mut client: TcpStream, connection: Connection, choice: Arc<Mutex<Choice>>) {
    let endpoint = {
        let mut choice = choice.lock();
        choice.next(Instant::now())
    };
    let Some(endpoint) = endpoint else {
        return;
    };
    let connected = connection.handshake(TcpStream::connect(endpoint)).await;
    let Some(mut server) = connected else {
        return;
    };
    tokio::select! {
        () = connection.has_to_end() => {}
        _copied = copy_bidirectional(&mut client, &mut server) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prometheus_client::registry::Registry;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use weft_proxy::config::Mode;

    use super::*;

    fn endpoint(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 80))
    }

    fn target_of(endpoints: &[SocketAddr], affinity: Option<u64>) -> LocalhostTarget {
        LocalhostTarget {
            endpoints: endpoints.into(),
            affinity: affinity.map(Duration::from_secs),
        }
    }

    #[test]
    fn endpoints_are_drawn_and_affinity_keeps_one_until_it_expires_or_goes() {
        let all: Vec<SocketAddr> = (1..=3).map(endpoint).collect();
        let now = Instant::now();
        let mut choice = Choice::new(target_of(&all, None), 1);
        let drawn: BTreeSet<_> = (0..50).filter_map(|_| choice.next(now)).collect();
        assert_eq!(drawn, all.iter().copied().collect());

        let mut choice = Choice::new(target_of(&all, Some(10)), 1);
        let first = choice.next(now).unwrap();
        for second in 1..30 {
            // Each connection renews it.
            let time = now + Duration::from_secs(9 * second);
            assert_eq!(choice.next(time), Some(first));
        }
        let rest: Vec<SocketAddr> = all.iter().copied().filter(|one| *one != first).collect();
        choice.update(&target_of(&rest, Some(10)));
        let later = now + Duration::from_secs(9 * 29);
        let second = choice.next(later).unwrap();
        assert_ne!(second, first);
        let expired = |choice: &mut Choice, round: u64| {
            choice
                .next(later + Duration::from_secs(11 * round))
                .unwrap()
        };
        let found: BTreeSet<_> = (1..40).map(|round| expired(&mut choice, round)).collect();
        assert_eq!(
            found.len(),
            2,
            "it expires when nothing connects for longer"
        );
        choice.update(&target_of(&[], Some(10)));
        assert_eq!(choice.next(later), None);
    }

    /// A server that answers each connection with its name.
    async fn server(name: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                stream.write_all(name.as_bytes()).await.unwrap();
                tokio::spawn(async move {
                    let mut rest = Vec::new();
                    let _ = stream.read_to_end(&mut rest).await;
                });
            }
        });
        address
    }

    async fn said(port: u16, length: usize) -> io::Result<(TcpStream, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let mut text = vec![0; length];
        stream.read_exact(&mut text).await?;
        Ok((stream, String::from_utf8(text).unwrap()))
    }

    #[tokio::test]
    async fn a_node_port_is_served_follows_its_endpoints_and_ends_with_its_connections() {
        let mut registry = Registry::default();
        let metrics = ProxyMetrics::register(&mut registry, Mode::Nftables, Arc::new(()));
        metrics.register_localhost(&mut registry);
        let value = |registry: &Registry, name: &str| {
            let text = weft_runtime::prometheus_text(registry);
            let name =
                format!("kubeproxy_nftables_localhost_nodeport_{name}{{ip_family=\"IPv4\"}} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&*name));
            line.map(str::to_owned)
        };
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        let key = ObjectKey::namespaced("shop", "web");
        let [red, blue] = [server("red").await, server("blue").await];
        let wanted = |endpoint| {
            LocalhostTargets::from([(port, (key.clone(), target_of(&[endpoint], None)))])
        };
        let mut ports = LocalhostPorts::new(IpFamily::V4, metrics);

        let failures = ports.sync(&wanted(red));
        assert_eq!(failures.len(), 1, "the port is taken");
        assert_eq!(failures[0].0, key);
        assert_eq!(
            value(&registry, "listener_creation_failures_total").as_deref(),
            Some("1")
        );
        drop(free);
        assert!(ports.sync(&wanted(red)).is_empty());
        assert_eq!(value(&registry, "listeners").as_deref(), Some("1"));
        let (mut kept, name) = said(port, 3).await.unwrap();
        assert_eq!(name, "red");
        assert!(ports.sync(&wanted(blue)).is_empty());
        assert_eq!(said(port, 4).await.unwrap().1, "blue");
        kept.write_all(b"still there").await.unwrap();

        ports.sync(&LocalhostTargets::new());
        assert_eq!(value(&registry, "listeners").as_deref(), Some("0"));
        let ended = kept.read(&mut [0; 8]).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        assert!(said(port, 1).await.is_err());
    }
}
