//! Tests of the address pool, the monitor and the allocator: tables, properties, model checking and
//! simulation.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod allocator;
mod burst;
mod cluster;
mod exhaustive;
mod monitor;
mod pool;
mod promises;
mod restart;
mod scaling;
mod simulation;
mod upheaval;
mod world;
