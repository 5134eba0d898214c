//! Integration tests: comparison with real programs, and properties of arbitrary values.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod arbitrary;
mod kernel;
mod text;
mod trace;
