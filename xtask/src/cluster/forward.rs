//! Connections from this machine's loopback into the cluster's network, through Unix sockets.
//!
//! The cluster has network namespaces that nothing outside is connected to. A process inside listens
//! at a socket in the file system; the one outside listens on loopback and connects to it.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    thread,
};

use anyhow::Context as _;

/// Serves a port of loopback by the socket at a path; returns the port.
pub(super) fn outside(path: &Path) -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen on 127.0.0.1")?;
    let port = listener.local_addr()?.port();
    let path = path.to_owned();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let path = path.clone();
            thread::spawn(move || {
                // A cluster that is not there yet refuses: the client sees a closed connection.
                if let Ok(server) = UnixStream::connect(&path) {
                    copy_both(&client, &server);
                }
            });
        }
    });
    Ok(port)
}

/// Serves the socket at a path by an address in this network namespace.
pub(super) fn inside(path: &Path, target: SocketAddr) -> anyhow::Result<()> {
    let _ = std::fs::remove_file(path);
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || {
                if let Ok(server) = TcpStream::connect(target) {
                    copy_both(&server, &client);
                }
            });
        }
    });
    Ok(())
}

/// Copies in both directions until both have ended.
fn copy_both(tcp: &TcpStream, unix: &UnixStream) {
    let (Ok(tcp_again), Ok(unix_again)) = (tcp.try_clone(), unix.try_clone()) else {
        return;
    };
    let back = thread::spawn(move || {
        copy(&unix_again, &tcp_again);
        let _ = tcp_again.shutdown(Shutdown::Write);
    });
    copy(tcp, unix);
    let _ = unix.shutdown(Shutdown::Write);
    let _ = back.join();
}

/// A connection that breaks ends like one that is closed.
fn copy(mut from: impl Read, mut to: impl Write) {
    let _ = io::copy(&mut from, &mut to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_through_both_sockets_and_back() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let path = std::env::temp_dir().join(format!("weft-forward-{}", std::process::id()));
        inside(&path, server.local_addr().unwrap()).unwrap();
        let port = outside(&path).unwrap();
        thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            let mut word = String::new();
            client.read_to_string(&mut word).unwrap();
            client.write_all(word.to_uppercase().as_bytes()).unwrap();
        });
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(b"weft").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "WEFT");
        std::fs::remove_file(&path).unwrap();
    }
}
