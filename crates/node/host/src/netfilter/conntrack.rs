//! Conntrack entries over netlink: list and delete.

use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use weft_model::{IpFamily, Protocol};

use crate::{
    netfilter::{Netfilter, Subsystem, body, request},
    netlink::{
        Attribute, FLAG_ACKNOWLEDGE, FLAG_DUMP, FLAG_REQUEST, NetlinkError, Request, address,
        attributes, family_number, fixed,
    },
};

const GET: u8 = 1;
const DELETE: u8 = 2;

const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;

const FILTER_ORIGINAL: u16 = 1;
const FILTER_REPLY: u16 = 2;
/// `CTA_FILTER_F_CTA_PROTO_NUM`: compare only the protocol number. In native byte order.
const FILTER_FLAG_PROTOCOL: u32 = 1 << 3;

const TUPLE_ADDRESSES: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const TUPLE_ZONE: u16 = 3;

const V4_SOURCE: u16 = 1;
const V4_DESTINATION: u16 = 2;
const V6_SOURCE: u16 = 3;
const V6_DESTINATION: u16 = 4;

const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;

/// Number of dumps before an inconsistent list is accepted.
const TRIES: u32 = 5;

/// Source and destination of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoints {
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
}

/// Conntrack zone of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Zone {
    /// The zone of both directions.
    Both(u16),
    /// The zone of the original direction only.
    Original(u16),
}

/// A conntrack entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Addresses of the first packet, before translation.
    pub original: Endpoints,
    /// Addresses of the replies; the source is the translated destination.
    pub reply: Endpoints,
    /// `None` for the default zone.
    pub zone: Option<Zone>,
    /// Distinguishes the entry from a later one with the same addresses.
    pub id: u32,
}

impl Netfilter {
    /// All conntrack entries of a family and protocol.
    pub fn flows(
        &mut self,
        family: IpFamily,
        protocol: Protocol,
    ) -> Result<Vec<Flow>, NetlinkError> {
        self.flows_where(family, protocol, |_| true)
    }

    /// The conntrack entries of a family and protocol that `keep` accepts.
    ///
    /// The kernel sends only what matches family and protocol (since Linux 5.8; older ones send the
    /// family). If the table changes so fast that five dumps are inconsistent, the last one is
    /// returned: it may miss entries, but every entry in it existed.
    pub fn flows_where(
        &mut self,
        family: IpFamily,
        protocol: Protocol,
        mut keep: impl FnMut(&Flow) -> bool,
    ) -> Result<Vec<Flow>, NetlinkError> {
        let mut flows = Vec::new();
        for _ in 0..TRIES {
            flows.clear();
            let wanted = |flow: &Flow| {
                flow.protocol == protocol && IpFamily::of(flow.original.source.ip()) == family
            };
            let outcome = self.socket.request(
                "list conntrack entries",
                dump(family, protocol),
                |payload| {
                    flows.extend(parse(payload).filter(wanted).filter(&mut keep));
                },
            );
            match outcome {
                Ok(()) => return Ok(flows),
                Err(error) if error.errno() == Some(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        tracing::debug!(
            tries = TRIES,
            "conntrack dump was inconsistent, using the last one"
        );
        Ok(flows)
    }

    /// Deletes an entry. Returns whether it still existed.
    pub fn delete_flow(&mut self, flow: &Flow) -> Result<bool, NetlinkError> {
        let outcome = self
            .socket
            .request("delete a conntrack entry", deletion(flow), |_| ());
        match outcome {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn dump(family: IpFamily, protocol: Protocol) -> Request {
    request(
        Subsystem::Conntrack,
        GET,
        FLAG_REQUEST | FLAG_DUMP,
        family_number(family),
    )
    .with_nested(TUPLE_ORIGINAL, |tuple| {
        tuple.with_nested(TUPLE_PROTOCOL, |part| {
            part.with(PROTOCOL_NUMBER, &[protocol_number(protocol)])
        })
    })
    .with_nested(FILTER, |filter| {
        filter
            .with(FILTER_ORIGINAL, &FILTER_FLAG_PROTOCOL.to_ne_bytes())
            .with(FILTER_REPLY, &0_u32.to_ne_bytes())
    })
}

fn deletion(flow: &Flow) -> Request {
    let flags = FLAG_REQUEST | FLAG_ACKNOWLEDGE;
    let family = IpFamily::of(flow.original.source.ip());
    let request = request(Subsystem::Conntrack, DELETE, flags, family_number(family))
        .with_nested(TUPLE_ORIGINAL, |tuple| {
            let tuple = with_endpoints(tuple, flow.protocol, &flow.original);
            match flow.zone {
                Some(Zone::Original(zone)) => tuple.with(TUPLE_ZONE, &zone.to_be_bytes()),
                Some(Zone::Both(_)) | None => tuple,
            }
        })
        // Without the ID, an entry created in the meantime would be deleted.
        .with(ID, &flow.id.to_be_bytes());
    match flow.zone {
        Some(Zone::Both(zone)) => request.with(ZONE, &zone.to_be_bytes()),
        Some(Zone::Original(_)) | None => request,
    }
}

fn with_endpoints(tuple: Request, protocol: Protocol, endpoints: &Endpoints) -> Request {
    let Endpoints {
        source,
        destination,
    } = endpoints;
    let (source_kind, destination_kind) = match source.ip() {
        IpAddr::V4(_) => (V4_SOURCE, V4_DESTINATION),
        IpAddr::V6(_) => (V6_SOURCE, V6_DESTINATION),
    };
    tuple
        .with_nested(TUPLE_ADDRESSES, |part| {
            part.with(source_kind, &octets(source.ip()))
                .with(destination_kind, &octets(destination.ip()))
        })
        .with_nested(TUPLE_PROTOCOL, |part| {
            part.with(PROTOCOL_NUMBER, &[protocol_number(protocol)])
                .with(SOURCE_PORT, &source.port().to_be_bytes())
                .with(DESTINATION_PORT, &destination.port().to_be_bytes())
        })
}

/// An entry, unless its protocol or addresses are not supported.
fn parse(payload: &[u8]) -> std::option::IntoIter<Flow> {
    parse_flow(body(payload)).into_iter()
}

fn parse_flow(bytes: &[u8]) -> Option<Flow> {
    let (mut original, mut reply, mut zone, mut id) = (None, None, None, 0);
    for Attribute { kind, value } in attributes(bytes) {
        match kind {
            TUPLE_ORIGINAL => original = Some(parse_tuple(value)?),
            TUPLE_REPLY => reply = Some(parse_tuple(value)?),
            ZONE => zone = fixed(value, 0).map(|zone| Zone::Both(u16::from_be_bytes(zone))),
            ID => id = u32::from_be_bytes(fixed(value, 0)?),
            _ => {}
        }
    }
    let original = original?;
    Some(Flow {
        protocol: original.protocol,
        original: original.endpoints,
        reply: reply?.endpoints,
        zone: zone.or(original.zone.map(Zone::Original)),
        id,
    })
}

struct Tuple {
    protocol: Protocol,
    endpoints: Endpoints,
    zone: Option<u16>,
}

fn parse_tuple(bytes: &[u8]) -> Option<Tuple> {
    let (mut source, mut destination) = (None, None);
    let (mut protocol, mut source_port, mut destination_port) = (None, 0, 0);
    let mut zone = None;
    for outer in attributes(bytes) {
        for Attribute { kind, value } in nested(outer) {
            match (outer.kind, kind) {
                (TUPLE_ADDRESSES, V4_SOURCE | V6_SOURCE) => source = address(value),
                (TUPLE_ADDRESSES, V4_DESTINATION | V6_DESTINATION) => destination = address(value),
                (TUPLE_PROTOCOL, PROTOCOL_NUMBER) => protocol = known_protocol(*value.first()?),
                (TUPLE_PROTOCOL, SOURCE_PORT) => source_port = port(value)?,
                (TUPLE_PROTOCOL, DESTINATION_PORT) => destination_port = port(value)?,
                _ => {}
            }
        }
        if outer.kind == TUPLE_ZONE {
            zone = port(outer.value);
        }
    }
    Some(Tuple {
        protocol: protocol?,
        endpoints: Endpoints {
            source: SocketAddr::new(source?, source_port),
            destination: SocketAddr::new(destination?, destination_port),
        },
        zone,
    })
}

/// The attributes inside an attribute.
fn nested(outer: Attribute<'_>) -> impl Iterator<Item = Attribute<'_>> {
    let holds = matches!(outer.kind, TUPLE_ADDRESSES | TUPLE_PROTOCOL);
    attributes(if holds { outer.value } else { &[] })
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn port(value: &[u8]) -> Option<u16> {
    fixed(value, 0).map(u16::from_be_bytes)
}

fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

fn known_protocol(number: u8) -> Option<Protocol> {
    Protocol::ALL
        .into_iter()
        .find(|protocol| protocol_number(*protocol) == number)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use weft_testkit::lab;

    use super::*;

    #[test]
    fn the_kernel_sends_only_the_protocol_that_was_asked_for() {
        lab::with_programs(&["iptables-nft"], |lab| {
            // The kernel tracks connections only where a rule needs it.
            let rule = "-A OUTPUT -m conntrack --ctstate INVALID -j DROP";
            let words: Vec<&str> = rule.split(' ').collect();
            lab.program("iptables-nft", &words);
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let _stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
            let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
            sender
                .send_to(b"weft", receiver.local_addr().unwrap())
                .unwrap();

            let mut netfilter = Netfilter::open().unwrap();
            for protocol in [Protocol::Udp, Protocol::Tcp] {
                let mut received = Vec::new();
                let request = dump(IpFamily::V4, protocol);
                let collect = |payload: &[u8]| received.push(parse_flow(body(payload)));
                netfilter.socket.request("list", request, collect).unwrap();
                let protocols: Vec<_> = received
                    .iter()
                    .map(|flow| flow.map(|flow| flow.protocol))
                    .collect();
                assert_eq!(protocols, [Some(protocol)]);
            }
        });
    }

    #[test]
    fn a_torn_entry_is_left_out_and_never_panics() {
        let flow = Flow {
            protocol: Protocol::Udp,
            original: Endpoints {
                source: "10.0.0.1:1000".parse().unwrap(),
                destination: "10.96.0.10:53".parse().unwrap(),
            },
            reply: Endpoints {
                source: "10.1.0.5:53".parse().unwrap(),
                destination: "10.0.0.1:1000".parse().unwrap(),
            },
            zone: Some(Zone::Original(3)),
            id: 7,
        };
        let message = deletion(&flow)
            .with_nested(TUPLE_REPLY, |tuple| {
                with_endpoints(tuple, flow.protocol, &flow.reply)
            })
            .finish(1);
        let entry = &message[20..];
        assert_eq!(parse_flow(entry), Some(flow));
        for length in 0..entry.len() {
            assert_eq!(parse_flow(&entry[..length]), None, "{length}");
        }
    }
}
