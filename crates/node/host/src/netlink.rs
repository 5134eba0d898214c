//! A small netlink client: messages with attributes, and a blocking socket.
//!
//! Written by hand, since the requests are few and the crates for these subsystems are either
//! asynchronous or keep everything in generic attribute lists that would have to be parsed again.

use std::io;

use thiserror::Error;

mod message;
mod socket;

pub(crate) use message::{Attribute, Request, address, attributes, family_number, fixed};
pub(crate) use socket::{
    FLAG_ACKNOWLEDGE, FLAG_CREATE, FLAG_DUMP, FLAG_EXCLUSIVE, FLAG_REQUEST, Protocol, Socket,
};

/// Failure of a netlink request.
#[derive(Debug, Error)]
#[error("netlink: cannot {operation}")]
pub struct NetlinkError {
    /// The operation as a verb phrase, such as `list addresses`.
    pub operation: &'static str,
    /// Error of the kernel or the socket.
    #[source]
    pub source: io::Error,
}

impl NetlinkError {
    /// Error for an answer that lacks a required attribute.
    pub(crate) fn incomplete(operation: &'static str) -> Self {
        let source = io::Error::new(io::ErrorKind::InvalidData, "the answer is incomplete");
        Self { operation, source }
    }

    /// Error number of the kernel.
    pub fn errno(&self) -> Option<rustix::io::Errno> {
        rustix::io::Errno::from_io_error(&self.source)
    }
}
