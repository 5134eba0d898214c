//! The address daemon on the embedded API server, asked as plugins ask.

mod answering;
mod failing;
mod replaying;
mod restarting;
mod scaling;
mod world;
