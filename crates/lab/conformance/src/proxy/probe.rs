//! Connections through a Service.

use std::{
    io::Read as _,
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use rustix::net::sockopt::set_socket_linger;

use crate::proxy::objects::Side;

/// An answer is looked for with connections of at most this time: in nftables mode kube-proxy lets
/// those to an unknown Service run into the void, and what is waited for would be seen too late.
const TIMEOUT: Duration = Duration::from_millis(20);

/// That there is no answer is believed after this time only.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(300);

/// A connection that has to succeed gets this time, whatever else the machine does.
const LIMIT: Duration = Duration::from_secs(10);

/// So many connections in a row have to fail before a Service counts as gone: one may be lost for
/// other reasons.
const FAILURES: usize = 3;

/// What became of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    From(Side),
    /// Refused, or not connected in time.
    None,
    /// Connected, but nothing was heard.
    Unclear,
}

/// Connects to a Service, once.
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

/// Connects until the answer is this one; when the connection began that got it, or None when
/// that did not happen in time. `since` is when the first wait for it began.
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

/// Time between two connections: a hundredth of what was waited already, so that a long wait
/// neither loses precision nor takes the processor from the one waited for.
fn pause(waited: Duration) -> Duration {
    (waited / 100).clamp(Duration::from_millis(1), Duration::from_millis(50))
}

/// How long it took to be connected, or None for one that was not.
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
