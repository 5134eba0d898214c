//! Compressed answers.

use std::io::Write as _;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};

/// Compresses as little as upstream does: speed counts more than size on a local network.
pub(crate) fn compress(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    // Writing into memory has no failure.
    let _ = encoder.write_all(bytes);
    Bytes::from(encoder.finish().unwrap_or_default())
}
