//! Netlink messages as bytes, in native byte order unless a subsystem says otherwise.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weft_model::IpFamily;

/// Size of `nlmsghdr`.
const HEADER: usize = 16;
/// Size of `nlattr`.
const ATTRIBUTE_HEADER: usize = 4;
/// Set in the type of an attribute that contains attributes.
const NESTED: u16 = 0x8000;
/// The type of an attribute without its two flags.
const KIND_MASK: u16 = 0x3fff;

/// A message under construction.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// A message with its fixed part; attributes follow.
    pub(crate) fn new(kind: u16, flags: u16, fixed_part: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(fixed_part);
        pad(&mut bytes);
        Self { bytes }
    }

    /// Adds an attribute.
    #[must_use]
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.append(kind, |bytes| bytes.extend_from_slice(value));
        self
    }

    /// Adds an attribute that contains those which `build` adds.
    #[must_use]
    pub(crate) fn with_nested(mut self, kind: u16, build: impl FnOnce(Self) -> Self) -> Self {
        let start = self.begin(kind | NESTED);
        self = build(self);
        self.end(start);
        self
    }

    /// Bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Has the kernel confirm this message, as others of the same batch are not.
    pub(crate) fn add_flags(&mut self, flags: u16) {
        let all = u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) | flags;
        self.bytes[6..8].copy_from_slice(&all.to_ne_bytes());
    }

    fn append(&mut self, kind: u16, value: impl FnOnce(&mut Vec<u8>)) {
        let start = self.begin(kind);
        value(&mut self.bytes);
        self.end(start);
        pad(&mut self.bytes);
    }

    /// Opens an attribute whose length [`end`](Self::end) fills in.
    fn begin(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn end(&mut self, start: usize) {
        let length = u16::try_from(self.bytes.len() - start)
            .expect("lists of elements are split long before 64 kB");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// The finished message.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).expect("attributes are bounded");
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    /// The number of the socket that the message answers or that caused it.
    pub(super) sender: u32,
    pub(super) payload: &'a [u8],
}

/// The messages of one datagram, up to a truncated one.
pub(super) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(fixed(datagram, 0)?)).ok()?;
        let message = Message {
            kind: u16::from_ne_bytes(fixed(datagram, 4)?),
            flags: u16::from_ne_bytes(fixed(datagram, 6)?),
            sequence: u32::from_ne_bytes(fixed(datagram, 8)?),
            sender: u32::from_ne_bytes(fixed(datagram, 12)?),
            payload: datagram.get(HEADER..length)?,
        };
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    })
}

/// A received attribute, its kind without flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attribute<'a> {
    pub(crate) kind: u16,
    pub(crate) value: &'a [u8],
}

/// The attributes in a payload behind its fixed part, or in a nested attribute.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(fixed(bytes, 0)?));
        let attribute = Attribute {
            kind: u16::from_ne_bytes(fixed(bytes, 2)?) & KIND_MASK,
            value: bytes.get(ATTRIBUTE_HEADER..length)?,
        };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(attribute)
    })
}

/// `N` bytes from an offset, if there are that many.
pub(crate) fn fixed<const N: usize>(bytes: &[u8], start: usize) -> Option<[u8; N]> {
    bytes.get(start..start + N)?.try_into().ok()
}

/// An IP address in an attribute; the length determines the family.
pub(crate) fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(Ipv4Addr::from(fixed::<4>(value, 0)?).into()),
        16 => Some(Ipv6Addr::from(fixed::<16>(value, 0)?).into()),
        _ => None,
    }
}

/// `AF_INET` or `AF_INET6`.
pub(crate) fn family_number(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => 2,
        IpFamily::V6 => 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_read_back() {
        let bytes = Request::new(0x0102, 5, &[9])
            .with(1, b"abcde")
            .with_nested(2, |inner| inner.with(3, &[7]).with(4, &[]))
            .finish(77);
        assert_eq!(bytes.len() % 4, 0);
        let mut two = bytes.clone();
        two.extend_from_slice(&bytes);

        let read: Vec<Message<'_>> = messages(&two).collect();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0], read[1]);
        let Message {
            kind,
            flags,
            sequence,
            payload,
            sender: _,
        } = read[0];
        assert_eq!((kind, flags, sequence), (0x0102, 5, 77));
        assert_eq!(payload[0], 9);
        let outer: Vec<Attribute<'_>> = attributes(&payload[4..]).collect();
        assert_eq!(
            outer[0],
            Attribute {
                kind: 1,
                value: b"abcde"
            }
        );
        assert_eq!(outer[1].kind, 2);
        let inner: Vec<(u16, &[u8])> = attributes(outer[1].value)
            .map(|attribute| (attribute.kind, attribute.value))
            .collect();
        assert_eq!(inner, [(3, &[7][..]), (4, &[][..])]);
    }

    #[test]
    fn torn_bytes_end_the_reading_and_never_panic() {
        let whole = Request::new(1, 0, &[0; 4])
            .with(1, b"abc")
            .with_nested(2, |inner| inner.with(3, b"defg"))
            .finish(1);
        for length in 0..whole.len() {
            for message in messages(&whole[..length]) {
                for attribute in attributes(message.payload) {
                    assert_eq!(attributes(attribute.value).count(), 0);
                }
            }
            assert_eq!(messages(&whole[..length]).count(), 0, "{length}");
        }
        // Wrong lengths: zero would loop forever, a huge one would read beyond the end.
        assert_eq!(messages(&[0; 64]).count(), 0);
        assert_eq!(attributes(&[0; 64]).count(), 0);
        assert_eq!(attributes(&[0xff; 64]).count(), 0);
        assert_eq!(messages(&[0xff; 64]).count(), 0);
    }
}
