//! Seedable random generator of names, UIDs, addresses and fault rates.
//!
//! Never for secrets, with or without a seed: one UID reveals the generator's state, and with it all
//! earlier and later output. Keys and tokens use random bytes of the operating system.

use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

/// The letters Kubernetes builds generated names from: no vowels, no look-alikes.
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// One sequence for all threads of a server.
#[derive(Debug)]
pub(crate) struct Random(Mutex<weft_model::Random>);

impl Random {
    /// A generator with this seed, or with a random one.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let seed = seed.unwrap_or_else(|| RandomState::new().hash_one("weft"));
        Self(Mutex::new(weft_model::Random::new(seed)))
    }

    pub(crate) fn next(&self) -> u64 {
        self.0.lock().next_u64()
    }

    /// A number below `bound`, which must not be zero.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True with the given probability.
    pub(crate) fn chance(&self, probability: f64) -> bool {
        self.0.lock().fraction() < probability
    }

    /// A version 4 UUID.
    pub(crate) fn uuid(&self) -> String {
        let (high, low) = (self.next(), self.next());
        uuid((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
    }

    /// The five-character suffix of a generated name.
    pub(crate) fn name_suffix(&self) -> String {
        let letters = NAME_LETTERS.len() as u64;
        (0..5)
            .map(|_| usize::try_from(self.below(letters)).unwrap_or_default())
            .map(|position| char::from(NAME_LETTERS[position]))
            .collect()
    }
}

/// A version 4 UUID of these random bytes.
pub(crate) fn uuid(bytes: [u8; 16]) -> String {
    let bits = u128::from_be_bytes(bytes);
    let high = ((bits >> 64) & 0xffff_ffff_ffff_0fff) | 0x4000;
    let low = (bits & 0x3fff_ffff_ffff_ffff) | 0x8000_0000_0000_0000;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_identifiers() {
        let (a, b) = (Random::new(Some(7)), Random::new(Some(7)));
        assert_eq!(a.uuid(), b.uuid());
        assert_ne!(a.uuid(), b.name_suffix());
        let uuid = a.uuid();
        assert_eq!(uuid.len(), 36);
        assert_eq!(uuid.as_bytes()[14], b'4', "version");
        assert!(
            matches!(uuid.as_bytes()[19], b'8' | b'9' | b'a' | b'b'),
            "variant"
        );
    }

    #[test]
    fn a_chance_comes_true_about_as_often_as_asked() {
        let random = Random::new(Some(1));
        let hits = (0..10_000).filter(|_| random.chance(0.25)).count();
        assert!((2_200..2_800).contains(&hits), "{hits}");
        assert!(!random.chance(0.0));
    }
}
