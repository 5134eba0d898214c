//! From the user's shell into a world of its own, and out again.
//!
//! The world is a process in fresh network, mount and process namespaces (and a user namespace
//! where the user is not root). The end of that process is the end of every process and network in
//! it, however it comes about; what remains is a directory, which the next start empties.

use std::{
    env, fs, io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{DirBuilderExt as _, MetadataExt as _},
            net::UnixStream,
            process::CommandExt as _,
        },
    },
    path::{Path, PathBuf},
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    process::geteuid,
};
use thiserror::Error;

use crate::{
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
    #[error("use {path}")]
    Directory {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody else's directory.
    #[error("{0} belongs to somebody else")]
    Foreign(PathBuf),
    /// There is one already.
    #[error("another playground is running in {0}")]
    Running(PathBuf),
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
        let lock = self.prepare_directory()?;
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

    /// An empty directory of our own that nobody else uses.
    fn prepare_directory(&self) -> Result<fs::File, LaunchError> {
        let directory = &self.directory;
        let failed = |source| LaunchError::Directory {
            path: directory.clone(),
            source,
        };
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(directory).map_err(failed)?;
        let metadata = fs::symlink_metadata(directory).map_err(failed)?;
        if !metadata.is_dir() || metadata.uid() != geteuid().as_raw() {
            return Err(LaunchError::Foreign(directory.clone()));
        }
        let lock = fs::File::create(directory.join("lock")).map_err(failed)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(LaunchError::Running(directory.clone()));
        }
        remove_leftovers(directory).map_err(failed)?;
        Ok(lock)
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

/// What an earlier run left. Its mounts are gone with its namespaces.
fn remove_leftovers(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() == "lock" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
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

    fn launch(directory: &Path) -> Launch {
        Launch {
            directory: directory.to_owned(),
            api: None,
            page: None,
            arguments: Vec::new(),
            rootless: false,
        }
    }

    #[test]
    fn what_an_earlier_run_left_is_removed_and_two_cannot_share_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("node-1/run")).unwrap();
        fs::write(directory.path().join("kubeconfig"), "old").unwrap();
        let lock = launch(directory.path()).prepare_directory().unwrap();
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "only the lock: {left:?}");
        let second = launch(directory.path()).prepare_directory();
        assert!(matches!(second, Err(LaunchError::Running(_))));
        drop(lock);
        launch(directory.path()).prepare_directory().unwrap();
    }

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
