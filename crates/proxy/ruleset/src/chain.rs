//! Chain names.

use std::fmt;

/// The longest chain name that the kernel accepts, in bytes.
const LIMIT: usize = 28;

/// The name of a chain, stored inline: a ruleset of a large cluster has tens of thousands.
///
/// Only characters that need no quoting are allowed, so a name cannot be mistaken for an option or
/// add a second word to a restore input.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainName([u8; LIMIT]);

/// Text that is not a chain name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a chain name: expected 1 to 28 letters, digits, '-', '_', '.', ':' or '/', not starting with '-'"
)]
pub struct InvalidChainName(pub String);

impl ChainName {
    /// A name that is known at compile time.
    ///
    /// # Panics
    /// If the text is not a chain name; in a `const` that is a compile error.
    pub const fn fixed(name: &str) -> Self {
        match Self::from_bytes(name.as_bytes()) {
            Some(name) => name,
            None => panic!("not a chain name"),
        }
    }

    /// Parses a name.
    pub fn parse(name: &str) -> Result<Self, InvalidChainName> {
        Self::from_bytes(name.as_bytes()).ok_or_else(|| InvalidChainName(name.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        let length = self.0.iter().position(|&b| b == 0).unwrap_or(LIMIT);
        std::str::from_utf8(&self.0[..length]).unwrap_or_default()
    }

    const fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > LIMIT || bytes[0] == b'-' {
            return None;
        }
        let mut name = [0; LIMIT];
        let mut index = 0;
        while index < bytes.len() {
            let byte = bytes[index];
            if !(byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'/')) {
                return None;
            }
            name[index] = byte;
            index += 1;
        }
        Some(Self(name))
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_options_or_several_words_are_refused() {
        for name in ["", "-X", "a b", "a\nb", "a\"b", "ü", &"x".repeat(29)] {
            assert!(ChainName::parse(name).is_err(), "{name:?}");
        }
        assert_eq!(
            ChainName::parse(&"x".repeat(28)).unwrap().as_str().len(),
            28
        );
    }

    #[test]
    fn names_sort_as_their_text_does() {
        let names = ["KUBE", "KUBE-A", "KUBE-SEP-1", "KUBE-SVC", "KUBEX"];
        let parsed: Vec<_> = names.iter().map(|n| ChainName::parse(n).unwrap()).collect();
        assert!(parsed.is_sorted());
    }
}
