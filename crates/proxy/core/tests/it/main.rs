//! Integration tests of the model: objects in, Services out, one table per feature.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

mod changes;
mod endpoints;
mod flows;
mod frontends;
mod world;
