//! A supervised process: started, stopped, killed, and restarted if it ends by itself.

use std::{
    fs::File, io, os::unix::fs::OpenOptionsExt as _, path::PathBuf, process::Child, sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::{sync::watch, time::timeout};

use crate::place::Place;

/// Time from SIGTERM until a process is killed.
const GRACE: Duration = Duration::from_secs(10);
/// Delay before a process that ended is restarted. A kubelet waits longer.
const PAUSE: Duration = Duration::from_millis(500);

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentState {
    /// The process runs.
    Running,
    /// It was stopped.
    Stopped,
    /// It ended by itself and will be restarted.
    Failed,
}

/// Current status of a process.
#[derive(Clone, Debug, Serialize)]
pub struct AgentStatus {
    /// Node and component, such as `node-1/proxy`.
    pub name: String,
    /// Its node; None for the controller.
    pub node: Option<String>,
    /// Component of Weft, such as `proxy`, or the name of a pod.
    pub component: String,
    /// Process ID in the PID namespace of the world.
    pub pid: Option<i32>,
    /// Current state.
    pub state: AgentState,
    /// Time of the last change of the state.
    pub since: Timestamp,
    /// Number of starts.
    pub starts: u32,
}

/// Command line and environment of a process.
#[derive(Clone, Debug)]
pub(crate) struct AgentParts {
    pub(crate) node: Option<String>,
    pub(crate) component: String,
    pub(crate) line: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) place: Place,
    /// Log file for its output, to which it appends.
    pub(crate) log: PathBuf,
}

/// A process that is kept running until it is stopped.
#[derive(Clone, Debug)]
pub struct Agent(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    parts: AgentParts,
    status: watch::Sender<AgentStatus>,
    /// Counts starts and stops, so that a pending restart can see that it is outdated.
    epoch: Mutex<u64>,
}

impl Agent {
    pub(crate) fn new(parts: AgentParts) -> Self {
        let name = match &parts.node {
            Some(node) => format!("{node}/{}", parts.component),
            None => parts.component.clone(),
        };
        let status = AgentStatus {
            name,
            node: parts.node.clone(),
            component: parts.component.clone(),
            pid: None,
            state: AgentState::Stopped,
            since: Timestamp::now(),
            starts: 0,
        };
        Self(Arc::new(Inner {
            parts,
            status: watch::Sender::new(status),
            epoch: Mutex::new(0),
        }))
    }

    /// Current status.
    pub fn status(&self) -> AgentStatus {
        self.0.status.borrow().clone()
    }

    /// Receiver of status changes.
    pub(crate) fn watch(&self) -> watch::Receiver<AgentStatus> {
        self.0.status.subscribe()
    }

    /// Starts it, unless it runs.
    pub fn start(&self) -> io::Result<()> {
        let mut epoch = self.epoch();
        if self.status().state == AgentState::Running {
            return Ok(());
        }
        *epoch += 1;
        self.spawn(*epoch)
    }

    fn epoch(&self) -> parking_lot::MutexGuard<'_, u64> {
        self.0.epoch.lock()
    }

    fn spawn(&self, epoch: u64) -> io::Result<()> {
        let parts = &self.0.parts;
        let log = File::options()
            .create(true)
            .append(true)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&parts.log)?;
        let mut command = parts.place.command(&parts.line);
        command
            .envs(parts.environment.iter().cloned())
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).unwrap_or_default();
        self.0.status.send_modify(|status| {
            status.pid = Some(pid);
            status.state = AgentState::Running;
            status.since = Timestamp::now();
            status.starts += 1;
        });
        let agent = self.clone();
        let runtime = tokio::runtime::Handle::current();
        std::thread::spawn(move || agent.follow(child, epoch, &runtime));
        Ok(())
    }

    /// Waits until it ends, and restarts it unless it was stopped.
    fn follow(&self, mut child: Child, epoch: u64, runtime: &tokio::runtime::Handle) {
        // Waiting for a child does not fail; if it did, the child would be gone too.
        let _ = child.wait();
        let wanted = *self.epoch() != epoch;
        self.0.status.send_modify(|status| {
            status.pid = None;
            status.since = Timestamp::now();
            status.state = if wanted {
                AgentState::Stopped
            } else {
                AgentState::Failed
            };
        });
        if wanted {
            return;
        }
        std::thread::sleep(PAUSE);
        let _inside = runtime.enter();
        let current = self.epoch();
        if *current == epoch
            && let Err(error) = self.spawn(epoch)
        {
            tracing::error!(%error, name = self.status().name, "cannot restart process");
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = self.status().pid.and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended meanwhile.
            let _ = kill_process(pid, signal);
        }
    }

    /// Stops it and waits until it has ended.
    pub async fn stop(&self) {
        {
            *self.epoch() += 1;
        }
        let mut status = self.watch();
        let stopped = async |status: &mut watch::Receiver<AgentStatus>| {
            let _ = status.wait_for(|status| status.pid.is_none()).await;
        };
        self.signal(Signal::TERM);
        if timeout(GRACE, stopped(&mut status)).await.is_err() {
            self.signal(Signal::KILL);
            stopped(&mut status).await;
        }
        self.0
            .status
            .send_modify(|status| status.state = AgentState::Stopped);
    }

    /// Stops and starts it.
    pub async fn restart(&self) -> io::Result<()> {
        self.stop().await;
        self.start()
    }

    /// Kills it with SIGKILL. It is restarted.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }
}
