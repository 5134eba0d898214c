//! New connections to one Service, a thousand per second, to find gaps in traffic.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use weft_testkit::lab::Namespace;

use crate::proxy::probe::{Answer, ask};

const INTERVAL: Duration = Duration::from_millis(1);

/// A connection that is not answered in this time is lost.
const TIMEOUT: Duration = Duration::from_millis(20);

/// Connections in the background, each new, so that each passes the NAT rules.
pub(crate) struct Ping {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Gaps>,
}

impl Ping {
    pub(crate) fn start(namespace: &Arc<Namespace>, service: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let namespace = Arc::clone(namespace);
        let thread = thread::spawn(move || namespace.run(|| ping(service, &seen)));
        Self { stop, thread }
    }

    pub(crate) fn finish(self) -> anyhow::Result<Gaps> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the ping thread panicked"))
    }
}

fn ping(service: SocketAddr, stop: &AtomicBool) -> Gaps {
    let mut next = Instant::now();
    let mut gaps = Gaps::new(next);
    while !stop.load(Ordering::Relaxed) {
        match ask(service, TIMEOUT) {
            Answer::From(_) => gaps.answered(Instant::now()),
            Answer::None | Answer::Unclear => gaps.lost += 1,
        }
        // Turns missed while waiting for an answer are skipped.
        next = (next + INTERVAL).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    gaps.reach(Instant::now());
    gaps
}

/// The longest time without an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gaps {
    last: Instant,
    pub(crate) longest: Duration,
    pub(crate) answered: u32,
    pub(crate) lost: u32,
}

impl Gaps {
    fn new(start: Instant) -> Self {
        Self {
            last: start,
            longest: Duration::ZERO,
            answered: 0,
            lost: 0,
        }
    }

    fn answered(&mut self, now: Instant) {
        self.reach(now);
        self.last = now;
        self.answered += 1;
    }

    /// Extends the current gap to now.
    fn reach(&mut self, now: Instant) {
        self.longest = self.longest.max(now - self.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_lies_between_two_answers() {
        let start = Instant::now();
        let mut gaps = Gaps::new(start);
        for at in [1, 2, 9, 10] {
            gaps.answered(start + Duration::from_millis(at));
        }
        assert_eq!(gaps.longest, Duration::from_millis(7));
        gaps.reach(start + Duration::from_millis(30));
        assert_eq!(
            (gaps.longest, gaps.answered),
            (Duration::from_millis(20), 4)
        );
    }
}
