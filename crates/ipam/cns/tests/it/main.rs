//! The words as Go spells them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod wire;
