//! Launcher: starts the world in namespaces of its own and stops it.
//!
//! The world is a process in new network, mount and PID namespaces (and a user namespace if the user
//! is not root). When that process ends, for whatever reason, the kernel ends every process and
//! network in it. Only a directory remains; the next start removes the files in it.

use std::{
    env, fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::PathBuf,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use rustix::process::geteuid;
use thiserror::Error;

use crate::{
    directory::{self, DirectoryError},
    listeners::Listeners,
    program::{command, find},
};

/// Time after which a stopping world is killed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Options of a playground.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Directory for kubeconfig and logs.
    pub directory: PathBuf,
    /// Address of the API server on the host. None selects loopback port 6443, or a free port if that
    /// is taken.
    pub api: Option<SocketAddr>,
    /// Address of the live page on the host. None selects loopback port 8088, or a free port.
    pub page: Option<SocketAddr>,
    /// Arguments with which this program runs the world.
    pub arguments: Vec<String>,
    /// True to use a user namespace even as root.
    pub rootless: bool,
}

/// The playground could not be started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// A program is missing.
    #[error("cannot find `{0}`: it is not installed; on Debian: apt-get install {1}")]
    Missing(&'static str, &'static str),
    /// The directory is not usable.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A listener could not be opened.
    #[error("cannot listen on {address}")]
    Listen {
        /// Requested or default address.
        address: SocketAddr,
        /// Error of the bind.
        source: io::Error,
    },
    /// Namespaces could not be created.
    #[error("cannot create namespaces: {said}{advice}")]
    Namespaces {
        /// Output of `unshare`.
        said: String,
        /// Hint for the user, on a line of its own; may be empty.
        advice: &'static str,
    },
    /// The process of the world could not be started.
    #[error("cannot start the playground process")]
    Start(#[from] io::Error),
}

/// A hint why namespaces cannot be created. Ubuntu since 24.04 restricts user namespaces by AppArmor.
fn advice() -> &'static str {
    let restricted = fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
    if restricted.is_ok_and(|value| value.trim() == "1") {
        "\nAppArmor forbids user namespaces to ordinary users here (Ubuntu 24.04 and newer). Run as root, \
         or: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    } else if !geteuid().is_root() {
        "\nRunning as root works without user namespaces."
    } else {
        ""
    }
}

/// Required programs and their Debian packages.
const PROGRAMS: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("mount", "util-linux"),
    ("sh", "dash"),
    ("nft", "nftables"),
];

/// A running world.
#[derive(Debug)]
pub struct Launched {
    child: Child,
    /// Closing it stops the world.
    socket: Option<UnixStream>,
    _lock: fs::File,
}

impl Launch {
    /// Starts the world.
    pub fn start(&self) -> Result<Launched, LaunchError> {
        for (program, package) in PROGRAMS {
            if find(program).is_none() {
                return Err(LaunchError::Missing(program, package));
            }
        }
        let lock = directory::prepare(&self.directory)?;
        let listeners = Listeners {
            api: listen(self.api, 6443)?,
            page: listen(self.page, 8088)?,
        };
        let flags = self.namespaces()?;
        let (outside, inside) = UnixStream::pair()?;
        listeners.send(&outside)?;
        let mut command = command("setpriv");
        // Should this process be killed, the kernel kills `unshare`, and that its child.
        command
            .args(["--pdeathsig", "KILL", "unshare"])
            .args(flags)
            .arg("--")
            .arg(env::current_exe()?)
            .args(&self.arguments)
            .stdin(OwnedFd::from(inside));
        // Ctrl-C of the terminal goes to this process only; the socket stops the world.
        command.process_group(0);
        Ok(Launched {
            child: command.spawn()?,
            socket: Some(outside),
            _lock: lock,
        })
    }

    /// The flags of `unshare` that work here.
    fn namespaces(&self) -> Result<&'static [&'static str], LaunchError> {
        const ALL: [&str; 7] = [
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--user",
            "--map-root-user",
        ];
        let works = |flags: &[&str]| {
            let mut probe = command("unshare");
            probe
                .args(flags)
                .args(["--", "mount", "-t", "tmpfs", "tmpfs", "/run"]);
            match probe.output() {
                Ok(output) if output.status.success() => Ok(()),
                Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
                Err(error) => Err(error.to_string()),
            }
        };
        if geteuid().is_root() && !self.rootless && works(&ALL[..5]).is_ok() {
            return Ok(&ALL[..5]);
        }
        works(&ALL).map_err(|said| LaunchError::Namespaces {
            said,
            advice: advice(),
        })?;
        Ok(const { &ALL })
    }
}

/// Listens on the requested address, or else on the default port of loopback, or else on a free port.
fn listen(asked: Option<SocketAddr>, usual: u16) -> Result<TcpListener, LaunchError> {
    let address = asked.unwrap_or_else(|| (Ipv4Addr::LOCALHOST, usual).into());
    let bound = TcpListener::bind(address);
    let bound = match (bound, asked) {
        (Err(_), None) => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)),
        (bound, _) => bound,
    };
    bound.map_err(|source| LaunchError::Listen { address, source })
}

impl Launched {
    /// Exit status of the world, if it has ended.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Stops the world, and kills it if that takes too long.
    pub fn stop(mut self) -> io::Result<ExitStatus> {
        drop(self.socket.take());
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // Also where waiting failed: nothing of the world may remain.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Default directory of a user's playground.
pub fn usual_directory() -> PathBuf {
    env::temp_dir().join(format!("weft-up-{}", geteuid().as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_an_error_only_if_it_was_requested() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert!(listen(None, address.port()).is_ok());
        assert!(matches!(
            listen(Some(address), 1),
            Err(LaunchError::Listen { .. })
        ));
    }
}
