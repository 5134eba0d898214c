//! Sequences of expressions that `nft` prints as one readable term.

use std::net::IpAddr;

use ipnet::IpNet;
use weft_host::nftables::{
    Expression, FibAddress, Header, MapChange, Meta, Register, Rule, Value, Verdict,
};
use weft_model::IpFamily;
use weft_proxy::LocalDetector;

use crate::{
    collection::CLIENTS,
    front::{FrontKind, address},
    scratch::AFFINITY_MASK,
};

const FIRST: Register = Register(0);
/// `RTN_LOCAL` of rtnetlink: an address of this host.
const LOCAL_ADDRESS: u32 = 2;
/// `IPS_DST_NAT` of conntrack: the destination was changed.
const DESTINATION_CHANGED: u32 = 0x20;
/// The kernel's length of device names.
const DEVICE_NAME: usize = 16;

/// Source or destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Destination,
}

/// The result of a test with which a rule goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Match,
    Mismatch,
}

/// A rule under construction.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    family: IpFamily,
    expressions: Vec<Expression>,
    /// The next register of a key under construction.
    next: u8,
    comment: Option<String>,
}

impl Code {
    pub(crate) fn new(family: IpFamily) -> Self {
        Self {
            family,
            expressions: Vec::new(),
            next: 0,
            comment: None,
        }
    }

    pub(crate) fn say(mut self, comment: &str) -> Self {
        self.comment = Some(comment.to_owned());
        self
    }

    pub(crate) fn rule(self, chain: &str) -> Rule {
        Rule {
            chain: chain.to_owned(),
            expressions: self.expressions,
            comment: self.comment,
        }
    }

    fn push(mut self, expression: Expression) -> Self {
        self.expressions.push(expression);
        self
    }

    /// Registers of four bytes that an address takes.
    fn width(&self) -> u8 {
        match self.family {
            IpFamily::V4 => 1,
            IpFamily::V6 => 4,
        }
    }

    fn take(&mut self, width: u8) -> Register {
        let register = Register(self.next);
        self.next += width;
        register
    }

    fn offset(&self, side: Side) -> u32 {
        match (self.family, side) {
            (IpFamily::V4, Side::Source) => 12,
            (IpFamily::V4, Side::Destination) => 16,
            (IpFamily::V6, Side::Source) => 8,
            (IpFamily::V6, Side::Destination) => 24,
        }
    }

    fn payload(self, side: Side, length: u32, to: Register) -> Self {
        let offset = self.offset(side);
        self.push(Expression::Payload {
            header: Header::Network,
            offset,
            length,
            to,
        })
    }

    /// Adds an address to the key.
    pub(crate) fn address(mut self, side: Side) -> Self {
        let width = self.width();
        let to = self.take(width);
        self.payload(side, u32::from(width) * 4, to)
    }

    /// Adds the protocol to the key.
    pub(crate) fn protocol(mut self) -> Self {
        let to = self.take(1);
        self.push(Expression::Meta(Meta::Protocol, to))
    }

    /// Adds what packets to a front are recognised by to the key.
    pub(crate) fn front(self, kind: FrontKind) -> Self {
        let code = match kind {
            FrontKind::Address => self.address(Side::Destination),
            FrontKind::NodePort => self,
        };
        let mut code = code.protocol();
        let to = code.take(1);
        code.push(Expression::Payload {
            header: Header::Transport,
            offset: 2,
            length: 2,
            to,
        })
    }

    /// Adds the scratch register to the key.
    pub(crate) fn scratch(mut self) -> Self {
        let to = self.take(1);
        self.push(Expression::Meta(Meta::Priority, to))
    }

    fn scratch_masked(mut self, mask: u32) -> Self {
        let register = self.take(1);
        self.push(Expression::Meta(Meta::Priority, register))
            .push(bitwise(register, mask, 0))
    }

    /// Goes on if a set contains the key, or does not.
    pub(crate) fn if_in(mut self, set: &str, expected: Expected) -> Self {
        self.next = 0;
        self.push(Expression::Contains {
            set: set.to_owned(),
            key: FIRST,
            expected: expected == Expected::Match,
        })
    }

    /// Puts into the scratch register what a map has for the key.
    pub(crate) fn look_up(mut self, map: &str) -> Self {
        self.next = 0;
        self.push(Expression::Lookup {
            map: map.to_owned(),
            key: FIRST,
            to: FIRST,
        })
        .push(Expression::SetMeta(Meta::Priority, FIRST))
    }

    /// Sends the connection to the endpoint that a map has for the key.
    pub(crate) fn dnat(self, map: &str) -> Self {
        let (family, port) = (self.family, Register(self.width()));
        self.push(Expression::Lookup {
            map: map.to_owned(),
            key: FIRST,
            to: FIRST,
        })
        .push(Expression::Dnat {
            family,
            address: FIRST,
            port,
        })
    }

    /// Goes where a map of verdicts says for the masked scratch register.
    pub(crate) fn dispatch(mut self, mask: u32, map: &str) -> Self {
        self = if mask == u32::MAX {
            self.scratch()
        } else {
            self.scratch_masked(mask)
        };
        self.next = 0;
        self.push(Expression::LookupVerdict {
            map: map.to_owned(),
            key: FIRST,
        })
    }

    pub(crate) fn set_scratch(self, number: u32) -> Self {
        self.push(Expression::Immediate(FIRST, number_value(number)))
            .push(Expression::SetMeta(Meta::Priority, FIRST))
    }

    pub(crate) fn set_bits(self, bits: u32) -> Self {
        self.push(Expression::Meta(Meta::Priority, FIRST))
            .push(bitwise(FIRST, !bits, bits))
            .push(Expression::SetMeta(Meta::Priority, FIRST))
    }

    pub(crate) fn draw(self, modulus: u32, offset: u32) -> Self {
        self.push(Expression::Random {
            modulus,
            offset,
            to: FIRST,
        })
        .push(Expression::SetMeta(Meta::Priority, FIRST))
    }

    /// Goes on if the masked scratch register has this value, or has it not.
    pub(crate) fn masked(self, mask: u32, value: u32, expected: Expected) -> Self {
        self.push(Expression::Meta(Meta::Priority, FIRST))
            .push(bitwise(FIRST, mask, 0))
            .compare(expected, number_value(value))
    }

    /// Goes on if a flag is set.
    pub(crate) fn flagged(self, flag: u32) -> Self {
        self.masked(flag, flag, Expected::Match)
    }

    fn compare(self, expected: Expected, value: Value) -> Self {
        self.push(Expression::Compare {
            equal: expected == Expected::Match,
            register: FIRST,
            value,
        })
    }

    pub(crate) fn protocol_is(self, number: u8) -> Self {
        let value = Value::from_slice(&[number]).unwrap_or(Value::EMPTY);
        self.push(Expression::Meta(Meta::Protocol, FIRST))
            .compare(Expected::Match, value)
    }

    /// Goes on if an address is within a network, or is not.
    pub(crate) fn within(self, side: Side, network: IpNet, expected: Expected) -> Self {
        let bytes = address(network.network());
        let length = usize::from(network.prefix_len());
        if length > 0 && length.is_multiple_of(8) {
            let count = length / 8;
            let value = Value::from_slice(&bytes.as_bytes()[..count]).unwrap_or(Value::EMPTY);
            let count = u32::try_from(count).unwrap_or_default();
            return self.payload(side, count, FIRST).compare(expected, value);
        }
        let width = u32::from(self.width()) * 4;
        let zero = Value::from_slice(&vec![0; bytes.as_bytes().len()]).unwrap_or(Value::EMPTY);
        self.payload(side, width, FIRST)
            .push(Expression::Bitwise {
                register: FIRST,
                mask: address(network.netmask()),
                xor: zero,
            })
            .compare(expected, bytes)
    }

    /// Goes on if an address is one of this host's.
    pub(crate) fn if_local(self, side: Side) -> Self {
        let side = match side {
            Side::Source => FibAddress::Source,
            Side::Destination => FibAddress::Destination,
        };
        self.push(Expression::FibType(side, FIRST))
            .compare(Expected::Match, number_value(LOCAL_ADDRESS))
    }

    /// Goes on if a pod of this node sent the packet, or none did.
    pub(crate) fn if_pod(self, detector: &LocalDetector, expected: Expected) -> Self {
        let device = |name: &[u8]| Value::from_slice(name).unwrap_or(Value::EMPTY);
        match detector {
            LocalDetector::Network(network) => self.within(Side::Source, *network, expected),
            LocalDetector::Bridge(name) => {
                let mut padded = [0; DEVICE_NAME];
                let name = &name.as_bytes()[..name.len().min(DEVICE_NAME - 1)];
                padded[..name.len()].copy_from_slice(name);
                self.push(Expression::Meta(Meta::InputInterface, FIRST))
                    .compare(expected, device(&padded))
            }
            LocalDetector::InterfacePrefix(name) => {
                let name = &name.as_bytes()[..name.len().min(DEVICE_NAME - 1)];
                self.push(Expression::Meta(Meta::InputInterface, FIRST))
                    .compare(expected, device(name))
            }
        }
    }

    /// Goes on if the destination of the connection was changed.
    pub(crate) fn if_translated(self) -> Self {
        self.push(Expression::ConnectionStatus(FIRST))
            .push(bitwise(FIRST, DESTINATION_CHANGED, 0))
            .compare(Expected::Mismatch, number_value(0))
    }

    pub(crate) fn mark(self, bit: u32) -> Self {
        self.push(Expression::Meta(Meta::Mark, FIRST))
            .push(bitwise(FIRST, !bit, bit))
            .push(Expression::SetMeta(Meta::Mark, FIRST))
    }

    pub(crate) fn if_marked(self, bit: u32) -> Self {
        self.push(Expression::Meta(Meta::Mark, FIRST))
            .push(bitwise(FIRST, bit, 0))
            .compare(Expected::Mismatch, number_value(0))
    }

    pub(crate) fn unmark(self, bit: u32) -> Self {
        self.push(Expression::Meta(Meta::Mark, FIRST))
            .push(bitwise(FIRST, u32::MAX, bit))
            .push(Expression::SetMeta(Meta::Mark, FIRST))
    }

    /// Remembers or forgets the endpoint in the scratch register for the client.
    pub(crate) fn client(self, change: MapChange) -> Self {
        let mut code = self.address(Side::Source).scratch_masked(AFFINITY_MASK);
        // Behind the key, and aligned as nft would have it.
        let data = Register(code.next.next_multiple_of(4));
        code.next = 0;
        code.push(Expression::Meta(Meta::Priority, data))
            .push(Expression::ChangeMap {
                map: CLIENTS.to_owned(),
                change,
                key: FIRST,
                data,
            })
    }

    pub(crate) fn then(self, expression: Expression) -> Self {
        self.push(expression)
    }

    pub(crate) fn jump(self, chain: impl Into<String>) -> Self {
        self.push(Expression::Verdict(Verdict::Jump(chain.into())))
    }

    pub(crate) fn goto(self, chain: impl Into<String>) -> Self {
        self.push(Expression::Verdict(Verdict::Goto(chain.into())))
    }

    pub(crate) fn drop(self) -> Self {
        self.push(Expression::Verdict(Verdict::Drop))
    }

    pub(crate) fn leave(self) -> Self {
        self.push(Expression::Verdict(Verdict::Return))
    }

    /// Goes on unless an address is a loopback one.
    pub(crate) fn not_loopback(self, side: Side) -> Self {
        self.loopback(side, Expected::Mismatch)
    }

    /// Goes on if an address is a loopback one, or is not.
    pub(crate) fn loopback(self, side: Side, expected: Expected) -> Self {
        let network = match self.family {
            IpFamily::V4 => IpNet::new(IpAddr::from([127, 0, 0, 0]), 8),
            IpFamily::V6 => IpNet::new(std::net::Ipv6Addr::LOCALHOST.into(), 128),
        };
        match network {
            Ok(network) => self.within(side, network, expected),
            Err(_) => self,
        }
    }
}

fn number_value(number: u32) -> Value {
    Value::EMPTY.with_number(number)
}

fn bitwise(register: Register, mask: u32, xor: u32) -> Expression {
    Expression::Bitwise {
        register,
        mask: number_value(mask),
        xor: number_value(xor),
    }
}
