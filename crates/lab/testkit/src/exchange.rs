//! Servers that reply with their name and the client's address, and clients for them.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    thread,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, SocketType, bind, connect, ipproto, listen, socket,
        sockopt::{Timeout, set_socket_timeout},
    },
};
use weft_model::Protocol;

/// Far beyond what a packet in this machine needs; waited out only where something is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Time without a reply that counts as silence. A later reply does not fail a test.
pub const SILENCE: Duration = Duration::from_millis(300);

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// An answer of a server.
    From {
        /// Name of the server.
        server: String,
        /// Address of the client as the server saw it.
        seen: IpAddr,
    },
    /// The port is unreachable.
    Refused,
    /// No reply in time.
    Silence,
}

/// Starts a server in the namespace of the calling thread.
pub fn serve(name: &str, address: SocketAddr, protocol: Protocol) {
    let name = name.to_owned();
    if protocol == Protocol::Udp {
        let socket = UdpSocket::bind(address).expect("the address is of this namespace");
        thread::spawn(move || {
            let mut word = [0; 8];
            while let Ok((_, peer)) = socket.recv_from(&mut word) {
                // A client that is gone does not matter.
                let _ = socket.send_to(answer(&name, peer).as_bytes(), peer);
            }
        });
        return;
    }
    let socket = stream_socket(address, protocol).expect("the kernel has the protocol");
    bind(&socket, &address).expect("the address is of this namespace");
    listen(&socket, 64).expect("a bound socket can listen");
    let listener = TcpListener::from(socket);
    thread::spawn(move || {
        while let Ok((stream, peer)) = listener.accept() {
            let name = name.clone();
            thread::spawn(move || answer_lines(&stream, &answer(&name, peer)));
        }
    });
}

fn answer(name: &str, peer: SocketAddr) -> String {
    format!("{name} {}\n", peer.ip())
}

fn answer_lines(mut stream: &TcpStream, answer: &str) {
    let lines = BufReader::new(stream).lines();
    for _ in lines.map_while(Result::ok) {
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn stream_socket(to: SocketAddr, protocol: Protocol) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let protocol = match protocol {
        Protocol::Sctp => ipproto::SCTP,
        _ => ipproto::TCP,
    };
    Ok(socket(family, SocketType::STREAM, Some(protocol))?)
}

/// True if this kernel supports the protocol, apart from filtering it.
pub fn speaks(protocol: Protocol) -> bool {
    stream_socket(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1), protocol).is_ok()
}

/// The source that the calling thread's namespace would choose.
pub fn source_for(target: SocketAddr) -> IpAddr {
    let socket = UdpSocket::bind(SocketAddr::new(unspecified(target), 0))
        .expect("every namespace has sockets");
    socket.connect(target).expect("there is a route");
    socket
        .local_addr()
        .expect("a connected socket has an address")
        .ip()
}

fn unspecified(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Asks once, from an address of the calling thread's namespace.
pub fn ask(source: IpAddr, target: SocketAddr, protocol: Protocol, patience: Duration) -> Reply {
    let source = SocketAddr::new(source, 0);
    let words = match protocol {
        Protocol::Udp => ask_datagram(source, target, patience),
        _ => Conversation::open(source, target, protocol, patience)
            .and_then(|mut conversation| conversation.ask()),
    };
    words.unwrap_or_else(|error| match Errno::from_io_error(&error) {
        Some(Errno::CONNREFUSED) => Reply::Refused,
        // The time for an answer, or for a connection, is over.
        Some(Errno::AGAIN | Errno::INPROGRESS | Errno::TIMEDOUT) => Reply::Silence,
        _ => panic!("{source} asks {target}: {error}"),
    })
}

fn ask_datagram(source: SocketAddr, target: SocketAddr, patience: Duration) -> io::Result<Reply> {
    let socket = UdpSocket::bind(source)?;
    socket.connect(target)?;
    socket.set_read_timeout(Some(patience))?;
    match socket.send(b"?") {
        // The sender's own rules stopped it; whether with a word, is still to be heard.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        sent => drop(sent?),
    }
    let mut words = [0; 100];
    let length = socket.recv(&mut words)?;
    Ok(read(
        std::str::from_utf8(&words[..length]).expect("servers answer with text"),
    ))
}

/// A connection that can be asked again and again.
pub struct Conversation(BufReader<TcpStream>);

impl Conversation {
    /// Connects from an address of the calling thread's namespace.
    pub fn open(
        source: SocketAddr,
        target: SocketAddr,
        protocol: Protocol,
        patience: Duration,
    ) -> io::Result<Self> {
        let socket = stream_socket(target, protocol)?;
        // Holds for connecting as well.
        for direction in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, direction, Some(patience))?;
        }
        bind(&socket, &source)?;
        connect(&socket, &target)?;
        Ok(Self(BufReader::new(TcpStream::from(socket))))
    }

    /// Sends a line and reads the server's.
    pub fn ask(&mut self) -> io::Result<Reply> {
        self.0.get_mut().write_all(b"?\n")?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(read(&line))
    }
}

fn read(answer: &str) -> Reply {
    let (server, seen) = answer
        .trim_end()
        .split_once(' ')
        .expect("a name and an address");
    Reply::From {
        server: server.to_owned(),
        seen: seen.parse().expect("an address"),
    }
}
