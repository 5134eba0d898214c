//! A thousand new connections per second through one Service, to find gaps in traffic.

use std::{
    io::Read as _,
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::net::sockopt::set_socket_linger;
use weft_testkit::lab::Namespace;

const INTERVAL: Duration = Duration::from_millis(1);
/// A connection that is not answered in this time is lost.
const TIMEOUT: Duration = Duration::from_millis(20);
/// Time limit of a connection that has to succeed, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);

/// Lets the calling thread run before all threads of ordinary priority, as far as that is allowed:
/// a gap is then one in the kernel's work, and not one of the machine's two processors.
pub(crate) fn prefer_this_thread() {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let mut command = Command::new("chrt");
    command.args(["--fifo", "--pid", "1", &thread]);
    let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Connections in the background, each new, so that each passes the rules.
pub(crate) struct Ping {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Gaps>,
}

/// The longest time without an answer, after the first one.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    last: Option<Instant>,
    pub(crate) longest: Duration,
    pub(crate) answered: u64,
}

impl Ping {
    pub(crate) fn start(namespace: &Arc<Namespace>, front: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, namespace) = (stop.clone(), namespace.clone());
        let ping = move || namespace.run(|| ping(front, &seen));
        Self {
            stop,
            thread: thread::spawn(ping),
        }
    }

    pub(crate) fn finish(self) -> Gaps {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn ping(front: SocketAddr, stop: &AtomicBool) -> Gaps {
    prefer_this_thread();
    let mut gaps = Gaps::default();
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if ask(front) {
            gaps.reach(Instant::now());
            gaps.last = Some(Instant::now());
            gaps.answered += 1;
        }
        // Turns missed while waiting for an answer are skipped.
        next = (next + INTERVAL).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    gaps.reach(Instant::now());
    gaps
}

impl Gaps {
    fn reach(&mut self, now: Instant) {
        let since = self.last.map_or(Duration::ZERO, |last| now - last);
        self.longest = self.longest.max(since);
    }
}

/// True if an endpoint of the Service answered.
fn ask(front: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&front, TIMEOUT) else {
        return false;
    };
    // The kernel forgets the connection when it is closed: thousands would fill its tables.
    let _ = set_socket_linger(&stream, Some(Duration::ZERO));
    let limited = stream.set_read_timeout(Some(TIMEOUT));
    limited.is_ok() && stream.read_exact(&mut [0]).is_ok()
}

/// Time of `connect(2)`; `None` if it failed.
pub(crate) fn connection_time(front: SocketAddr) -> Option<Duration> {
    let began = Instant::now();
    let stream = TcpStream::connect_timeout(&front, LIMIT).ok()?;
    let took = began.elapsed();
    let _ = set_socket_linger(&stream, Some(Duration::ZERO));
    Some(took)
}
