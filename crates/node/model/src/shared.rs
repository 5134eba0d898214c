//! Shared strings: cheap to clone, interned when decoded.

use std::{
    borrow::Borrow,
    cell::RefCell,
    fmt,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    ops::Deref,
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An immutable string that is cheap to clone and, when decoded, shares its allocation with equal
/// strings decoded recently.
///
/// Namespaces, node names and label keys repeat in almost every object of a cluster: under 2 % of
/// them are distinct. Sharing is best effort (a small direct-mapped table per thread), so memory
/// stays bounded however many distinct strings pass through.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SharedStr(Arc<str>);

/// Slots of the per-thread table: enough for the namespaces, nodes and label keys of a large
/// cluster, at 16 bytes each.
const SLOTS: usize = 4096;

thread_local! {
    static RECENT: RefCell<Vec<Option<Arc<str>>>> = RefCell::new(vec![None; SLOTS]);
}

impl SharedStr {
    /// A string with its own allocation.
    pub fn new(text: &str) -> Self {
        Self(Arc::from(text))
    }

    /// A string that shares its allocation with an equal one interned recently on this thread.
    pub fn interned(text: &str) -> Self {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(text);
        let slot = usize::try_from(hash % SLOTS as u64).unwrap_or_default();
        RECENT.with_borrow_mut(|recent| {
            if let Some(known) = &recent[slot]
                && **known == *text
            {
                return Self(known.clone());
            }
            let fresh: Arc<str> = Arc::from(text);
            recent[slot] = Some(fresh.clone());
            Self(fresh)
        })
    }

    /// The string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The empty string, which absent fields share.
impl Default for SharedStr {
    fn default() -> Self {
        Self::interned("")
    }
}

impl Deref for SharedStr {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for SharedStr {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for SharedStr {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for SharedStr {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl PartialEq<str> for SharedStr {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other
    }
}

impl PartialEq<&str> for SharedStr {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == **other
    }
}

impl fmt::Display for SharedStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SharedStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Serialize for SharedStr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SharedStr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text(Self::interned))
    }
}

impl SharedStr {
    /// Decodes a string that no other object has, such as a name: it is not interned.
    pub fn deserialize_new<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text(Self::new))
    }
}

/// Visits a string without a copy.
struct Text(fn(&str) -> SharedStr);

impl de::Visitor<'_> for Text {
    type Value = SharedStr;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<SharedStr, E> {
        Ok((self.0)(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_interned_on_one_thread_share_their_bytes() {
        let (a, b) = (
            SharedStr::interned("kube-system"),
            SharedStr::interned("kube-system"),
        );
        assert!(Arc::ptr_eq(&a.0, &b.0));
        assert!(!Arc::ptr_eq(&a.0, &SharedStr::new("kube-system").0));
    }

    #[test]
    fn the_table_forgets_instead_of_growing() {
        let first = SharedStr::interned("first");
        for i in 0..SLOTS * 64 {
            SharedStr::interned(&format!("string-{i}"));
        }
        assert_eq!(
            Arc::strong_count(&first.0),
            1,
            "the table still holds an old string"
        );
    }
}
