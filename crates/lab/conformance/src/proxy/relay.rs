//! TCP relay that makes the API server reachable in a namespace.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    runtime::Handle,
};
use weft_testkit::lab::Namespace;

/// Listens on a namespace's loopback and forwards to the same port of the host's loopback. The port
/// is the same because the kubeconfig names it.
pub(crate) fn start(runtime: &Handle, namespace: &Namespace, port: u16) -> anyhow::Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = namespace
        .run(|| std::net::TcpListener::bind(address))
        .with_context(|| format!("cannot listen on {address} in {}", namespace.name()))?;
    listener.set_nonblocking(true)?;
    let _inside = runtime.enter();
    let listener = TcpListener::from_std(listener)?;
    runtime.spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(mut server) = TcpStream::connect(address).await else {
                    return;
                };
                // If one side closes the connection, so does the other.
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    Ok(())
}
