//! Helpers shared by the tests and benchmarks of several crates.
//!
//! - [`lab`]: throw-away networks for tests that touch the kernel.
//! - [`cluster`]: random Services, EndpointSlices and Nodes.
//! - [`mod@bench`]: figures in the form that `make bench` reads.
//! - [`clouds`]: doubles of cloud APIs.
//! - [`Flood`]: clients that never finish a request.
//! - [`service_network`] and [`exchange`]: a node with pods, and clients and servers that talk through it.
//! - [`packets`]: raw first packets through a node, and where each arrives.
//! - [`peer`]: paths of other projects' programs, such as kube-proxy; [`not_run`]: tests without theirs.
//! - [`free_port`]: ports that no other process gets by chance.
//! - [`wait_until`]: conditions without a notification.
//! - [`usage`]: processor time and memory of other processes.
//!
//! A dev-dependency, except of `weft-lab testkit`, which starts the doubles, and of the comparisons
//! (`make conformance`). No command that serves a cluster depends on it.

pub mod bench;
pub mod clouds;
pub mod cluster;
pub mod exchange;
mod flood;
pub mod lab;
pub mod packets;
mod peers;
mod ports;
pub mod program;
pub mod service_network;
pub mod usage;
mod waiting;

pub use flood::Flood;
pub use peers::{not_run, peer};
pub use ports::free_port;
pub use waiting::wait_until;
