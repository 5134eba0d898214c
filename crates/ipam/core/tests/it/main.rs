//! Tests of the address pool, the monitor and the allocator: tables, properties, model checking and
//! simulation.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod allocator;
mod burst;
mod cluster;
mod disruption;
mod exhaustive;
mod fixtures;
mod guarantees;
mod monitor;
mod pool;
mod restart;
mod scaling;
mod simulation;
