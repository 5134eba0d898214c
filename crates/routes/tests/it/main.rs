//! Tests of the route controller's decisions.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod bad_input;
mod conditions;
mod guards;
mod laws;
mod printing;
mod scenarios;
mod world;
