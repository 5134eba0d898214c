//! The server in a probe's pod: answers with its identity over HTTP and UDP, and sends questions to
//! other addresses on request.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::question::Question;

/// Limit from the connection to the end of the request's header.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections served at once; further ones are closed, since few clients use a probe.
const CONNECTIONS: usize = 64;
/// Bytes read of a request at most.
const LARGEST: u64 = 16 * 1024;

/// Identity of the responder, and the client address it saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EchoAnswer {
    /// Name of the pod.
    pub pod: String,
    /// Name of its node.
    pub node: String,
    /// Source address of the request, as the pod saw it.
    pub client: SocketAddr,
}

/// A probe's server.
#[derive(Clone, Debug)]
pub struct Echo {
    /// Name of the pod.
    pub pod: String,
    /// Name of its node.
    pub node: String,
    /// Port of TCP and UDP, on both families.
    pub port: u16,
}

impl Echo {
    /// Serves until the process ends.
    pub fn serve(self) -> io::Result<()> {
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, self.port));
        let listener = TcpListener::bind(everywhere)?;
        self.serve_on(&listener, UdpSocket::bind(everywhere)?);
        Ok(())
    }

    fn serve_on(self, listener: &TcpListener, datagrams: UdpSocket) {
        let udp = self.clone();
        thread::spawn(move || udp.serve_datagrams(&datagrams));
        let open = Arc::new(());
        for stream in listener.incoming().flatten() {
            if Arc::strong_count(&open) > CONNECTIONS {
                continue;
            }
            let (echo, counted) = (self.clone(), open.clone());
            // A client that leaves early must not affect other clients.
            thread::spawn(move || {
                let _ = echo.serve_stream(&stream);
                drop(counted);
            });
        }
    }

    fn answer(&self, client: SocketAddr) -> Vec<u8> {
        let answer = EchoAnswer {
            pod: self.pod.clone(),
            node: self.node.clone(),
            client: SocketAddr::new(client.ip().to_canonical(), client.port()),
        };
        serde_json::to_vec(&answer).unwrap_or_default()
    }

    fn serve_stream(&self, mut stream: &TcpStream) -> io::Result<()> {
        stream.set_write_timeout(Some(PATIENCE))?;
        let client = stream.peer_addr()?;
        let deadline = Instant::now() + PATIENCE;
        let mut reader = BufReader::new(UntilDeadline { stream, deadline }).take(LARGEST);
        let mut request = String::new();
        reader.read_line(&mut request)?;
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        let (status, body) = self.respond(&request, client);
        let length = body.len();
        let mut answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        )
        .into_bytes();
        answer.extend(body);
        stream.write_all(&answer)
    }

    /// Answers every path with the identity; only `/ask` sends a question.
    fn respond(&self, request: &str, client: SocketAddr) -> (&'static str, Vec<u8>) {
        let target = request.split(' ').nth(1).unwrap_or_default();
        let Some(query) = target.strip_prefix("/ask?") else {
            return ("200 OK", self.answer(client));
        };
        if !request.starts_with("GET ") {
            return (
                "405 Method Not Allowed",
                refusal("method not allowed: expected GET"),
            );
        }
        match Question::read(query) {
            Ok(question) => {
                let asked = serde_json::to_vec(&question.send());
                ("200 OK", asked.unwrap_or_default())
            }
            Err(error) => ("400 Bad Request", refusal(&error.to_string())),
        }
    }

    fn serve_datagrams(&self, socket: &UdpSocket) {
        let mut buffer = [0; 512];
        while let Ok((_, client)) = socket.recv_from(&mut buffer) {
            // A client that is gone needs no answer.
            let _ = socket.send_to(&self.answer(client), client);
        }
    }
}

/// Reads from a stream until a deadline, however slowly the bytes arrive.
struct UntilDeadline<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl io::Read for UntilDeadline<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        (&mut &*self.stream).read(buffer)
    }
}

fn refusal(why: &str) -> Vec<u8> {
    serde_json::json!({ "error": why }).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::{Attempts, Outcome, ProbeProtocol, ask};

    fn echo() -> Echo {
        Echo {
            pod: "web-1".to_owned(),
            node: "node-1".to_owned(),
            port: 8080,
        }
    }

    /// Serves on free ports of both families; returns the TCP and the UDP address.
    fn serving() -> [SocketAddr; 2] {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let datagrams = UdpSocket::bind("[::]:0").unwrap();
        let bound = [listener.local_addr(), datagrams.local_addr()];
        thread::spawn(move || echo().serve_on(&listener, datagrams));
        bound.map(|bound| ([127, 0, 0, 1], bound.unwrap().port()).into())
    }

    #[test]
    fn answers_name_the_pod_over_both_protocols() {
        for (protocol, target) in [ProbeProtocol::Http, ProbeProtocol::Udp]
            .into_iter()
            .zip(serving())
        {
            let answer = ask(protocol, target, PATIENCE).unwrap();
            assert_eq!((&*answer.pod, &*answer.node), ("web-1", "node-1"));
            assert!(answer.client.ip().is_loopback() && answer.client.is_ipv4());
        }
    }

    #[test]
    fn clients_that_never_finish_a_request_keep_no_probe_out_for_long() {
        let [target, _] = serving();
        let _open: Vec<TcpStream> = (0..CONNECTIONS * 4)
            .map(|_| TcpStream::connect(target).unwrap())
            .collect();
        let deadline = Instant::now() + PATIENCE * 4;
        while ask(ProbeProtocol::Http, target, PATIENCE).is_err() {
            assert!(Instant::now() < deadline, "no answer");
        }
    }

    #[test]
    fn a_probe_reports_each_try() {
        let [target, _] = serving();
        let question = Question {
            protocol: ProbeProtocol::Http,
            target,
            count: 3,
        };
        let line = format!("GET {} HTTP/1.1\r\n", question.path());
        let (status, body) = echo().respond(&line, target);
        assert_eq!(status, "200 OK");
        let asked: Attempts = serde_json::from_slice(&body).unwrap();
        assert_eq!(asked.tries.len(), 3);
        for one in asked.tries {
            assert!(
                matches!(&one.outcome, Outcome::Answer(answer) if answer.pod == "web-1"),
                "{one:?}"
            );
        }
    }

    #[test]
    fn an_invalid_question_is_refused_and_not_sent() {
        let client = ([127, 0, 0, 1], 4000).into();
        let status = |line: &str| echo().respond(line, client).0;
        assert_eq!(status("GET / HTTP/1.1"), "200 OK");
        assert_eq!(
            status("GET /ask?protocol=http&target=example.com:80 HTTP/1.1"),
            "400 Bad Request"
        );
        assert_eq!(
            status("POST /ask?protocol=http&target=10.0.0.1:80 HTTP/1.1"),
            "405 Method Not Allowed"
        );
    }
}
