//! A blocking netlink socket.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
        netlink::{self, SocketAddrNetlink},
        recv, send, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};

use crate::netlink::{
    NetlinkError, Request, fixed,
    message::{Message, messages},
};

const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;
/// The list changed during the dump.
const FLAG_DUMP_INTERRUPTED: u16 = 0x10;

pub(crate) const FLAG_REQUEST: u16 = 0x01;
pub(crate) const FLAG_ACKNOWLEDGE: u16 = 0x04;
pub(crate) const FLAG_DUMP: u16 = 0x300;
pub(crate) const FLAG_EXCLUSIVE: u16 = 0x200;
pub(crate) const FLAG_CREATE: u16 = 0x400;

/// The kernel answers at once; the limit only keeps a bug, here or there, from blocking forever.
const PATIENCE: Duration = Duration::from_secs(30);
/// The kernel never sends more than 32 kB of a dump at once.
const BUFFER: usize = 64 << 10;

/// Netlink protocol family.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Protocol {
    Route,
    Netfilter,
}

/// A socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Socket {
    descriptor: OwnedFd,
    sequence: u32,
    buffer: Box<[u8]>,
}

impl Socket {
    pub(crate) fn open(protocol: Protocol) -> Result<Self, NetlinkError> {
        connect(protocol)
            .map(|descriptor| Self {
                descriptor,
                sequence: 0,
                buffer: vec![0; BUFFER].into_boxed_slice(),
            })
            .map_err(|error| NetlinkError {
                operation: "open a socket",
                source: error.into(),
            })
    }

    /// Sends a request and passes the payloads of its answer to `each` until the answer is
    /// complete.
    ///
    /// A dump that the kernel marks inconsistent ends with `EINTR`, after all of it was read.
    pub(crate) fn request(
        &mut self,
        operation: &'static str,
        request: Request,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), NetlinkError> {
        self.exchange(request, &mut each)
            .map_err(|source| NetlinkError { operation, source })
    }

    fn exchange(&mut self, request: Request, each: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.finish(self.sequence);
        send(&self.descriptor, &bytes, SendFlags::empty())?;
        let mut interrupted = false;
        loop {
            let length = self.receive()?;
            for message in messages(&self.buffer[..length]) {
                // Belongs to an earlier request that was abandoned.
                if message.sequence != self.sequence {
                    continue;
                }
                interrupted |= message.flags & FLAG_DUMP_INTERRUPTED != 0;
                match message {
                    Message {
                        kind: MESSAGE_ERROR | MESSAGE_DONE,
                        payload,
                        ..
                    } => return verdict(payload, interrupted),
                    Message { payload, .. } => each(payload),
                }
            }
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        loop {
            // With TRUNC the length is that of the datagram, even if the buffer was too small.
            match recv(&self.descriptor, &mut *self.buffer, RecvFlags::TRUNC) {
                Ok((_, length)) if length <= self.buffer.len() => return Ok(length),
                Ok((_, length)) => {
                    return Err(io::Error::other(format!(
                        "an answer of {length} bytes does not fit"
                    )));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("no answer within {PATIENCE:?}"),
                    ));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn connect(protocol: Protocol) -> rustix::io::Result<OwnedFd> {
    let protocol = match protocol {
        // Protocol number 0, which rustix spells as `None`.
        Protocol::Route => None,
        Protocol::Netfilter => Some(netlink::NETFILTER),
    };
    let descriptor = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        protocol,
    )?;
    set_socket_timeout(&descriptor, Timeout::Recv, Some(PATIENCE))?;
    // The kernel chooses the port ID; the kernel itself is port 0, the default destination.
    bind(&descriptor, &SocketAddrNetlink::new(0, 0))?;
    Ok(descriptor)
}

/// Both final message types begin with a negative error number, 0 for success. An empty one ends a
/// dump of an older kernel.
fn verdict(payload: &[u8], interrupted: bool) -> io::Result<()> {
    let number = fixed(payload, 0).map_or(0, i32::from_ne_bytes);
    if number != 0 {
        return Err(io::Error::from_raw_os_error(number.wrapping_neg()));
    }
    if interrupted {
        return Err(Errno::INTR.into());
    }
    Ok(())
}
