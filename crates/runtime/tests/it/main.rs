//! Integration tests of the runtime's invariants, by number (`docs/runtime.md` lists them).
//!
//! Tests of `Harness::any` run against the embedded API server, or against the cluster that
//! `WEFT_TEST_KUBECONFIG` names. Tests that need faults or paused time always use the embedded one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod clusters;
mod delivery;
mod events;
mod faults;
mod harness;
mod leadership;
mod lifecycle;
mod machines;
mod managing;
mod sharing;
mod storage;
mod telemetry;
mod units;
mod valve;
