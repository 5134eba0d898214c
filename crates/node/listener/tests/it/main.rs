//! Integration tests: clients that send nothing, half a request, garbage, or do not read.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod clients;
mod floods;
mod stopping;
