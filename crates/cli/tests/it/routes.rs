//! `weft routes` as a process: against doubles of clouds, and the embedded or a real API server.

mod kernel;
mod providers;
mod rights;
pub(crate) mod stage;
mod taking_over;
mod tools;
