//! What tests and benchmarks of several crates need and no program does.
//!
//! - [`lab`]: networks of their own for tests that touch the kernel;
//! - [`cluster`]: random Services, slices and nodes;
//! - [`mod@bench`]: figures in the form that `make bench` reads.
//! - [`clouds`]: doubles of the APIs of clouds.
//! - [`Flood`]: clients that never finish a request.
//! - [`peer`]: programs of other projects to test with.
//! - [`free_port`]: ports that nobody else gets.
//! - [`usage`]: processor time and memory of other processes.
//!
//! A dev-dependency, except that `weft testkit` starts the doubles and the comparisons are made with
//! it: no verb that serves a cluster depends on it.

pub mod bench;
pub mod clouds;
pub mod cluster;
mod flood;
pub mod lab;
mod peers;
mod ports;
pub mod program;
pub mod usage;

pub use flood::Flood;
pub use peers::peer;
pub use ports::free_port;
