//! Integration tests: bodies have the JSON of upstream's Go structs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod wire;
