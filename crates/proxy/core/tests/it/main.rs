//! What the model makes of objects: one table for each feature of Services.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod changes;
mod endpoints;
mod flows;
mod frontends;
mod world;
