//! Unix sockets for our own user and root, and the way to them for tools.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use axum::serve::Listener;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream, unix::SocketAddr},
};

/// A Unix socket that talks to root and to our own user.
#[derive(Debug)]
pub struct GuardedListener {
    listener: UnixListener,
    own: u32,
}

/// Whether the user of a connection may ask.
fn may_ask(user: u32, own: u32) -> bool {
    user == 0 || user == own
}

/// Whether somebody listens on a socket. A process that is gone, however it went, does not.
fn is_served(path: &Path) -> io::Result<bool> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

impl GuardedListener {
    /// Binds the path, which only our user can open. What an earlier process left is replaced, and
    /// anything else that is there is not touched, least of all a socket on which somebody answers.
    pub fn bind(path: &Path) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(directory)?;
        }
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                if is_served(path)? {
                    let reason = "another process answers there";
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, reason));
                }
                fs::remove_file(path)?;
            }
            Ok(_) => {
                let reason = "something that is no socket is there";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // Made under another name, so that nobody finds it before it is closed to others.
        let fresh = path.with_extension(format!("{}.new", std::process::id()));
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&fresh)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))?;
        fs::rename(&fresh, path)?;
        let own = rustix::process::geteuid().as_raw();
        Ok(Self { listener, own })
    }
}

impl Listener for GuardedListener {
    type Io = UnixStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (UnixStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => match stream.peer_cred() {
                    Ok(peer) if may_ask(peer.uid(), self.own) => return (stream, address),
                    Ok(peer) => tracing::warn!(user = peer.uid(), "refused a user on the socket"),
                    Err(error) => tracing::warn!(%error, "cannot tell who is on the socket"),
                },
                // Out of file descriptors, mostly: it passes.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept on the socket");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Why a daemon does not answer a tool.
#[derive(Debug, Error)]
pub enum AskError {
    /// The socket does not work.
    #[error("ask the daemon on {}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It says no.
    #[error("daemon answers {0}")]
    Refused(String),
    /// Its answer is not understood.
    #[error("read the daemon's answer")]
    Answer(#[from] serde_json::Error),
}

/// How long a tool waits: longer than a part of a process may take to end.
const PATIENCE: Duration = Duration::from_secs(40);

/// Reads a page of a running daemon.
pub async fn ask<T: DeserializeOwned>(socket: &Path, page: &str) -> Result<T, AskError> {
    answer(socket, "GET", page).await
}

/// Gives a running daemon an order, and reads what it says when that is carried out.
pub async fn order<T: DeserializeOwned>(socket: &Path, page: &str) -> Result<T, AskError> {
    answer(socket, "POST", page).await
}

async fn answer<T: DeserializeOwned>(
    socket: &Path,
    method: &str,
    page: &str,
) -> Result<T, AskError> {
    let failed = |source| AskError::Socket {
        path: socket.to_owned(),
        source,
    };
    let answer = tokio::time::timeout(PATIENCE, exchange(socket, method, page)).await;
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let answer = answer.map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    if status.split_whitespace().nth(1) != Some("200") {
        return Err(AskError::Refused(format!("{status}: {}", body.trim_end())));
    }
    Ok(serde_json::from_str(body)?)
}

/// HTTP/1.0, which has no chunks and ends with the connection.
async fn exchange(socket: &Path, method: &str, page: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket).await?;
    let request = format!("{method} {page} HTTP/1.0\r\nHost: weft\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_our_own_user_may_ask() {
        assert!(may_ask(0, 1000));
        assert!(may_ask(1000, 1000));
        assert!(!may_ask(1001, 1000));
        assert!(!may_ask(1, 0));
    }

    /// Connects as another user and waits for the other side to speak or to hang up.
    fn stranger(path: PathBuf) -> std::thread::JoinHandle<usize> {
        std::thread::spawn(move || {
            // Of this thread only.
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
            std::io::Read::read(&mut stream, &mut [0; 1]).unwrap()
        })
    }

    #[tokio::test]
    async fn another_user_is_refused_even_where_the_file_would_let_them_in() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: only root can be another user");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let mut listener = GuardedListener::bind(&path).unwrap();
        for (file, mode) in [(directory.path(), 0o755), (path.as_path(), 0o666)] {
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        }
        let accepted = tokio::spawn(async move { listener.accept().await });
        let stranger = tokio::task::spawn_blocking({
            let stranger = stranger(path.clone());
            move || stranger.join().unwrap()
        });
        assert_eq!(stranger.await.unwrap(), 0, "the daemon hangs up");
        assert!(!accepted.is_finished(), "and never saw the stranger");
        let _own = UnixStream::connect(&path).await.unwrap();
        accepted.await.unwrap();
    }
}
