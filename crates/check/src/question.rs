//! Questions that a probe puts from where it is: who answers at an address?

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::echo::Answer;

/// How often a probe asks at most.
pub(crate) const MOST_TRIES: u8 = 50;
/// How long all of a question's tries may take.
const LONGEST: Duration = Duration::from_secs(10);
/// What one try may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// More than any answer; whoever says more is not a probe.
const LARGEST: usize = 16 * 1024;

/// How a question is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// A GET over TCP.
    Http,
    /// A datagram.
    Udp,
}

/// A question: an address and nothing else, so that a probe cannot be made to fetch anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// How.
    pub protocol: Protocol,
    /// Whom.
    pub target: SocketAddr,
    /// How often.
    pub count: u8,
}

/// What became of a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Each try; fewer than wanted when there was no time for more.
    pub tries: Vec<Try>,
}

/// One try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Try {
    /// How long it took.
    pub microseconds: u64,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How a try ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Somebody answered.
    Answer(Answer),
    /// Nobody did, and why.
    Error(String),
}

/// A query that is no question.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum QuestionError {
    /// The protocol.
    #[error("protocol has to be http or udp")]
    Protocol,
    /// The address.
    #[error("target has to be an IP address and a port")]
    Target,
    /// How often.
    #[error("count has to be between 1 and {MOST_TRIES}")]
    Count,
    /// Something else.
    #[error("there are only protocol, target and count")]
    Unknown,
}

impl Question {
    /// The path that puts it to a probe.
    pub fn path(&self) -> String {
        let protocol = match self.protocol {
            Protocol::Http => "http",
            Protocol::Udp => "udp",
        };
        let target = self.target.to_string();
        let target = target.replace('[', "%5B").replace(']', "%5D");
        let target = target.replace(':', "%3A");
        format!(
            "/ask?protocol={protocol}&target={target}&count={}",
            self.count
        )
    }

    /// Reads the query of such a path.
    pub(crate) fn read(query: &str) -> Result<Self, QuestionError> {
        let (mut protocol, mut target, mut count) = (None, None, 1);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "protocol" => {
                    protocol = Some(match value {
                        "http" => Protocol::Http,
                        "udp" => Protocol::Udp,
                        _ => return Err(QuestionError::Protocol),
                    });
                }
                "target" => target = plain(value).parse().ok(),
                "count" => count = value.parse().map_err(|_| QuestionError::Count)?,
                _ => return Err(QuestionError::Unknown),
            }
        }
        if !(1..=MOST_TRIES).contains(&count) {
            return Err(QuestionError::Count);
        }
        Ok(Self {
            protocol: protocol.ok_or(QuestionError::Protocol)?,
            target: target.ok_or(QuestionError::Target)?,
            count,
        })
    }

    /// Asks from here, one try after another.
    pub(crate) fn put(&self) -> Asked {
        let begun = Instant::now();
        let mut tries = Vec::new();
        for _ in 0..self.count {
            let left = LONGEST.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            let asking = Instant::now();
            let outcome = match ask(self.protocol, self.target, left.min(PATIENCE)) {
                Ok(answer) => Outcome::Answer(answer),
                Err(error) => Outcome::Error(error.to_string()),
            };
            let microseconds = u64::try_from(asking.elapsed().as_micros()).unwrap_or(u64::MAX);
            tries.push(Try {
                microseconds,
                outcome,
            });
        }
        Asked { tries }
    }
}

/// The three characters that an address may have written otherwise.
fn plain(text: &str) -> String {
    [("%3A", ":"), ("%5B", "["), ("%5D", "]")].into_iter().fold(
        text.to_owned(),
        |text, (escape, character)| {
            text.replace(escape, character)
                .replace(&escape.to_lowercase(), character)
        },
    )
}

/// Asks once who answers at an address, and waits no longer than told.
pub fn ask(protocol: Protocol, target: SocketAddr, patience: Duration) -> io::Result<Answer> {
    let deadline = Instant::now() + patience;
    let text = match protocol {
        Protocol::Http => over_http(target, deadline),
        Protocol::Udp => over_udp(target, deadline),
    };
    serde_json::from_slice(&text?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "whoever answered is no probe"))
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(late())
    } else {
        Ok(left)
    }
}

/// A read that timed out says so in words that people understand.
fn in_time(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(),
        _ => error,
    }
}

fn over_http(target: SocketAddr, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&target, left(deadline)?).map_err(in_time)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    // As a whole: whoever answers after a part of it and hangs up would reset the connection over
    // the rest, and the answer with it.
    let request = format!("GET / HTTP/1.1\r\nhost: {target}\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(in_time)?;
    let mut answer = Vec::new();
    let mut piece = [0; 2048];
    while answer.len() < LARGEST {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&piece[..length]),
            Err(error) => return Err(in_time(error)),
        }
    }
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let body = end.ok_or(io::ErrorKind::UnexpectedEof)? + 4;
    Ok(answer.split_off(body))
}

fn over_udp(target: SocketAddr, deadline: Instant) -> io::Result<Vec<u8>> {
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    socket.set_read_timeout(Some(left(deadline)?))?;
    socket.send(b"who")?;
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer).map_err(in_time)?;
    Ok(buffer[..length].to_vec())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_question_survives_its_path() {
        for target in ["10.0.0.1:80", "[fd00::1]:8080"] {
            let question = Question {
                protocol: Protocol::Udp,
                target: target.parse().unwrap(),
                count: 7,
            };
            let path = question.path();
            let (path, query) = path.split_once('?').unwrap();
            assert_eq!(path, "/ask");
            assert_eq!(Question::read(query), Ok(question), "{query}");
        }
    }

    #[test]
    fn only_addresses_can_be_asked_and_not_without_end() {
        for (query, error) in [
            ("target=10.0.0.1:80", QuestionError::Protocol),
            ("protocol=ftp&target=10.0.0.1:80", QuestionError::Protocol),
            ("protocol=http", QuestionError::Target),
            ("protocol=http&target=example.com:80", QuestionError::Target),
            (
                "protocol=http&target=http://10.0.0.1:80/x",
                QuestionError::Target,
            ),
            ("protocol=http&target=10.0.0.1", QuestionError::Target),
            (
                "protocol=http&target=10.0.0.1:80&count=51",
                QuestionError::Count,
            ),
            (
                "protocol=http&target=10.0.0.1:80&count=0",
                QuestionError::Count,
            ),
            (
                "protocol=http&target=10.0.0.1:80&path=/",
                QuestionError::Unknown,
            ),
        ] {
            assert_eq!(Question::read(query), Err(error), "{query}");
        }
    }

    #[test]
    fn silence_is_an_error_in_time() {
        // Accepts by its backlog and never says anything.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (protocol, target) in [
            (Protocol::Http, silent.local_addr().unwrap()),
            (Protocol::Udp, socket.local_addr().unwrap()),
        ] {
            let error = ask(protocol, target, Duration::from_millis(50)).unwrap_err();
            assert_eq!(error.to_string(), "no answer in time", "{protocol:?}");
        }
    }

    #[test]
    fn whoever_is_no_probe_is_not_repeated() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = server.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let _ = stream.read(&mut [0; 512]);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nsecret").unwrap();
        });
        let error = ask(Protocol::Http, target, PATIENCE).unwrap_err();
        assert_eq!(error.to_string(), "whoever answered is no probe");
    }
}
