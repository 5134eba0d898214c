//! A client that opens connections to a Service all the time, and counts those that failed.
//!
//! It is a process of its own, since it lives in the network of a node.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::node::Node;

/// Pause between two requests.
const PERIOD: Duration = Duration::from_millis(25);
/// A request that takes longer has failed: a lost SYN is sent again after a second.
const LIMIT: Duration = Duration::from_millis(900);

/// A client that runs.
pub(super) struct Traffic(Child);

/// Counts of a client's connections.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) requests: u32,
    pub(super) failed: u32,
    /// Between the first and the last request that failed.
    pub(super) failing_seconds: f64,
    /// The first failure.
    pub(super) error: Option<String>,
}

impl Traffic {
    /// Starts a client in the network of a node.
    pub(super) fn start(node: &Node, target: SocketAddr) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = node.in_network(program)?;
        command
            .args(["cluster-traffic", &target.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Ok(Self(command.spawn().context("cannot start the client")?))
    }

    /// Ends it and returns what it saw.
    pub(super) fn stop(mut self) -> anyhow::Result<Seen> {
        drop(self.0.stdin.take());
        let output = self
            .0
            .wait_with_output()
            .context("cannot wait for the client")?;
        serde_json::from_slice(&output.stdout).context("cannot read what the client saw")
    }
}

/// The hidden task: runs until its input ends.
pub(super) fn run(target: &str) -> anyhow::Result<()> {
    static ENDED: AtomicBool = AtomicBool::new(false);
    let target: SocketAddr = target
        .parse()
        .with_context(|| format!("{target} is not an address with a port"))?;
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ENDED.store(true, Ordering::Relaxed);
    });
    let mut seen = Seen::default();
    let mut first_failure: Option<Instant> = None;
    while !ENDED.load(Ordering::Relaxed) {
        let began = Instant::now();
        seen.requests += 1;
        if let Err(error) = request(target) {
            seen.failed += 1;
            let first = *first_failure.get_or_insert(began);
            seen.failing_seconds = began.duration_since(first).as_secs_f64();
            seen.error.get_or_insert_with(|| error.to_string());
        }
        thread::sleep(PERIOD.saturating_sub(began.elapsed()));
    }
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

fn request(target: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&target, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET /hostname HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.contains(" 200 OK") {
        return Ok(());
    }
    Err(std::io::Error::other("the answer is not 200 OK"))
}
