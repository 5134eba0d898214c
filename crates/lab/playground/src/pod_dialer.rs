//! Connections from the API server to pods, made inside their network namespaces as by a kubelet.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use weft_apiserver::PodPort;
use weft_host::namespace;
use weft_runtime::ObjectKey;

use crate::{node::Node, program::blocking};

/// Time limit of a connection, which never leaves the machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connects to pods of the nodes that exist at the time of the call. It keeps only a weak reference
/// to the nodes, because they hold clients of the server that holds this.
pub(crate) fn to_pods_of(
    nodes: &Arc<Mutex<BTreeMap<u8, Node>>>,
) -> impl Fn(PodPort) -> futures::future::BoxFuture<'static, io::Result<tokio::net::TcpStream>>
+ Send
+ Sync
+ 'static {
    let nodes = Arc::downgrade(nodes);
    move |target| Box::pin(dial(network_of(&nodes, &target), target.port))
}

fn network_of(nodes: &Weak<Mutex<BTreeMap<u8, Node>>>, target: &PodPort) -> Option<PathBuf> {
    let pod = ObjectKey::namespaced(&target.namespace, &target.name);
    let nodes = nodes.upgrade()?;
    let nodes = nodes.lock();
    nodes
        .values()
        .find_map(|node| node.kubelet.network_of(&pod))
}

async fn dial(network: Option<PathBuf>, port: u16) -> io::Result<tokio::net::TcpStream> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, "the pod is not running");
    let network = network.ok_or_else(missing)?;
    let stream = blocking(move || connect(&network, port)).await?;
    tokio::net::TcpStream::from_std(stream)
}

fn connect(network: &Path, port: u16) -> io::Result<TcpStream> {
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = namespace::within(network, || TcpStream::connect_timeout(&target, PATIENCE))??;
    stream.set_nonblocking(true)?;
    Ok(stream)
}
