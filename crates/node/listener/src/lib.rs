//! HTTP listeners that no client can exhaust: connection limits, timeouts, peer and host checks.
//!
//! Each listener belongs to a [`ConnectionPool`]. A connection without a request in progress is
//! closed when its time is up, or sooner when the pool is full and another client connects: the
//! connection that has been idle for the longest time makes room. A client that opens thousands of
//! connections and sends nothing thus costs the others nothing but one eviction each.

mod accept;
mod body;
mod descriptors;
mod host;
mod http;
mod limits;
mod pool;
mod stall;
mod unix;

pub use accept::{Listener, accept, serve};
pub use body::{BodyError, RequestBody};
pub use descriptors::{descriptor_limit, raise_descriptor_limit};
pub use host::{HostCheck, MISDIRECTED, Reach};
pub use http::Protocols;
pub use limits::Limits;
pub use pool::{Connection, ConnectionPool, PoolStats};
pub use unix::PrivateSocket;
