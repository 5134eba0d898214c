//! Makes the API server reachable in a namespace, and notes when events pass.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Instant,
};

use weft_testkit::lab::Namespace;

use crate::{objects::Mark, timeline::Timeline};

/// Longest address in quotes.
const LONGEST: usize = "\"255.255.255.255\"".len();

/// Listens on a loopback port of the namespace and forwards to the server. Returns the port.
pub(crate) fn start(namespace: &Namespace, server: SocketAddr, timeline: &Arc<Timeline>) -> u16 {
    let listener = namespace
        .run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    let timeline = timeline.clone();
    thread::spawn(move || {
        for proxy in listener.incoming().flatten() {
            let server = TcpStream::connect(server).unwrap();
            for stream in [&proxy, &server] {
                stream.set_nodelay(true).unwrap();
            }
            let (up, down) = (
                (proxy.try_clone().unwrap(), server.try_clone().unwrap()),
                (server, proxy),
            );
            let timeline = timeline.clone();
            thread::spawn(move || forward(up.0, up.1, |_| {}));
            thread::spawn(move || {
                let mut events = Events::default();
                forward(down.0, down.1, |bytes| {
                    let marks = events.marks(bytes);
                    if !marks.is_empty() {
                        timeline.sent(&marks, Instant::now());
                    }
                });
            });
        }
    });
    port
}

/// Until one side closes.
fn forward(mut from: TcpStream, mut to: TcpStream, mut before: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 1 << 18];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        before(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Finds marks in JSON that arrives in pieces.
#[derive(Default)]
struct Events {
    /// The end of the last piece.
    carry: Vec<u8>,
}

impl Events {
    fn marks(&mut self, bytes: &[u8]) -> Vec<Mark> {
        self.carry.extend_from_slice(bytes);
        let marks = self.carry.split(|byte| *byte == b'"').filter_map(|text| {
            let text = std::str::from_utf8(text.get(..LONGEST.min(text.len()))?).ok()?;
            let address: Ipv4Addr = text.strip_prefix("10.").and(Some(text))?.parse().ok()?;
            Mark::read(address.octets())
        });
        let marks = marks.collect();
        let keep = self.carry.len().saturating_sub(LONGEST);
        self.carry.drain(..keep);
        marks
    }
}
