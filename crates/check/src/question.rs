//! Questions: requests that a probe sends to an address to learn which pod answers there.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::echo::EchoAnswer;

/// Largest number of tries of a question.
pub(crate) const MAX_TRIES: u8 = 50;
/// Time limit for all tries of a question.
const LONGEST: Duration = Duration::from_secs(10);
/// Time limit of one try.
const PATIENCE: Duration = Duration::from_secs(2);
/// Size limit of an answer; a probe's is smaller.
const LARGEST: usize = 16 * 1024;

/// Transport of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeProtocol {
    /// GET over TCP.
    Http,
    /// One datagram.
    Udp,
}

/// A target, a protocol and a count, and nothing else, so that a probe cannot be made to fetch
/// anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Transport of each try.
    pub protocol: ProbeProtocol,
    /// Address and port to send to.
    pub target: SocketAddr,
    /// Number of tries.
    pub count: u8,
}

/// Results of a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    /// All tries; fewer than requested if the time ran out.
    pub tries: Vec<Try>,
}

/// Duration and outcome of a try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Try {
    /// Duration in microseconds.
    pub microseconds: u64,
    /// Answer or error.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Answer or error of a try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// A probe answered.
    Answer(EchoAnswer),
    /// No probe answered: the reason in words.
    Error(String),
}

/// The query is not a valid question.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum QuestionError {
    /// `protocol` is missing or unknown.
    #[error("protocol is missing or unknown: expected http or udp")]
    Protocol,
    /// `target` is missing or not an address.
    #[error("target is missing or invalid: expected an IP address and a port")]
    Target,
    /// `count` is out of range.
    #[error("count is out of range: expected 1 to {MAX_TRIES}")]
    Count,
    /// The query has another parameter.
    #[error("unknown parameter: expected protocol, target or count")]
    Unknown,
}

impl Question {
    /// Path and query for [`Echo`](crate::Echo).
    pub fn path(&self) -> String {
        let protocol = match self.protocol {
            ProbeProtocol::Http => "http",
            ProbeProtocol::Udp => "udp",
        };
        let target = self.target.to_string();
        let target = target.replace('[', "%5B").replace(']', "%5D");
        let target = target.replace(':', "%3A");
        format!(
            "/ask?protocol={protocol}&target={target}&count={}",
            self.count
        )
    }

    /// Parses the query of [`Question::path`].
    pub(crate) fn read(query: &str) -> Result<Self, QuestionError> {
        let (mut protocol, mut target, mut count) = (None, None, 1);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "protocol" => {
                    protocol = Some(match value {
                        "http" => ProbeProtocol::Http,
                        "udp" => ProbeProtocol::Udp,
                        _ => return Err(QuestionError::Protocol),
                    });
                }
                "target" => target = plain(value).parse().ok(),
                "count" => count = value.parse().map_err(|_| QuestionError::Count)?,
                _ => return Err(QuestionError::Unknown),
            }
        }
        if !(1..=MAX_TRIES).contains(&count) {
            return Err(QuestionError::Count);
        }
        Ok(Self {
            protocol: protocol.ok_or(QuestionError::Protocol)?,
            target: target.ok_or(QuestionError::Target)?,
            count,
        })
    }

    /// Sends the requests from this process, one after the other.
    pub(crate) fn send(&self) -> Attempts {
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
        Attempts { tries }
    }
}

/// Decodes the three characters that [`Question::path`] escapes.
fn plain(text: &str) -> String {
    [("%3A", ":"), ("%5B", "["), ("%5D", "]")].into_iter().fold(
        text.to_owned(),
        |text, (escape, character)| {
            text.replace(escape, character)
                .replace(&escape.to_lowercase(), character)
        },
    )
}

/// Sends one request and returns the answer, within `patience`.
pub fn ask(
    protocol: ProbeProtocol,
    target: SocketAddr,
    patience: Duration,
) -> io::Result<EchoAnswer> {
    let deadline = Instant::now() + patience;
    let text = match protocol {
        ProbeProtocol::Http => over_http(target, deadline),
        ProbeProtocol::Udp => over_udp(target, deadline),
    };
    serde_json::from_slice(&text?).map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the responder is not a weft probe",
        )
    })
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

/// Turns a read timeout into a readable error.
fn in_time(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(),
        _ => error,
    }
}

fn over_http(target: SocketAddr, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&target, left(deadline)?).map_err(in_time)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    // Sent at once: a server that answers a part of the request and closes would reset the
    // connection, and the answer would be lost.
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
                protocol: ProbeProtocol::Udp,
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
        // Accepts into its backlog and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (protocol, target) in [
            (ProbeProtocol::Http, silent.local_addr().unwrap()),
            (ProbeProtocol::Udp, socket.local_addr().unwrap()),
        ] {
            let error = ask(protocol, target, Duration::from_millis(50)).unwrap_err();
            assert_eq!(error.to_string(), "no answer in time", "{protocol:?}");
        }
    }

    #[test]
    fn the_answer_of_another_server_is_not_repeated() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = server.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let _ = stream.read(&mut [0; 512]);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nsecret").unwrap();
        });
        let error = ask(ProbeProtocol::Http, target, PATIENCE).unwrap_err();
        assert_eq!(error.to_string(), "the responder is not a weft probe");
    }
}
