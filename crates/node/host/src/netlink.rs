//! Enough of netlink for a handful of questions: messages with attributes, and a blocking socket.
//!
//! Written by hand, since the questions are few and the crates that know these subsystems are
//! either asynchronous or hold everything in generic attribute lists that we would parse again.

use std::io;

use thiserror::Error;

mod message;
mod socket;

pub(crate) use message::{Attribute, Request, address, attributes, family_number, fixed};
pub(crate) use socket::{
    FLAG_ACKNOWLEDGE, FLAG_CREATE, FLAG_DUMP, FLAG_EXCLUSIVE, FLAG_REQUEST, Protocol, Socket,
};

/// A question to the kernel that was not answered.
#[derive(Debug, Error)]
#[error("netlink: cannot {operation}")]
pub struct NetlinkError {
    /// What was asked for.
    pub operation: &'static str,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

impl NetlinkError {
    /// For an answer that lacks what it should hold.
    pub(crate) fn incomplete(operation: &'static str) -> Self {
        let source = io::Error::new(io::ErrorKind::InvalidData, "the answer is incomplete");
        Self { operation, source }
    }

    /// The kernel's number for it.
    pub fn errno(&self) -> Option<rustix::io::Errno> {
        rustix::io::Errno::from_io_error(&self.source)
    }
}
