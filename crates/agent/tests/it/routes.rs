//! The route controller on an embedded API server, in paused time.

mod failure;
mod joining;
mod leading;
mod observing;
mod switching;
mod world;
