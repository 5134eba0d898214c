//! What tests and benchmarks of several crates need and no program does.
//!
//! - [`lab`]: networks of their own for tests that touch the kernel;
//! - [`cluster`]: random Services, slices and nodes;
//! - [`mod@bench`]: figures in the form that `make bench` reads.
//! - [`peer`]: programs of other projects to test with.
//!
//! A dev-dependency only; nothing that ships depends on it.

pub mod bench;
pub mod cluster;
pub mod lab;
mod peers;

pub use peers::peer;
