//! Tests of the route controller's decisions.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod bad_input;
mod blocks;
mod budget;
mod conditions;
mod engine;
mod guards;
mod laws;
mod nodes;
mod printing;
mod reconciler;
mod scenarios;
mod simulation;
mod table_cache;
mod world;
