//! Test traffic: single requests from inside a namespace, and a continuous stream of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::Serialize;
use weft_check::EchoAnswer;
pub(crate) use weft_check::ProbeProtocol;
use weft_host::namespace;

/// Time limit of one request.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends one request from inside a namespace and returns the answer of the pod.
pub(crate) fn ask(
    network: &std::path::Path,
    protocol: ProbeProtocol,
    target: SocketAddr,
) -> io::Result<EchoAnswer> {
    namespace::within(network, || weft_check::ask(protocol, target, PATIENCE))?
}

/// Results of the requests of a stream.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Number of answered requests.
    pub answered: u64,
    /// Errors of the first failed requests, at most five.
    pub failures: Vec<String>,
    /// Number of failed requests.
    pub failed: u64,
    /// Longest time between two answers.
    pub longest_gap_milliseconds: u64,
    /// Number of answers by pod.
    pub pods: BTreeMap<String, u64>,
    /// Nodes of these pods.
    pub nodes: BTreeSet<String>,
}

/// Continuous requests from one namespace to one address; dropping it ends them.
#[derive(Debug)]
pub struct Stream {
    stop: Arc<AtomicBool>,
    tally: Arc<Mutex<Tally>>,
    thread: Option<JoinHandle<()>>,
}

/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(10);
/// Most errors that are kept.
const REMEMBERED: usize = 5;

impl Stream {
    /// Starts a thread that sends requests.
    pub(crate) fn begin(network: PathBuf, protocol: ProbeProtocol, target: SocketAddr) -> Self {
        let (stop, tally) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, shared): (_, Arc<Mutex<Tally>>) = (stop.clone(), Arc::clone(&tally));
        let thread = std::thread::spawn(move || {
            let asked = namespace::within(&network, || {
                let mut last = Instant::now();
                while !stopped.load(Relaxed) {
                    let answer = weft_check::ask(protocol, target, PATIENCE);
                    let mut tally = shared.lock();
                    tally.count(answer, &mut last);
                    drop(tally);
                    std::thread::sleep(PAUSE);
                }
            });
            if let Err(error) = asked {
                let mut tally = shared.lock();
                tally.fail(format!(
                    "cannot enter the network namespace of the client: {error}"
                ));
            }
        });
        Self {
            stop,
            tally,
            thread: Some(thread),
        }
    }

    /// Results since the last call.
    pub(crate) fn take(&self) -> Tally {
        let mut tally = self.tally.lock();
        std::mem::take(&mut tally)
    }
}

impl Tally {
    fn count(&mut self, answer: io::Result<EchoAnswer>, last: &mut Instant) {
        match answer {
            Ok(answer) => {
                let gap = u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.longest_gap_milliseconds = self.longest_gap_milliseconds.max(gap);
                *last = Instant::now();
                self.answered += 1;
                *self.pods.entry(answer.pod).or_default() += 1;
                self.nodes.insert(answer.node);
            }
            Err(error) => self.fail(error.to_string()),
        }
    }

    fn fail(&mut self, why: String) {
        self.failed += 1;
        if self.failures.len() < REMEMBERED {
            self.failures.push(why);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_keeps_the_first_errors() {
        let mut tally = Tally::default();
        let mut last = Instant::now();
        for number in 0..10 {
            tally.count(Err(io::Error::other(format!("no {number}"))), &mut last);
        }
        assert_eq!((tally.failed, tally.failures.len()), (10, REMEMBERED));
        assert_eq!(tally.failures[0], "no 0");
    }
}
