//! Integration tests of the backend, against a simulated kernel and against the real one in
//! namespaces.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod baseline;
mod failing_programs;
mod faults;
mod golden;
mod host;
mod hostile;
mod injection;
mod kernel;
mod packets;
mod partial;
mod proportion;
mod quarantine;
mod raw;
mod restart;
mod trace;
mod world;
