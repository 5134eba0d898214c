//! HTTP client of command-line tools for the Unix socket of a running daemon.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

/// Failure of a request to a daemon.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Connecting, writing or reading failed, or took too long.
    #[error("cannot reach the daemon on {}", path.display())]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The status is not 200.
    #[error("daemon answered {0}")]
    Refused(String),
    /// The body is not the expected JSON.
    #[error("cannot decode the daemon's answer")]
    Answer(#[from] serde_json::Error),
}

/// Limit of one request: longer than a part of a process may take to end.
const PATIENCE: Duration = Duration::from_secs(40);

/// Reads a page of a running daemon.
pub async fn socket_get<T: DeserializeOwned>(socket: &Path, page: &str) -> Result<T, SocketError> {
    request(socket, "GET", page).await
}

/// Sends a command to a running daemon, and reads the answer that follows when it is done.
pub async fn socket_post<T: DeserializeOwned>(socket: &Path, page: &str) -> Result<T, SocketError> {
    request(socket, "POST", page).await
}

async fn request<T: DeserializeOwned>(
    socket: &Path,
    method: &str,
    page: &str,
) -> Result<T, SocketError> {
    let failed = |source| SocketError::Socket {
        path: socket.to_owned(),
        source,
    };
    let answer = tokio::time::timeout(PATIENCE, exchange(socket, method, page)).await;
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let answer = answer.map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    if status.split_whitespace().nth(1) != Some("200") {
        return Err(SocketError::Refused(format!(
            "{status}: {}",
            body.trim_end()
        )));
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
