//! HTTP/1.1 client over a Unix socket: one request, one response, one connection.
//!
//! A client library would bring an async runtime and most of the start-up time. This reads a
//! response with a length, in chunks, or up to the end of the connection, and nothing else.

use std::{
    io::{self, Read, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::deadline::Deadline;

/// Maximum length of a response head in bytes.
const HEAD_LIMIT: usize = 16 << 10;
/// Maximum length of a response body in bytes.
const BODY_LIMIT: usize = 1 << 20;
/// Attempts to connect to a daemon that refuses the connection.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// No usable response arrived.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The daemon has not seen the request.
    #[error("cannot connect to the daemon's socket")]
    Unreachable(#[source] io::Error),
    /// The daemon may have seen the request.
    #[error("connection closed before the response was complete")]
    Broken(#[source] io::Error),
    /// The daemon may have seen the request.
    #[error("no response within the time limit")]
    TimedOut,
    /// The bytes received are not an HTTP response.
    #[error("invalid HTTP response: {0}")]
    Invalid(&'static str),
}

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// A request to the daemon.
pub(crate) struct Request<'a> {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) headers: &'a [(&'static str, String)],
    pub(crate) body: &'a [u8],
}

/// Sends a request and reads the response.
pub(crate) fn exchange(
    path: &Path,
    request: &Request<'_>,
    deadline: Deadline,
) -> Result<Answer, HttpError> {
    let mut connection = Connection {
        stream: open(path, deadline)?,
        deadline,
    };
    connection.send(&request.to_bytes())?;
    connection.receive()
}

impl Request<'_> {
    fn to_bytes(&self) -> Vec<u8> {
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {}\r\n\
             Content-Length: {}\r\n",
            self.method,
            self.path,
            weft_cns::header::JSON,
            self.body.len()
        );
        for (name, value) in self.headers {
            head.push_str(name);
            head.push_str(": ");
            head.push_str(value);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(self.body);
        bytes
    }
}

/// Connects; retries briefly because the daemon may be restarting.
fn open(path: &Path, deadline: Deadline) -> Result<UnixStream, HttpError> {
    let mut tries = 1;
    loop {
        match attempt(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if tries < TRIES && deadline.remaining() > Some(PAUSE) => {
                tries += 1;
                // A daemon that listens but is busy gets all the time that is left.
                if error.kind() == io::ErrorKind::WouldBlock {
                    tries = 1;
                }
                thread::sleep(PAUSE);
            }
            Err(error) => return Err(HttpError::Unreachable(error)),
        }
    }
}

/// One non-blocking attempt: a full backlog would block for ever.
fn attempt(path: &Path) -> io::Result<UnixStream> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

struct Connection {
    stream: UnixStream,
    deadline: Deadline,
}

impl Connection {
    fn left(&self) -> Result<Option<Duration>, HttpError> {
        self.deadline
            .remaining()
            .map(Some)
            .ok_or(HttpError::TimedOut)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), HttpError> {
        let left = self.left()?;
        self.stream
            .set_write_timeout(left)
            .and_then(|()| self.stream.write_all(bytes))
            .map_err(broken)
    }

    /// Reads more bytes; false at the end of the connection.
    fn more(&mut self, buffer: &mut Vec<u8>) -> Result<bool, HttpError> {
        let mut chunk = [0; 8192];
        loop {
            let left = self.left()?;
            self.stream.set_read_timeout(left).map_err(broken)?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(false),
                Ok(read) => {
                    buffer.extend_from_slice(&chunk[..read]);
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }

    fn receive(&mut self) -> Result<Answer, HttpError> {
        let mut buffer = Vec::new();
        loop {
            match Parsed::of(&buffer)? {
                Parsed::Complete(answer) => return Ok(answer),
                Parsed::Partial { until_end } => {
                    if !self.more(&mut buffer)? {
                        return match until_end {
                            Some(answer) => Ok(answer),
                            None => Err(HttpError::Broken(io::ErrorKind::UnexpectedEof.into())),
                        };
                    }
                }
            }
        }
    }
}

fn broken(error: io::Error) -> HttpError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => HttpError::TimedOut,
        _ => HttpError::Broken(error),
    }
}

/// State of the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Complete(Answer),
    /// Incomplete. `until_end` is the response if the connection ends here.
    Partial {
        until_end: Option<Answer>,
    },
}

const PARTIAL: Parsed = Parsed::Partial { until_end: None };

impl Parsed {
    fn of(bytes: &[u8]) -> Result<Self, HttpError> {
        let Some(end) = find(bytes, b"\r\n\r\n") else {
            if bytes.len() > HEAD_LIMIT {
                return Err(HttpError::Invalid("the head is too long"));
            }
            return Ok(PARTIAL);
        };
        let head = Head::parse(&bytes[..end])?;
        let rest = &bytes[end + 4..];
        if (100..200).contains(&head.status) {
            return Self::of(rest);
        }
        if rest.len() > BODY_LIMIT {
            return Err(HttpError::Invalid("the body is too long"));
        }
        let answer = |body: &[u8]| Answer {
            status: head.status,
            body: body.to_vec(),
        };
        match head.framing {
            Framing::Length(length) => Ok(match rest.get(..length) {
                Some(body) => Self::Complete(answer(body)),
                None => PARTIAL,
            }),
            Framing::Chunks => Ok(match join_chunks(rest)? {
                Some(body) => Self::Complete(answer(&body)),
                None => PARTIAL,
            }),
            Framing::End => Ok(Self::Partial {
                until_end: Some(answer(rest)),
            }),
        }
    }
}

#[derive(Clone, Copy)]
enum Framing {
    Length(usize),
    Chunks,
    End,
}

struct Head {
    status: u16,
    framing: Framing,
}

impl Head {
    fn parse(bytes: &[u8]) -> Result<Self, HttpError> {
        let text =
            std::str::from_utf8(bytes).map_err(|_| HttpError::Invalid("the head is not UTF-8"))?;
        let mut lines = text.split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.strip_prefix("HTTP/1.")?.get(2..5))
            .and_then(|digits| digits.parse().ok())
            .ok_or(HttpError::Invalid("no status code"))?;
        let mut framing = match status {
            204 | 304 => Framing::Length(0),
            _ => Framing::End,
        };
        for line in lines {
            let (name, value) = line
                .split_once(':')
                .ok_or(HttpError::Invalid("a header without a colon"))?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("transfer-encoding") {
                if !value.eq_ignore_ascii_case("chunked") {
                    return Err(HttpError::Invalid("unknown transfer encoding"));
                }
                framing = Framing::Chunks;
            } else if name.eq_ignore_ascii_case("content-length")
                && !matches!(framing, Framing::Chunks)
            {
                let length = value.parse().ok().filter(|length| *length <= BODY_LIMIT);
                let length = length.ok_or(HttpError::Invalid("invalid content length"))?;
                framing = Framing::Length(length);
            }
        }
        Ok(Self { status, framing })
    }
}

/// The joined chunks, once the last one has arrived.
fn join_chunks(mut rest: &[u8]) -> Result<Option<Vec<u8>>, HttpError> {
    const INVALID: HttpError = HttpError::Invalid("invalid chunk");
    let mut body = Vec::new();
    loop {
        let Some(end) = find(rest, b"\r\n") else {
            return Ok(None);
        };
        let size = std::str::from_utf8(&rest[..end]).map_err(|_| INVALID)?;
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).map_err(|_| INVALID)?;
        if size == 0 {
            return Ok(Some(body));
        }
        if size > BODY_LIMIT {
            return Err(INVALID);
        }
        let start = end + 2;
        let Some(chunk) = rest.get(start..start + size + 2) else {
            return Ok(None);
        };
        body.extend_from_slice(&chunk[..size]);
        if &chunk[size..] != b"\r\n" {
            return Err(INVALID);
        }
        rest = &rest[start + size + 2..];
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes
        .windows(pattern.len())
        .position(|window| window == pattern)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(status: u16, body: &str) -> Parsed {
        Parsed::Complete(Answer {
            status,
            body: body.as_bytes().to_vec(),
        })
    }

    #[test]
    fn a_body_ends_where_its_length_says() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}rest";
        assert_eq!(Parsed::of(text.as_bytes()).unwrap(), answer(200, "{}"));
        assert_eq!(
            Parsed::of(&text.as_bytes()[..text.len() - 5]).unwrap(),
            PARTIAL
        );
    }

    #[test]
    fn chunks_are_joined() {
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                    1;note=x\r\n{\r\n1\r\n}\r\n0\r\n\r\n";
        assert_eq!(Parsed::of(text.as_bytes()).unwrap(), answer(200, "{}"));
    }

    #[test]
    fn without_a_length_the_end_of_the_connection_ends_the_body() {
        let parsed = Parsed::of(b"HTTP/1.0 500 no\r\n\r\noops").unwrap();
        let Parsed::Partial { until_end } = parsed else {
            panic!("{parsed:?}");
        };
        assert_eq!(until_end.unwrap().body, b"oops");
    }

    #[test]
    fn an_interim_response_is_skipped() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(Parsed::of(text.as_bytes()).unwrap(), answer(204, ""));
    }

    #[test]
    fn an_invalid_response_is_refused_at_once() {
        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "a".repeat(HEAD_LIMIT));
        for text in [
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/1.1\r\n\r\n",
            "HTTP/1.1 2x0 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            long.as_str(),
        ] {
            let parsed = Parsed::of(text.as_bytes());
            assert!(
                matches!(parsed, Err(HttpError::Invalid(_))),
                "{text}: {parsed:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_response_makes_it_panic(tail in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
            bytes.extend_from_slice(&tail);
            let _ = Parsed::of(&bytes);
            let _ = Parsed::of(&tail);
        }
    }
}
