//! The address daemon on the embedded API server, asked as plugins ask.

mod answering;
mod damaging;
mod failing;
mod modes;
mod poison;
mod replaying;
mod restarting;
mod scaling;
mod storing;
mod world;
