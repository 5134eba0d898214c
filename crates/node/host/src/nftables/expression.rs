//! Expressions: the instructions of which rules consist.
//!
//! Only those that our rules use. What else the kernel sends is [`Expression::Other`], which is
//! equal to none of ours.

use weft_model::IpFamily;

use super::{
    attribute::{Read, Write as _},
    value::Value,
};
use crate::netlink::{Request, family_number};

/// One of the sixteen registers of four bytes. A longer value takes this one and those behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u8);

/// Four of them are also known as one of sixteen bytes, numbered from 1.
const WIDE: u8 = 4;
const FIRST_NARROW: u32 = 8;
const VERDICT_REGISTER: u32 = 0;

impl Register {
    /// As the kernel numbers it when it sends rules.
    fn number(self) -> u32 {
        if self.0.is_multiple_of(WIDE) {
            u32::from(self.0 / WIDE) + 1
        } else {
            u32::from(self.0) + FIRST_NARROW
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        let slot = match number {
            1..=4 => (number - 1) * u32::from(WIDE),
            8..=23 => number - FIRST_NARROW,
            _ => return None,
        };
        u8::try_from(slot).ok().map(Self)
    }
}

/// The header that payload offsets are counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The IP header.
    Network,
    /// The header of TCP, UDP or SCTP.
    Transport,
}

/// A property of a packet beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    /// `skb->priority`, which queueing disciplines read.
    Priority,
    /// The packet mark.
    Mark,
    /// The name of the device that the packet came in by, 16 bytes.
    InputInterface,
    /// The protocol behind the IP header.
    Protocol,
}

/// The address that a routing table is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibAddress {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// The answer to a packet that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// ICMP port unreachable, of this family.
    PortUnreachable(IpFamily),
    /// A TCP reset.
    TcpReset,
}

/// An operation of a rule on an element of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapChange {
    /// Adds the element, or sets back the clock of one that exists, whose data stays.
    Update {
        /// Time until it expires, in milliseconds.
        timeout: u64,
    },
    /// Deletes it.
    Delete,
}

/// The next place of a packet after a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Lost without a word.
    Drop,
    /// Back to the rule that jumped here.
    Return,
    /// To a chain, and back at its end.
    Jump(String),
    /// To a chain, and not back.
    Goto(String),
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Loads bytes of the packet.
    Payload {
        /// Counted from here.
        header: Header,
        /// The first.
        offset: u32,
        /// Number of bytes or values.
        length: u32,
        /// The destination register.
        to: Register,
    },
    /// Loads a property.
    Meta(Meta, Register),
    /// Sets a property.
    SetMeta(Meta, Register),
    /// Loads the status bits of the connection.
    ConnectionStatus(Register),
    /// Ends the rule unless the register holds this value, or does not hold it.
    Compare {
        /// True to continue on a match, false to continue without one.
        equal: bool,
        /// The register.
        register: Register,
        /// The value.
        value: Value,
    },
    /// `to = (from & mask) ^ xor`.
    Bitwise {
        /// Both source and destination.
        register: Register,
        /// Bits to keep.
        mask: Value,
        /// Bits to turn over.
        xor: Value,
    },
    /// Ends the rule unless a set holds the register's value, or holds it not.
    Contains {
        /// The set.
        set: String,
        /// The key.
        key: Register,
        /// True to continue on a match, false to continue without one.
        expected: bool,
    },
    /// Loads from a map what belongs to a key; ends the rule if nothing does.
    Lookup {
        /// The map.
        map: String,
        /// The key.
        key: Register,
        /// The register that receives the data.
        to: Register,
    },
    /// Does what a verdict map says, if it says anything.
    LookupVerdict {
        /// The map.
        map: String,
        /// The key.
        key: Register,
    },
    /// Changes a map.
    ChangeMap {
        /// The map.
        map: String,
        /// The operation on the element.
        change: MapChange,
        /// The key.
        key: Register,
        /// The data.
        data: Register,
    },
    /// Loads a constant.
    Immediate(Register, Value),
    /// Goes somewhere.
    Verdict(Verdict),
    /// A random number from `offset`, one of this many.
    Random {
        /// Number of bytes or values.
        modulus: u32,
        /// The least of them.
        offset: u32,
        /// The destination register.
        to: Register,
    },
    /// Changes the destination of the connection.
    Dnat {
        /// The family of the address.
        family: IpFamily,
        /// The address.
        address: Register,
        /// The port.
        port: Register,
    },
    /// Masquerades the connection, with a random source port.
    Masquerade,
    /// Refuses the packet.
    Reject(Rejection),
    /// The type of an address in the routing tables.
    FibType(FibAddress, Register),
    /// Counts packets; [`Nftables::rule_counters`](super::Nftables::rule_counters) reads how many.
    Counter,
    /// An instruction that is none of ours, by its name.
    Other(String),
}

const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;

const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;

const META_PRIORITY: u32 = 2;
const META_MARK: u32 = 3;
const META_IIFNAME: u32 = 6;
const META_L4PROTO: u32 = 16;

const CT_STATUS: u32 = 2;
const LOOKUP_INVERTED: u32 = 1;
const NUMGEN_RANDOM: u32 = 1;
const NAT_DESTINATION: u32 = 1;
const RANDOM_FULLY: u32 = 0x10;
const REJECT_ICMP: u32 = 0;
const REJECT_RESET: u32 = 1;
const FIB_TYPE: u32 = 3;
const FIB_SOURCE: u32 = 1;
const FIB_DESTINATION: u32 = 2;
const CHANGE_UPDATE: u32 = 1;
const CHANGE_DELETE: u32 = 2;

const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
const CODE_DROP: i32 = 0;
const CODE_JUMP: i32 = -3;
const CODE_GOTO: i32 = -4;
const CODE_RETURN: i32 = -5;

impl Meta {
    fn number(self) -> u32 {
        match self {
            Self::Priority => META_PRIORITY,
            Self::Mark => META_MARK,
            Self::InputInterface => META_IIFNAME,
            Self::Protocol => META_L4PROTO,
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        let all = [
            Self::Priority,
            Self::Mark,
            Self::InputInterface,
            Self::Protocol,
        ];
        all.into_iter().find(|meta| meta.number() == number)
    }
}

/// ICMP's code for an unreachable port.
fn port_unreachable(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => 3,
        IpFamily::V6 => 4,
    }
}

impl Verdict {
    /// Inside of the attribute `kind`, as data.
    pub(super) fn write(&self, request: Request, kind: u16) -> Request {
        let (code, chain) = match self {
            Self::Drop => (CODE_DROP, None),
            Self::Return => (CODE_RETURN, None),
            Self::Jump(chain) => (CODE_JUMP, Some(chain)),
            Self::Goto(chain) => (CODE_GOTO, Some(chain)),
        };
        request.with_nested(kind, |data| {
            data.with_nested(DATA_VERDICT, |verdict| {
                let verdict = verdict.with(VERDICT_CODE, &code.to_be_bytes());
                match chain {
                    Some(chain) => verdict.text(VERDICT_CHAIN, chain),
                    None => verdict,
                }
            })
        })
    }

    /// Out of the attribute `kind`.
    pub(super) fn read(read: Read<'_>, kind: u16) -> Option<Self> {
        let verdict = read.nested(kind)?.nested(DATA_VERDICT)?;
        let chain = || verdict.text(VERDICT_CHAIN).map(str::to_owned);
        match verdict.number(VERDICT_CODE)?.cast_signed() {
            CODE_DROP => Some(Self::Drop),
            CODE_RETURN => Some(Self::Return),
            CODE_JUMP => chain().map(Self::Jump),
            CODE_GOTO => chain().map(Self::Goto),
            _ => None,
        }
    }
}

impl Expression {
    /// The kernel's name for it, as in the names of its modules.
    pub fn name(&self) -> String {
        const HEADER: usize = 16;
        let message = self.write(Request::new(0, 0, &[])).finish(0);
        let attributes = Read(message.get(HEADER..).unwrap_or(&[]));
        attributes.text(EXPRESSION_NAME).unwrap_or("").to_owned()
    }

    pub(super) fn write(&self, request: Request) -> Request {
        let of = |name: &str, build: &dyn Fn(Request) -> Request| {
            let request = request.text(EXPRESSION_NAME, name);
            request.with_nested(EXPRESSION_DATA, build)
        };
        match self {
            Self::Payload {
                header,
                offset,
                length,
                to,
            } => {
                let header = match header {
                    Header::Network => NETWORK_HEADER,
                    Header::Transport => TRANSPORT_HEADER,
                };
                of("payload", &|data| {
                    data.number(1, to.number())
                        .number(2, header)
                        .number(3, *offset)
                        .number(4, *length)
                })
            }
            Self::Meta(meta, to) => of("meta", &|data| {
                data.number(2, meta.number()).number(1, to.number())
            }),
            Self::SetMeta(meta, from) => of("meta", &|data| {
                data.number(2, meta.number()).number(3, from.number())
            }),
            Self::ConnectionStatus(to) => of("ct", &|data| {
                data.number(2, CT_STATUS).number(1, to.number())
            }),
            Self::Compare {
                equal,
                register,
                value,
            } => of("cmp", &|data| {
                data.number(1, register.number())
                    .number(2, u32::from(!equal))
                    .data(3, value.as_bytes())
            }),
            Self::Bitwise {
                register,
                mask,
                xor,
            } => of("bitwise", &|data| {
                let length = u32::try_from(mask.as_bytes().len()).unwrap_or(u32::MAX);
                data.number(1, register.number())
                    .number(2, register.number())
                    .number(3, length)
                    .data(4, mask.as_bytes())
                    .data(5, xor.as_bytes())
            }),
            Self::Contains { set, key, expected } => of("lookup", &|data| {
                let flags = if *expected { 0 } else { LOOKUP_INVERTED };
                data.text(1, set).number(2, key.number()).number(5, flags)
            }),
            Self::Lookup { map, key, to } => of("lookup", &|data| {
                data.text(1, map)
                    .number(2, key.number())
                    .number(3, to.number())
            }),
            Self::LookupVerdict { map, key } => of("lookup", &|data| {
                data.text(1, map)
                    .number(2, key.number())
                    .number(3, VERDICT_REGISTER)
            }),
            Self::ChangeMap {
                map,
                change,
                key,
                data: from,
            } => of("dynset", &|data| {
                let (operation, timeout) = match change {
                    MapChange::Update { timeout } => (CHANGE_UPDATE, Some(*timeout)),
                    MapChange::Delete => (CHANGE_DELETE, None),
                };
                let data = data
                    .text(1, map)
                    .number(3, operation)
                    .number(4, key.number())
                    .number(5, from.number());
                match timeout {
                    Some(timeout) => data.long(6, timeout),
                    None => data,
                }
            }),
            Self::Immediate(to, value) => of("immediate", &|data| {
                data.number(1, to.number()).data(2, value.as_bytes())
            }),
            Self::Verdict(verdict) => of("immediate", &|data| {
                verdict.write(data.number(1, VERDICT_REGISTER), 2)
            }),
            Self::Random {
                modulus,
                offset,
                to,
            } => of("numgen", &|data| {
                data.number(1, to.number())
                    .number(2, *modulus)
                    .number(3, NUMGEN_RANDOM)
                    .number(4, *offset)
            }),
            Self::Dnat {
                family,
                address,
                port,
            } => of("nat", &|data| {
                data.number(1, NAT_DESTINATION)
                    .number(2, u32::from(family_number(*family)))
                    .number(3, address.number())
                    .number(5, port.number())
            }),
            Self::Counter => of("counter", &|data| data),
            Self::Masquerade => of("masq", &|data| data.number(1, RANDOM_FULLY)),
            Self::Reject(rejection) => of("reject", &|data| match rejection {
                Rejection::PortUnreachable(family) => data
                    .number(1, REJECT_ICMP)
                    .with(2, &[port_unreachable(*family)]),
                Rejection::TcpReset => data.number(1, REJECT_RESET),
            }),
            Self::FibType(address, to) => of("fib", &|data| {
                let flags = match address {
                    FibAddress::Source => FIB_SOURCE,
                    FibAddress::Destination => FIB_DESTINATION,
                };
                data.number(1, to.number())
                    .number(2, FIB_TYPE)
                    .number(3, flags)
            }),
            Self::Other(name) => of(name, &|data| data),
        }
    }

    pub(super) fn read(read: Read<'_>) -> Self {
        let name = read.text(EXPRESSION_NAME).unwrap_or_default();
        let data = read.nested(EXPRESSION_DATA).unwrap_or(Read(&[]));
        Self::read_known(name, data).unwrap_or_else(|| Self::Other(name.to_owned()))
    }

    fn read_known(name: &str, data: Read<'_>) -> Option<Self> {
        let register = |kind| Register::from_number(data.number(kind)?);
        let value = |kind| Value::from_slice(data.data(kind)?);
        let text = |kind| data.text(kind).map(str::to_owned);
        Some(match name {
            "payload" => Self::Payload {
                header: match data.number(2)? {
                    NETWORK_HEADER => Header::Network,
                    TRANSPORT_HEADER => Header::Transport,
                    _ => return None,
                },
                offset: data.number(3)?,
                length: data.number(4)?,
                to: register(1)?,
            },
            "meta" => {
                let meta = Meta::from_number(data.number(2)?)?;
                match register(3) {
                    Some(from) => Self::SetMeta(meta, from),
                    None => Self::Meta(meta, register(1)?),
                }
            }
            "ct" if data.number(2)? == CT_STATUS => Self::ConnectionStatus(register(1)?),
            "cmp" => Self::Compare {
                equal: match data.number(2)? {
                    0 => true,
                    1 => false,
                    _ => return None,
                },
                register: register(1)?,
                value: value(3)?,
            },
            "bitwise" if register(1)? == register(2)? => Self::Bitwise {
                register: register(1)?,
                mask: value(4)?,
                xor: value(5)?,
            },
            "lookup" => match data.number(3) {
                Some(VERDICT_REGISTER) => Self::LookupVerdict {
                    map: text(1)?,
                    key: register(2)?,
                },
                Some(_) => Self::Lookup {
                    map: text(1)?,
                    key: register(2)?,
                    to: register(3)?,
                },
                None => Self::Contains {
                    set: text(1)?,
                    key: register(2)?,
                    expected: data.number(5).unwrap_or(0) & LOOKUP_INVERTED == 0,
                },
            },
            "dynset" => Self::ChangeMap {
                map: text(1)?,
                change: match data.number(3)? {
                    CHANGE_UPDATE => MapChange::Update {
                        timeout: data.long(6)?,
                    },
                    CHANGE_DELETE => MapChange::Delete,
                    _ => return None,
                },
                key: register(4)?,
                data: register(5)?,
            },
            "immediate" => match data.number(1)? {
                VERDICT_REGISTER => Self::Verdict(Verdict::read(data, 2)?),
                _ => Self::Immediate(register(1)?, value(2)?),
            },
            "numgen" if data.number(3)? == NUMGEN_RANDOM => Self::Random {
                modulus: data.number(2)?,
                offset: data.number(4).unwrap_or(0),
                to: register(1)?,
            },
            "nat" if data.number(1)? == NAT_DESTINATION => Self::Dnat {
                family: IpFamily::ALL
                    .into_iter()
                    .find(|family| data.number(2) == Some(family_number(*family).into()))?,
                address: register(3)?,
                port: register(5)?,
            },
            "counter" => Self::Counter,
            "masq" if data.number(1)? == RANDOM_FULLY => Self::Masquerade,
            "reject" => Self::Reject(match data.number(1)? {
                REJECT_RESET => Rejection::TcpReset,
                REJECT_ICMP => {
                    let code = *data.bytes(2)?.first()?;
                    let mut families = IpFamily::ALL.into_iter();
                    let family = families.find(|family| port_unreachable(*family) == code)?;
                    Rejection::PortUnreachable(family)
                }
                _ => return None,
            }),
            "fib" if data.number(2)? == FIB_TYPE => Self::FibType(
                match data.number(3)? {
                    FIB_SOURCE => FibAddress::Source,
                    FIB_DESTINATION => FibAddress::Destination,
                    _ => return None,
                },
                register(1)?,
            ),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_the_numbers_that_the_kernel_prints() {
        let numbers: Vec<u32> = (0..6).map(|slot| Register(slot).number()).collect();
        assert_eq!(numbers, [1, 9, 10, 11, 2, 13]);
        for slot in 0..16 {
            let register = Register(slot);
            assert_eq!(Register::from_number(register.number()), Some(register));
            // Narrow numbers are understood as well.
            assert_eq!(Register::from_number(8 + u32::from(slot)), Some(register));
        }
        assert_eq!(Register::from_number(VERDICT_REGISTER), None);
    }
}
