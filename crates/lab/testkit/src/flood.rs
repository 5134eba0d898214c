//! Clients that connect and never finish a request, to exhaust a listener.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

/// Open connections that send nothing, half a header or garbage, in turn, until it is dropped.
pub struct Flood {
    connections: Vec<Box<dyn Connection>>,
}

/// A connection whose reads do not wait.
trait Connection: Read + Write + Send {
    fn set_nonblocking(&self) -> io::Result<()>;
}

impl Connection for TcpStream {
    fn set_nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

impl Connection for UnixStream {
    fn set_nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

/// Bytes that connections send, in turn.
const OPENINGS: [&[u8]; 4] = [
    b"",
    b"GET /healthz HTTP/1.1\r\nHost: 127.0.",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf",
    b"\x16\x03\x01\xff\xff\x00\x00\x00 garbage \r\n\x00\xff",
];

/// Longer than a listener that still accepts connections takes to accept one.
const PATIENCE: Duration = Duration::from_secs(30);

impl Flood {
    /// Connects this many times to an address.
    pub fn tcp(address: SocketAddr, count: usize) -> io::Result<Self> {
        Self::of(count, || TcpStream::connect_timeout(&address, PATIENCE))
    }

    /// Connects this many times to a Unix socket.
    pub fn unix(path: &Path, count: usize) -> io::Result<Self> {
        Self::of(count, || UnixStream::connect(path))
    }

    /// Waits until the listener has left at most this many connections open, and says whether it
    /// did: one without limits keeps them all.
    pub fn is_cut_to(&mut self, most: usize) -> bool {
        let begun = Instant::now();
        while self.open() > most {
            if begun.elapsed() > PATIENCE {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// The connections that the listener has not closed, those that wait to be accepted included.
    fn open(&mut self) -> usize {
        self.connections.retain_mut(|connection| {
            let mut answer = [0; 1024];
            loop {
                match connection.read(&mut answer) {
                    Ok(0) => return false,
                    Ok(_) => {}
                    Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
                }
            }
        });
        self.connections.len()
    }

    fn of<S: Connection + 'static>(
        count: usize,
        connect: impl Fn() -> io::Result<S>,
    ) -> io::Result<Self> {
        raise_descriptor_limit()?;
        let mut connections: Vec<Box<dyn Connection>> = Vec::new();
        for number in 0..count {
            let mut connection = connect()?;
            // The listener may have closed it already.
            let _ = connection.write_all(OPENINGS[number % OPENINGS.len()]);
            connection.set_nonblocking()?;
            connections.push(Box::new(connection));
        }
        Ok(Self { connections })
    }
}

/// Raises the limit to its maximum: a test may hold both ends of thousands of connections.
fn raise_descriptor_limit() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    Ok(setrlimit(Resource::Nofile, raised)?)
}
