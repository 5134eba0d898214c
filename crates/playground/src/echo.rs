//! What runs in a pod: a tiny server that says who answered, over HTTP and UDP.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// How long a silent client is kept.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who answered, and whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The pod.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// The client as the pod saw it.
    pub client: SocketAddr,
}

/// Who answers.
#[derive(Clone, Debug)]
pub struct Echo {
    /// The pod.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// On which port, over TCP and UDP and both families.
    pub port: u16,
}

impl Echo {
    /// Serves until the process ends.
    pub fn serve(self) -> io::Result<()> {
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, self.port));
        let listener = TcpListener::bind(everywhere)?;
        let datagrams = UdpSocket::bind(everywhere)?;
        let udp = self.clone();
        thread::spawn(move || udp.serve_datagrams(&datagrams));
        for stream in listener.incoming().flatten() {
            let echo = self.clone();
            // A client that leaves early is nobody's trouble.
            thread::spawn(move || echo.serve_stream(stream));
        }
        Ok(())
    }

    fn answer(&self, client: SocketAddr) -> Vec<u8> {
        let answer = Answer {
            pod: self.pod.clone(),
            node: self.node.clone(),
            client: SocketAddr::new(client.ip().to_canonical(), client.port()),
        };
        serde_json::to_vec(&answer).unwrap_or_default()
    }

    fn serve_stream(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let client = stream.peer_addr()?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        let body = self.answer(client);
        let mut stream = stream;
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        )?;
        stream.write_all(&body)
    }

    fn serve_datagrams(&self, socket: &UdpSocket) {
        let mut buffer = [0; 512];
        while let Ok((_, client)) = socket.recv_from(&mut buffer) {
            // Whoever is gone needs no answer.
            let _ = socket.send_to(&self.answer(client), client);
        }
    }
}
