//! Packet sockets that see what arrives in a namespace, and the fates of the requests among it.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SocketType, eth, recv, socket,
        sockopt::set_socket_recv_buffer_size_force,
    },
};

use super::{
    site::Location,
    wire::{Answer, Arrival},
};
use crate::lab::Namespace;

/// Enough for tens of thousands of short packets: one that is lost would look like silence.
const RECEIVE_BUFFER: usize = 64 << 20;

/// The fate of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Address at which it arrived, and the source address that was seen there.
    pub arrived: Option<(SocketAddr, IpAddr)>,
    /// The first answer that its sender got, and the address that it claims to be from. Answers to
    /// the node itself are seen before their translation.
    pub answered: Option<(Answer, SocketAddr)>,
}

/// The fates of requests under way, by their numbers.
#[derive(Clone, Default)]
pub(super) struct Fates(Arc<Mutex<Open>>);

#[derive(Default)]
struct Open {
    fates: HashMap<u32, (Location, Fate)>,
    last_arrival: Option<Instant>,
}

impl Fates {
    /// Expects a request from there.
    pub(super) fn expect(&self, number: u32, from: Location) {
        self.open().fates.insert(number, (from, Fate::default()));
    }

    /// Waits until nothing has arrived for a time.
    pub(super) fn settle(&self, quiet: Duration) {
        let began = Instant::now();
        loop {
            let last = self.open().last_arrival.unwrap_or(began).max(began);
            let Some(left) = quiet.checked_sub(last.elapsed()) else {
                return;
            };
            thread::sleep(left.max(Duration::from_millis(1)));
        }
    }

    /// Ends the wait for a request.
    pub(super) fn take(&self, number: u32) -> Fate {
        let known = self.open().fates.remove(&number);
        known.map(|(_, fate)| fate).unwrap_or_default()
    }

    fn note(&self, at: Location, arrival: Arrival) {
        let mut open = self.open();
        let number = match arrival {
            Arrival::Request(request) => request.number,
            Arrival::Answer { number, .. } => number,
        };
        let Some((from, fate)) = open.fates.get_mut(&number) else {
            return;
        };
        match arrival {
            // Every request passes the node, and none ends there.
            Arrival::Request(_) if at == Location::Node => return,
            Arrival::Request(request) => {
                let place = (request.target, request.source.ip());
                fate.arrived.get_or_insert(place);
            }
            Arrival::Answer { .. } if at != *from => return,
            Arrival::Answer { from, answer, .. } => {
                fate.answered.get_or_insert((answer, from));
            }
        }
        open.last_arrival = Some(Instant::now());
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock()
    }
}

/// Notes all that arrives in a namespace from now on, on threads that end with the process.
pub(super) fn observe(namespace: &Namespace, at: Location, fates: &Fates) {
    // A socket of one protocol does not see what its own host sends.
    for protocol in [eth::IP, eth::IPV6] {
        let socket = namespace
            .run(|| socket(AddressFamily::PACKET, SocketType::DGRAM, Some(protocol)))
            .expect("the lab's process may open packet sockets");
        set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)
            .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER))
            .expect("a socket's buffer can be made larger");
        let fates = fates.clone();
        thread::spawn(move || read(&socket, at, &fates));
    }
}

fn read(socket: &OwnedFd, at: Location, fates: &Fates) {
    let mut packet = [0; 256];
    loop {
        match recv(socket, &mut packet[..], RecvFlags::empty()) {
            Ok((_, length)) => {
                let bytes = packet.get(..length).unwrap_or(&packet);
                if let Some(arrival) = Arrival::read(bytes) {
                    fates.note(at, arrival);
                }
            }
            Err(Errno::INTR | Errno::NETDOWN) => {}
            Err(error) => panic!("cannot read packets: {error}"),
        }
    }
}
