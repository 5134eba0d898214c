//! SCTP by hand: kernels without SCTP sockets still track and translate it.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketType, bind, ipproto, recv, sendto, socket,
    sockopt::{Timeout, set_socket_timeout},
};
use weft_model::IpFamily;

const SOURCE_PORT: u16 = 4000;
/// Length of the header that raw sockets of IPv4 deliver with a packet.
const IPV4_HEADER: usize = 20;

fn raw(family: IpFamily) -> OwnedFd {
    let family = match family {
        IpFamily::V4 => AddressFamily::INET,
        IpFamily::V6 => AddressFamily::INET6,
    };
    socket(family, SocketType::RAW, Some(ipproto::SCTP)).unwrap()
}

/// Sends the first packet of an association.
pub(crate) fn send_init(source: IpAddr, target: SocketAddr) {
    let family = IpFamily::of(source);
    let socket = raw(family);
    bind(&socket, &SocketAddr::new(source, 0)).unwrap();
    let mut packet = Vec::new();
    packet.extend(SOURCE_PORT.to_be_bytes());
    packet.extend(target.port().to_be_bytes());
    // The verification tag of an INIT is 0, and the checksum is filled in below.
    packet.extend([0; 8]);
    // INIT: kind, flags, length, tag, window, streams out and in, first number.
    packet.extend([1, 0, 0, 20, 0, 0, 0, 7, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
    let checksum = crc32c(&packet);
    packet[8..12].copy_from_slice(&checksum.to_le_bytes());
    let to = SocketAddr::new(target.ip(), 0);
    sendto(&socket, &packet, SendFlags::empty(), &to).unwrap();
}

/// Sees all SCTP packets to its namespace.
pub(crate) struct Receiver {
    socket: OwnedFd,
    family: IpFamily,
}

impl Receiver {
    pub(crate) fn open(family: IpFamily) -> Self {
        let socket = raw(family);
        Self { socket, family }
    }

    /// The destination port of the next INIT.
    pub(crate) fn destination_port(&self, patience: Duration) -> Option<u16> {
        set_socket_timeout(&self.socket, Timeout::Recv, Some(patience)).unwrap();
        let mut packet = [0; 200];
        let (_, length) = recv(&self.socket, &mut packet[..], RecvFlags::empty()).ok()?;
        let start = match self.family {
            IpFamily::V4 => IPV4_HEADER,
            IpFamily::V6 => 0,
        };
        let header = packet.get(start..length)?;
        Some(u16::from_be_bytes([*header.get(2)?, *header.get(3)?]))
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    });
    !crc
}
