//! One of Weft's processes: started, stopped, killed, and started again when it ends by itself.

use std::{
    fs::File,
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    process::Child,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::{sync::watch, time::timeout};

use crate::place::Place;

/// How long a process has to end by itself.
const GRACE: Duration = Duration::from_secs(10);
/// How soon one that ended is started again. A kubelet waits longer.
const PAUSE: Duration = Duration::from_millis(500);

/// How a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentState {
    /// It runs.
    Running,
    /// It was stopped.
    Stopped,
    /// It ended by itself and is started again.
    Failed,
}

/// What is known of a process now.
#[derive(Clone, Debug, Serialize)]
pub struct AgentStatus {
    /// `node-1/proxy`
    pub name: String,
    /// Its node, if it is one of a node's.
    pub node: Option<String>,
    /// Which of Weft's parts it is.
    pub component: String,
    /// Its process number in the world.
    pub pid: Option<i32>,
    /// How it stands.
    pub state: AgentState,
    /// Since when.
    pub since: Timestamp,
    /// How often it was started.
    pub starts: u32,
}

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct AgentParts {
    pub(crate) node: Option<String>,
    pub(crate) component: String,
    pub(crate) line: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) place: Place,
    /// Where it writes.
    pub(crate) log: PathBuf,
}

/// A process that is kept running until it is told to stop.
#[derive(Clone, Debug)]
pub struct Agent(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    parts: AgentParts,
    status: watch::Sender<AgentStatus>,
    /// Counts starts and stops, so that whoever waits to start again knows that it is outdated.
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

    /// What is known of it now.
    pub fn status(&self) -> AgentStatus {
        self.0.status.borrow().clone()
    }

    /// Tells of changes.
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

    fn epoch(&self) -> std::sync::MutexGuard<'_, u64> {
        self.0.epoch.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Waits for its end, and starts it again unless that was wanted.
    fn follow(&self, mut child: Child, epoch: u64, runtime: &tokio::runtime::Handle) {
        // A process of ours can be waited for; if not, it is gone all the same.
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
            tracing::error!(%error, name = self.status().name, "cannot start it again");
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = self.status().pid.and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended by itself meanwhile.
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends it and waits until it has.
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

    /// Ends it and starts it again.
    pub async fn restart(&self) -> io::Result<()> {
        self.stop().await;
        self.start()
    }

    /// Kills it in the middle of whatever it does. It is started again.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }
}
