//! First packets of TCP, UDP and SCTP as bytes, and what comes back for them.
//!
//! Each packet carries a number: a TCP segment as its sequence number, a datagram as its payload, an
//! SCTP INIT as its initiate tag. Translation of addresses leaves it alone, so a packet is
//! recognised wherever it arrives, and so is every answer to it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A protocol of a Service's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// Probed by a SYN.
    Tcp,
    /// Probed by a datagram.
    Udp,
    /// Probed by an INIT, which kernels without SCTP sockets track and translate too.
    Sctp,
}

impl Transport {
    /// By its name in the Kubernetes API.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    fn numbered(number: u8) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp]
            .into_iter()
            .find(|transport| transport.number() == number)
    }
}

/// The first packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) number: u32,
    pub(super) transport: Transport,
    pub(super) source: SocketAddr,
    pub(super) target: SocketAddr,
}

/// A packet that belongs to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The request itself, with the addresses that it has now.
    Request(Request),
    /// An answer to it.
    Answer {
        number: u32,
        from: SocketAddr,
        answer: Answer,
    },
}

/// An answer to a first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// A TCP connection was accepted.
    Accepted,
    /// A TCP connection was reset.
    Reset,
    /// ICMP says that the destination is unreachable, with this code.
    Unreachable(u8),
}

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const ICMP_HEADER: usize = 8;
const HOPS: u8 = 64;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// The type of an ICMP message about an unreachable destination, in IPv4 and in IPv6.
const UNREACHABLE: [u8; 2] = [3, 1];
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

impl Request {
    /// The packet with its IP header.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let segment = self.segment();
        let (protocol, length) = (self.transport.number(), segment.len());
        let mut packet = match (self.source.ip(), self.target.ip()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let total = u16::try_from(IPV4_HEADER + length).expect("a short packet");
                // The kernel fills in the identification and the header's checksum.
                let mut header = vec![0x45, 0];
                header.extend(total.to_be_bytes());
                header.extend([0, 0, 0, 0, HOPS, protocol, 0, 0]);
                header.extend(source.octets());
                header.extend(target.octets());
                header
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let length = u16::try_from(length).expect("a short packet");
                let mut header = vec![0x60, 0, 0, 0];
                header.extend(length.to_be_bytes());
                header.extend([protocol, HOPS]);
                header.extend(source.octets());
                header.extend(target.octets());
                header
            }
            (source, target) => panic!("{source} and {target} are of two families"),
        };
        packet.extend(segment);
        packet
    }

    fn segment(&self) -> Vec<u8> {
        let mut segment = Vec::with_capacity(40);
        segment.extend(self.source.port().to_be_bytes());
        segment.extend(self.target.port().to_be_bytes());
        match self.transport {
            Transport::Tcp => {
                segment.extend(self.number.to_be_bytes());
                // No acknowledgement, five words of header, a window, checksum and urgent pointer.
                segment.extend([0, 0, 0, 0, 0x50, SYN, 0xff, 0xff, 0, 0, 0, 0]);
                let sum = self.checksum(&segment);
                segment[16..18].copy_from_slice(&sum.to_be_bytes());
            }
            Transport::Udp => {
                segment.extend([0, 12, 0, 0]);
                segment.extend(self.number.to_be_bytes());
                let sum = match self.checksum(&segment) {
                    // 0 would say that there is none.
                    0 => u16::MAX,
                    sum => sum,
                };
                segment[6..8].copy_from_slice(&sum.to_be_bytes());
            }
            Transport::Sctp => {
                // The verification tag of an INIT is 0; then the checksum.
                segment.extend([0; 8]);
                segment.extend([1, 0, 0, 20]);
                segment.extend(self.number.to_be_bytes());
                // Window, streams out and in, first number.
                segment.extend([0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
                let sum = crc32c(&segment);
                segment[8..12].copy_from_slice(&sum.to_le_bytes());
            }
        }
        segment
    }

    /// The checksum of TCP and UDP, over the addresses too.
    fn checksum(&self, segment: &[u8]) -> u16 {
        let octets = |address| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let length = u16::try_from(segment.len()).expect("a short packet");
        let mut bytes = octets(self.source.ip());
        bytes.extend(octets(self.target.ip()));
        bytes.extend([0, self.transport.number()]);
        bytes.extend(length.to_be_bytes());
        bytes.extend(segment);
        let words = bytes.chunks(2).map(|word| {
            let low = word.get(1).copied().unwrap_or(0);
            u32::from(u16::from_be_bytes([word[0], low]))
        });
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        !u16::try_from(sum).expect("two foldings leave 16 bits")
    }
}

impl Arrival {
    /// Reads an IP packet; None for one that belongs to no request.
    pub(super) fn read(packet: &[u8]) -> Option<Self> {
        let ip = Ip::read(packet)?;
        match ip.protocol {
            ICMP | ICMPV6 => {
                let [kind, code] = *ip.payload.first_chunk()?;
                if !UNREACHABLE.contains(&kind) {
                    return None;
                }
                let about = Ip::read(ip.payload.get(ICMP_HEADER..)?)?;
                let number = about.request()?.number;
                let answer = Answer::Unreachable(code);
                // The sender is the host that refuses; the quoted packet has the translated address.
                let from = about.request()?.target;
                Some(Self::Answer {
                    number,
                    from,
                    answer,
                })
            }
            _ => ip.segment(),
        }
    }
}

/// The fields of an IP packet that matter here.
struct Ip<'a> {
    source: IpAddr,
    target: IpAddr,
    protocol: u8,
    payload: &'a [u8],
}

impl<'a> Ip<'a> {
    fn read(packet: &'a [u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let length = usize::from(packet[0] & 0xf) * 4;
                let address = |at: usize| -> Option<IpAddr> {
                    let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
                    Some(Ipv4Addr::from(octets).into())
                };
                Some(Self {
                    source: address(12)?,
                    target: address(16)?,
                    protocol: *packet.get(9)?,
                    payload: packet.get(length.max(IPV4_HEADER)..)?,
                })
            }
            6 => {
                let address = |at: usize| -> Option<IpAddr> {
                    let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
                    Some(Ipv6Addr::from(octets).into())
                };
                Some(Self {
                    source: address(8)?,
                    target: address(24)?,
                    protocol: *packet.get(6)?,
                    payload: packet.get(IPV6_HEADER..)?,
                })
            }
            _ => None,
        }
    }

    fn ports(&self) -> Option<[SocketAddr; 2]> {
        let [s0, s1, t0, t1] = *self.payload.first_chunk()?;
        Some([
            SocketAddr::new(self.source, u16::from_be_bytes([s0, s1])),
            SocketAddr::new(self.target, u16::from_be_bytes([t0, t1])),
        ])
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.payload.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    }

    /// The request that this packet is; for a TCP segment, whatever its flags are.
    fn request(&self) -> Option<Request> {
        let transport = Transport::numbered(self.protocol)?;
        let number = match transport {
            Transport::Tcp => self.word(4)?,
            Transport::Udp => self.word(8)?,
            Transport::Sctp => self.word(16)?,
        };
        let [source, target] = self.ports()?;
        Some(Request {
            number,
            transport,
            source,
            target,
        })
    }

    fn segment(&self) -> Option<Arrival> {
        let request = self.request()?;
        if request.transport != Transport::Tcp {
            return Some(Arrival::Request(request));
        }
        let flags = self.payload.get(13)? & (SYN | RST | ACK);
        let answer = match flags {
            SYN => return Some(Arrival::Request(request)),
            _ if flags == SYN | ACK => Answer::Accepted,
            _ if flags == RST | ACK => Answer::Reset,
            // A bare RST is a client's that never opened a connection.
            _ => return None,
        };
        Some(Arrival::Answer {
            number: self.word(8)?.wrapping_sub(1),
            from: request.source,
            answer,
        })
    }
}

/// The checksum of SCTP.
fn crc32c(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    });
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(transport: Transport, source: &str, target: &str) -> Request {
        Request {
            number: 0x0102_0304,
            transport,
            source: source.parse().unwrap(),
            target: target.parse().unwrap(),
        }
    }

    #[test]
    fn a_request_is_recognised_in_every_protocol_and_family() {
        for transport in [Transport::Tcp, Transport::Udp, Transport::Sctp] {
            for (source, target) in [
                ("10.0.0.1:1000", "10.0.0.2:80"),
                ("[fd00::1]:1000", "[fd00::2]:80"),
            ] {
                let request = request(transport, source, target);
                let read = Arrival::read(&request.bytes());
                assert_eq!(read, Some(Arrival::Request(request)));
            }
        }
    }

    #[test]
    fn checksums_are_those_of_the_protocols() {
        // A segment with its own checksum in it sums up to zero.
        for transport in [Transport::Tcp, Transport::Udp] {
            let request = request(transport, "10.0.0.1:1000", "10.0.0.2:80");
            assert_eq!(request.checksum(&request.segment()), 0);
        }
        // The check value of the polynomial.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn an_unreachable_message_names_the_request_in_it() {
        let request = request(Transport::Udp, "10.0.0.1:1000", "10.0.0.2:80");
        let mut message = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, ICMP, 0, 0];
        message.extend([10, 0, 0, 9, 10, 0, 0, 1]);
        message.extend([3, 3, 0, 0, 0, 0, 0, 0]);
        message.extend(request.bytes());
        let expected = Arrival::Answer {
            number: request.number,
            from: request.target,
            answer: Answer::Unreachable(3),
        };
        assert_eq!(Arrival::read(&message), Some(expected));
    }

    #[test]
    fn noise_is_no_arrival() {
        assert_eq!(Arrival::read(&[]), None);
        assert_eq!(Arrival::read(&[0x45; 19]), None);
        assert_eq!(Arrival::read(&[0x60; 41]), None);
    }
}
