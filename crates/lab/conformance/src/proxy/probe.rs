//! Single connections through a Service, and waiting for an answer.

use std::{
    io::Read as _,
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use rustix::net::sockopt::set_socket_linger;

use crate::proxy::objects::Side;

/// Time limit of a connection while waiting for an answer. Short, because in nftables mode kube-proxy
/// drops packets to an unknown Service, and a longer wait would see the answer too late.
const TIMEOUT: Duration = Duration::from_millis(20);

/// Time after which a connection counts as not answered while waiting for a removal.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(300);

/// Time limit of a connection that has to succeed, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);

/// Connections in a row that have to fail before a Service counts as removed: one may be lost for
/// other reasons.
const FAILURES: usize = 3;

/// Result of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    From(Side),
    /// Refused, or not connected in time.
    None,
    /// Connected, but received no byte.
    Unclear,
}

/// Connects to a Service once and reads the byte of its endpoint.
pub(crate) fn ask(service: SocketAddr, patience: Duration) -> Answer {
    let Ok(stream) = TcpStream::connect_timeout(&service, patience) else {
        return Answer::None;
    };
    reset_on_close(&stream);
    listen(stream, patience).map_or(Answer::Unclear, Answer::From)
}

fn listen(mut stream: TcpStream, patience: Duration) -> Option<Side> {
    stream.set_read_timeout(Some(patience)).ok()?;
    let mut byte = [0];
    stream.read_exact(&mut byte).ok()?;
    Side::ALL.into_iter().find(|side| side.byte() == byte[0])
}

/// Lets the kernel forget the connection when it is closed: thousands that linger would fill its
/// tables and use up the ports.
fn reset_on_close(stream: &TcpStream) {
    // Without it there would be more to remember, no more.
    let _ = set_socket_linger(stream, Some(Duration::ZERO));
}

/// Connects until the answer is the expected one. Returns the start of that connection, or None if
/// it did not come until `until`. `since` is the start of the first wait for this answer.
pub(crate) fn wait_for(
    service: SocketAddr,
    expected: Answer,
    since: Instant,
    until: Instant,
) -> Option<Instant> {
    loop {
        let began = Instant::now();
        let (times, patience) = match expected {
            Answer::None => (FAILURES, REFUSAL_TIMEOUT),
            Answer::From(_) | Answer::Unclear => (1, TIMEOUT),
        };
        if (0..times).all(|_| ask(service, patience) == expected) {
            return Some(began);
        }
        if began > until {
            return None;
        }
        thread::sleep(pause(since.elapsed()));
    }
}

/// Pause between two connections: a hundredth of the time waited so far, so that a long wait stays
/// precise and leaves the processors to the proxy.
fn pause(waited: Duration) -> Duration {
    (waited / 100).clamp(Duration::from_millis(1), Duration::from_millis(50))
}

/// Time of `connect(2)`, or None if it failed.
pub(crate) fn connection_time(service: SocketAddr) -> Option<Duration> {
    let began = Instant::now();
    let stream = TcpStream::connect_timeout(&service, LIMIT).ok()?;
    let took = began.elapsed();
    reset_on_close(&stream);
    Some(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_exact_to_a_hundredth_and_never_busy() {
        let cases = [(0, 1), (100, 1), (1_000, 10), (60_000, 50)];
        for (waited, expected) in cases {
            let paused = pause(Duration::from_millis(waited));
            assert_eq!(paused, Duration::from_millis(expected), "{waited}");
        }
    }
}
