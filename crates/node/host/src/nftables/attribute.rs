//! Attributes as nf_tables writes them: numbers in network byte order, names ended by zero.

use crate::{
    netfilter::terminated,
    netlink::{Request, attributes, fixed},
};

/// An element of any list.
pub(super) const LIST_ELEMENT: u16 = 1;

const DATA_VALUE: u16 = 1;

/// Writing, in the kernel's conventions.
pub(super) trait Write: Sized {
    fn number(self, kind: u16, number: u32) -> Self;
    fn long(self, kind: u16, number: u64) -> Self;
    fn text(self, kind: u16, text: &str) -> Self;
    /// Bytes inside of the attribute that says that they are data.
    fn data(self, kind: u16, bytes: &[u8]) -> Self;
}

impl Write for Request {
    fn number(self, kind: u16, number: u32) -> Self {
        self.with(kind, &number.to_be_bytes())
    }

    fn long(self, kind: u16, number: u64) -> Self {
        self.with(kind, &number.to_be_bytes())
    }

    fn text(self, kind: u16, text: &str) -> Self {
        self.with(kind, &terminated(text))
    }

    fn data(self, kind: u16, bytes: &[u8]) -> Self {
        self.with_nested(kind, |data| data.with(DATA_VALUE, bytes))
    }
}

/// The attributes of one message or nest, to be asked for by kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read<'a>(pub(super) &'a [u8]);

impl<'a> Read<'a> {
    pub(super) fn bytes(self, kind: u16) -> Option<&'a [u8]> {
        let found = attributes(self.0).find(|attribute| attribute.kind == kind)?;
        Some(found.value)
    }

    pub(super) fn number(self, kind: u16) -> Option<u32> {
        fixed(self.bytes(kind)?, 0).map(u32::from_be_bytes)
    }

    pub(super) fn long(self, kind: u16) -> Option<u64> {
        fixed(self.bytes(kind)?, 0).map(u64::from_be_bytes)
    }

    pub(super) fn text(self, kind: u16) -> Option<&'a str> {
        let bytes = self.bytes(kind)?;
        let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
        std::str::from_utf8(bytes).ok()
    }

    pub(super) fn nested(self, kind: u16) -> Option<Self> {
        self.bytes(kind).map(Read)
    }

    pub(super) fn data(self, kind: u16) -> Option<&'a [u8]> {
        self.nested(kind)?.bytes(DATA_VALUE)
    }

    /// The elements of a list.
    pub(super) fn list(self) -> impl Iterator<Item = Read<'a>> {
        let elements = attributes(self.0).filter(|attribute| attribute.kind == LIST_ELEMENT);
        elements.map(|attribute| Read(attribute.value))
    }
}

/// The longest comment that `nft` prints.
const COMMENT_LIMIT: usize = 128;

/// The part of a text that fits into a comment, and is read back.
pub fn fitting_comment(text: &str) -> &str {
    &text[..text.floor_char_boundary(COMMENT_LIMIT - 1)]
}

/// The kind of a comment in the user data of tables, chains, rules and elements.
const COMMENT: u8 = 0;

/// User data that `nft` prints as a comment.
pub(super) fn comment(text: &str) -> Vec<u8> {
    let text = fitting_comment(text);
    let length = u8::try_from(text.len() + 1).expect("cut to 128 bytes");
    let mut bytes = vec![COMMENT, length];
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
    bytes
}

/// The comment in user data, if there is one.
pub(super) fn read_comment(mut bytes: &[u8]) -> Option<&str> {
    while let [kind, length, rest @ ..] = bytes {
        let text = rest.get(..usize::from(*length))?;
        if *kind == COMMENT {
            return std::str::from_utf8(text.strip_suffix(&[0]).unwrap_or(text)).ok();
        }
        bytes = &rest[usize::from(*length)..];
    }
    None
}
