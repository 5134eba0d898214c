//! Checksums of records, and the seal: count, sum and version of all records.
//!
//! The seal of the last acknowledged state is also kept in a file of its own, which detects a lost
//! commit.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Length of the checksum before a record, in bytes.
const CHECKSUM: usize = 4;

/// The stored form of a record: CRC-32 of key and bytes, then the bytes.
pub(super) fn with_checksum(key: &str, bytes: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(CHECKSUM + bytes.len());
    record.extend(checksum(key, bytes).to_le_bytes());
    record.extend(bytes);
    record
}

/// The bytes of a record; `None` when the checksum does not match.
pub(super) fn verified_bytes<'a>(key: &str, record: &'a [u8]) -> Option<&'a [u8]> {
    let (_, bytes) = record.split_at_checked(CHECKSUM)?;
    (stored_checksum(record) == checksum(key, bytes)).then_some(bytes)
}

/// The checksum a record carries.
fn stored_checksum(record: &[u8]) -> u32 {
    let mut bytes = [0; CHECKSUM];
    for (to, from) in bytes.iter_mut().zip(record) {
        *to = *from;
    }
    u32::from_le_bytes(bytes)
}

fn checksum(key: &str, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key.as_bytes());
    hasher.update(&[0]);
    hasher.update(bytes);
    hasher.finalize()
}

/// Summary of all records of a database, which changes if a record is lost, stale or added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seal {
    /// The newest resource version among them.
    pub(super) version: u64,
    pub(super) count: u64,
    /// Sum of the records' checksums.
    pub(super) sum: u64,
}

impl Seal {
    pub(super) fn add(&mut self, record: &[u8]) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(stored_checksum(record).into());
    }

    pub(super) fn remove(&mut self, record: &[u8]) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(stored_checksum(record).into());
    }
}

const MAGIC: &[u8; 8] = b"weftseal";
const LENGTH: usize = 36;

/// The seal of the last acknowledged state, in a file of its own. A database that lost its newest commit
/// is consistent in itself; only this file shows that there was one.
///
/// It is written after each commit and synced only at the end. After a power failure it may be older
/// than the database, never newer.
#[derive(Debug)]
pub(super) struct SealFile(File);

/// The contents of `objects.seal`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StoredSeal {
    /// No file, or an empty one: it is created before its first seal is written.
    Absent,
    Valid(Seal),
    Damaged,
}

impl SealFile {
    pub(super) fn open(path: &Path) -> io::Result<(Self, StoredSeal)> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        let mut bytes = Vec::new();
        (&mut file)
            .take(LENGTH as u64 + 1)
            .read_to_end(&mut bytes)?;
        let stored = match bytes.as_slice() {
            [] => StoredSeal::Absent,
            bytes => parse(bytes).map_or(StoredSeal::Damaged, StoredSeal::Valid),
        };
        Ok((Self(file), stored))
    }

    pub(super) fn write(&self, seal: Seal) -> io::Result<()> {
        self.0.write_all_at(&print(seal), 0)?;
        self.0.set_len(LENGTH as u64)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

fn print(seal: Seal) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for number in [seal.version, seal.count, seal.sum] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

fn parse(bytes: &[u8]) -> Option<Seal> {
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let seal = Seal {
        version: number(8)?,
        count: number(16)?,
        sum: number(24)?,
    };
    (bytes == print(seal)).then_some(seal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flipped_bit_of_a_record_or_seal_passes() {
        let record = with_checksum("pods\0default/a", b"{\"kind\":\"Pod\"}");
        assert!(verified_bytes("pods\0default/a", &record).is_some());
        assert!(verified_bytes("pods\0default/b", &record).is_none());
        for bit in 0..record.len() * 8 {
            let mut damaged = record.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(
                verified_bytes("pods\0default/a", &damaged).is_none(),
                "bit {bit}"
            );
        }
        let seal = Seal {
            version: 7,
            count: 2,
            sum: 9,
        };
        assert_eq!(parse(&print(seal)), Some(seal));
        for bit in 0..LENGTH * 8 {
            let mut damaged = print(seal);
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&damaged), None, "bit {bit}");
        }
        assert_eq!(parse(&print(seal)[..20]), None);
    }
}
