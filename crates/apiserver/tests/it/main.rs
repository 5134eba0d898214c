//! The server as its clients see it.

mod core;
mod faults;
mod support;
