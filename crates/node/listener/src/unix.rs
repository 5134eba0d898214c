//! Unix sockets that only root and the process's own user can use.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
    path::Path,
};

use socket2::SockRef;
use tokio::net::{UnixListener, UnixStream};

use crate::{Listener, accept::widen};

/// A Unix socket of mode 0600 whose peers are checked as well.
#[derive(Debug)]
pub struct PrivateSocket {
    listener: UnixListener,
    own: u32,
}

/// Returns whether a process of this user may connect.
fn may_connect(user: u32, own: u32) -> bool {
    user == 0 || user == own
}

/// Returns whether a process listens on a socket. After a kill the file remains, but no process
/// listens.
fn is_served(path: &Path) -> io::Result<bool> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

impl PrivateSocket {
    /// Binds the path; its directory is created if it is missing.
    ///
    /// A socket on which no process listens is replaced. A socket that is served, and a file that
    /// is not a socket, are left alone and are an error.
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
                    let reason = "another process listens on this socket";
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, reason));
                }
                fs::remove_file(path)?;
            }
            Ok(_) => {
                let reason = "the file is not a socket";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // Bound under another name and renamed when its mode is set, so that it cannot be opened
        // in between.
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

impl Listener for PrivateSocket {
    type Stream = UnixStream;

    fn widen_backlog(&self) {
        widen(&SockRef::from(&self.listener));
    }

    async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            match stream.peer_cred() {
                Ok(peer) if may_connect(peer.uid(), self.own) => return Ok(stream),
                Ok(peer) => tracing::warn!(
                    user = peer.uid(),
                    "connection refused: the peer is neither root nor the owner of the socket"
                ),
                Err(error) => {
                    tracing::warn!(%error, "connection refused: cannot read the peer's user");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn only_root_and_the_own_user_may_connect() {
        assert!(may_connect(0, 1000));
        assert!(may_connect(1000, 1000));
        assert!(!may_connect(1001, 1000));
        assert!(!may_connect(1, 0));
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        fs::write(&path, "data").unwrap();
        let refused = PrivateSocket::bind(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }

    #[tokio::test]
    async fn a_socket_is_its_owners_only_and_replaces_one_that_was_left_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let first = PrivateSocket::bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let taken = PrivateSocket::bind(&path).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        PrivateSocket::bind(&path).unwrap();
    }

    /// Connects as another user and reads until the other side closes.
    fn connect_as_another_user(path: PathBuf) -> std::thread::JoinHandle<usize> {
        std::thread::spawn(move || {
            // For this thread only.
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
            std::io::Read::read(&mut stream, &mut [0; 1]).unwrap()
        })
    }

    #[tokio::test]
    async fn another_user_is_refused_even_where_the_file_would_let_them_in() {
        if !rustix::process::geteuid().is_root() {
            assert!(
                std::env::var_os("CI").is_none(),
                "only root can be another user"
            );
            eprintln!("not run: only root can be another user");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = PrivateSocket::bind(&path).unwrap();
        for (file, mode) in [(directory.path(), 0o755), (path.as_path(), 0o666)] {
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        }
        let accepted = tokio::spawn(async move { listener.accept().await });
        let stranger = tokio::task::spawn_blocking({
            let stranger = connect_as_another_user(path.clone());
            move || stranger.join().unwrap()
        });
        assert_eq!(stranger.await.unwrap(), 0, "the connection is closed");
        assert!(!accepted.is_finished(), "and was not accepted");
        let _own = UnixStream::connect(&path).await.unwrap();
        accepted.await.unwrap().unwrap();
    }
}
