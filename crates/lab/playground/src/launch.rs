//! From the user's shell into a world of its own, and out again.
//!
//! The world is a process in fresh network, mount and process namespaces (and a user namespace
//! where the user is not root). The end of that process is the end of every process and network in
//! it, however it comes about; what remains is a directory, in which the next start removes its files.

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
    doors::Doors,
    program::{command, find},
};

/// How long the world has to end by itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// What to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Where kubeconfig and logs go.
    pub directory: PathBuf,
    /// Where kubectl comes in; another port if it is taken and nobody insisted.
    pub api: Option<SocketAddr>,
    /// Where a browser comes in.
    pub page: Option<SocketAddr>,
    /// The arguments of this program that run the world.
    pub arguments: Vec<String>,
    /// As an ordinary user would, although we are root.
    pub rootless: bool,
}

/// Why there is no world.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// Programs that it takes.
    #[error("`{0}` is not installed; on Debian: apt-get install {1}")]
    Missing(&'static str, &'static str),
    /// The directory is not usable.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Nobody can come in.
    #[error("listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// No namespaces here.
    #[error("no network of its own can be made here: {said}{advice}")]
    Namespaces {
        /// What the system said.
        said: String,
        /// What may help.
        advice: &'static str,
    },
    /// The process cannot be started or followed.
    #[error("start the world")]
    Start(#[from] io::Error),
}

/// Ubuntu since 24.04 forbids what every other Debian allows, and hides it well.
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

/// What it takes, and the package that has it.
const PROGRAMS: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("mount", "util-linux"),
    ("sh", "dash"),
    ("iptables-restore", "iptables"),
];

/// A running world.
#[derive(Debug)]
pub struct Launched {
    child: Child,
    /// Closing it is the word to stop.
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
        let doors = Doors {
            api: listen(self.api, 6443)?,
            page: listen(self.page, 8088)?,
        };
        let flags = self.namespaces()?;
        let (outside, inside) = UnixStream::pair()?;
        doors.send(&outside)?;
        let mut command = command("setpriv");
        // Should this process be killed, the kernel kills `unshare`, and that its child.
        command
            .args(["--pdeathsig", "KILL", "unshare"])
            .args(flags)
            .arg("--")
            .arg(env::current_exe()?)
            .args(&self.arguments)
            .stdin(OwnedFd::from(inside));
        // The terminal's Ctrl-C is for us; the world is told by the socket.
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

/// The address that was asked for, or the usual port of loopback, or any.
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
    /// How the world ended, if it did.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Ends the world.
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

/// Where a user's playground is, unless another place is named.
pub fn usual_directory() -> PathBuf {
    env::temp_dir().join(format!("weft-up-{}", geteuid().as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_matters_only_to_who_asked_for_it() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert!(listen(None, address.port()).is_ok());
        assert!(matches!(
            listen(Some(address), 1),
            Err(LaunchError::Listen { .. })
        ));
    }
}
