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

/// A message that was not asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    pub(crate) kind: u16,
    /// The number of the socket whose request caused it.
    pub(crate) sender: u32,
    pub(crate) payload: &'a [u8],
}

impl Socket {
    pub(crate) fn open(protocol: Protocol) -> Result<Self, NetlinkError> {
        Self::subscribed(protocol, 0)
    }

    /// A socket that also receives notifications to these multicast groups, a bit for each.
    pub(crate) fn subscribed(protocol: Protocol, groups: u32) -> Result<Self, NetlinkError> {
        connect(protocol, groups)
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

    /// Reserves numbers for this many messages and returns the first.
    pub(crate) fn reserve(&mut self, count: u32) -> u32 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(count);
        first
    }

    /// Sends several messages at once, which the kernel works off before this returns, and hands
    /// on each answer: its number, its flags and its payload. Answers to earlier messages are
    /// left out.
    pub(crate) fn transact(
        &mut self,
        bytes: &[u8],
        first: u32,
        each: &mut dyn FnMut(u32, u16, &[u8]),
    ) -> io::Result<()> {
        self.discard();
        loop {
            match send(&self.descriptor, bytes, SendFlags::empty()) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => break,
            }
        }
        loop {
            let received = recv(
                &self.descriptor,
                &mut *self.buffer,
                RecvFlags::TRUNC | RecvFlags::DONTWAIT,
            );
            match received {
                Ok((_, length)) => {
                    for message in messages(&self.buffer[..length.min(self.buffer.len())]) {
                        let number = message.sequence.wrapping_sub(first);
                        if message.kind == MESSAGE_ERROR {
                            each(number, message.flags, message.payload);
                        }
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Throws away answers to a request that was given up.
    fn discard(&mut self) {
        while let Ok(_) | Err(Errno::INTR | Errno::NOBUFS) =
            recv(&self.descriptor, &mut *self.buffer, RecvFlags::DONTWAIT)
        {}
    }

    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// The next datagram, as the flags and payloads of its messages; waits for it as long as the
    /// socket's timeout says.
    pub(crate) fn next(&mut self, each: &mut dyn FnMut(Received<'_>)) -> rustix::io::Result<()> {
        let (_, length) = recv(&self.descriptor, &mut *self.buffer, RecvFlags::TRUNC)?;
        for message in messages(&self.buffer[..length.min(self.buffer.len())]) {
            each(Received {
                kind: message.kind,
                sender: message.sender,
                payload: message.payload,
            });
        }
        Ok(())
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

fn connect(protocol: Protocol, groups: u32) -> rustix::io::Result<OwnedFd> {
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
    bind(&descriptor, &SocketAddrNetlink::new(0, groups))?;
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
