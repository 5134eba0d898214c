//! Transports: in-process calls, TCP with and without TLS, Unix sockets.

pub(crate) mod listen;
mod memory;
mod subject;
mod tls;

pub use listen::{ListenError, Listening};
pub use memory::MemoryService;
