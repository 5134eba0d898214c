//! Keys and data of elements, as the kernel's registers hold them.

use std::{fmt, hash};

/// The longest key in use: an IPv6 front (24 bytes) with an IPv6 address.
const CAPACITY: usize = 40;

/// Fields behind each other, each padded to four bytes.
#[derive(Clone, Copy)]
pub struct Value {
    length: u8,
    bytes: [u8; CAPACITY],
}

impl Value {
    /// No fields.
    pub const EMPTY: Self = Self {
        length: 0,
        bytes: [0; CAPACITY],
    };

    /// Bytes as the kernel sent them. `None` if they are more than any of our keys.
    pub fn from_slice(slice: &[u8]) -> Option<Self> {
        let mut value = Self::EMPTY;
        value.bytes.get_mut(..slice.len())?.copy_from_slice(slice);
        value.length = u8::try_from(slice.len()).ok()?;
        Some(value)
    }

    /// Adds a field.
    ///
    /// # Panics
    /// When the fields together are longer than any key of ours.
    #[must_use]
    pub fn with(mut self, field: &[u8]) -> Self {
        let start = usize::from(self.length);
        self.bytes[start..start + field.len()].copy_from_slice(field);
        let end = (start + field.len()).next_multiple_of(4);
        self.length = u8::try_from(end).expect("the capacity is below 256");
        self
    }

    /// Adds a number in the machine's byte order, as marks and priorities are.
    #[must_use]
    pub fn with_number(self, number: u32) -> Self {
        self.with(&number.to_ne_bytes())
    }

    /// All fields with their padding.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The number in the last four bytes.
    pub fn last_number(&self) -> Option<u32> {
        let last = self.as_bytes().last_chunk()?;
        Some(u32::from_ne_bytes(*last))
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl hash::Hash for Value {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_padded_to_four_bytes() {
        let value = Value::EMPTY
            .with(&[10, 0, 0, 1])
            .with(&[6])
            .with(&80u16.to_be_bytes());
        assert_eq!(
            value.as_bytes(),
            [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0],
            "{value:?}"
        );
        assert_eq!(Value::from_slice(value.as_bytes()), Some(value));
        assert_eq!(value.with_number(7).last_number(), Some(7));
        assert_eq!(Value::from_slice(&[0; 41]), None);
    }
}
