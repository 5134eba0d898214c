//! Real packets: single questions from inside a namespace, and a stream of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde::Serialize;
use weft_check::Answer;
pub(crate) use weft_check::Protocol;
use weft_host::namespace;

/// What one question may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks from inside a namespace who answers at an address.
pub(crate) fn ask(
    network: &std::path::Path,
    protocol: Protocol,
    target: SocketAddr,
) -> io::Result<Answer> {
    namespace::within(network, || weft_check::ask(protocol, target, PATIENCE))?
}

/// What became of the questions of a stream so far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// Questions answered.
    pub answered: u64,
    /// Questions not answered, and why, the last ones.
    pub failures: Vec<String>,
    /// How many these are in all.
    pub failed: u64,
    /// The longest time without an answer.
    pub longest_gap_milliseconds: u64,
    /// Who answered how often.
    pub pods: BTreeMap<String, u64>,
    /// On which nodes they are.
    pub nodes: BTreeSet<String>,
}

/// Questions without end, from one namespace to one address.
#[derive(Debug)]
pub struct Stream {
    stop: Arc<AtomicBool>,
    tally: Arc<Mutex<Tally>>,
    thread: Option<JoinHandle<()>>,
}

/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(10);
/// How many failures are remembered.
const REMEMBERED: usize = 5;

impl Stream {
    /// Begins to ask.
    pub(crate) fn begin(network: PathBuf, protocol: Protocol, target: SocketAddr) -> Self {
        let (stop, tally) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, told): (_, Arc<Mutex<Tally>>) = (stop.clone(), Arc::clone(&tally));
        let thread = std::thread::spawn(move || {
            let asked = namespace::within(&network, || {
                let mut last = Instant::now();
                while !stopped.load(Relaxed) {
                    let answer = weft_check::ask(protocol, target, PATIENCE);
                    let mut tally = told.lock().unwrap_or_else(PoisonError::into_inner);
                    tally.count(answer, &mut last);
                    drop(tally);
                    std::thread::sleep(PAUSE);
                }
            });
            if let Err(error) = asked {
                let mut tally = told.lock().unwrap_or_else(PoisonError::into_inner);
                tally.fail(format!("cannot enter the client's network: {error}"));
            }
        });
        Self {
            stop,
            tally,
            thread: Some(thread),
        }
    }

    /// What became of the questions since the last time this was asked.
    pub(crate) fn take(&self) -> Tally {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut tally)
    }
}

impl Tally {
    fn count(&mut self, answer: io::Result<Answer>, last: &mut Instant) {
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
            // Its panic was printed; the tally says what it saw.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_remembers_gaps_and_the_first_reasons() {
        let mut tally = Tally::default();
        let mut last = Instant::now();
        for number in 0..10 {
            tally.count(Err(io::Error::other(format!("no {number}"))), &mut last);
        }
        assert_eq!((tally.failed, tally.failures.len()), (10, REMEMBERED));
        assert_eq!(tally.failures[0], "no 0");
    }
}
