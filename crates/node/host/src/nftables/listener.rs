//! Notifications of the kernel about changed tables.

use std::{os::fd::OwnedFd, time::Duration};

use rustix::{
    io::Errno,
    net::sockopt::{Timeout, set_socket_timeout},
};
use weft_model::IpFamily;

use super::attribute::Read;
use crate::{
    NetlinkError,
    netfilter::{Subsystem, body},
    netlink::{Protocol, Socket, family_number},
    raw::{FilterInstruction, attach_filter, set_option},
};

/// `NFNLGRP_NFTABLES`, as a bit.
const GROUP: u32 = 1 << (7 - 1);
/// The kernel counts the generation up; that alone says nothing about any table.
const NEW_GENERATION: u8 = 15;
const RECEIVE_BUFFER: i32 = 16 << 20;

/// The content of a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Another process changed something in this table, or the table itself.
    Changed {
        /// The family.
        family: IpFamily,
        /// The table.
        table: String,
    },
    /// Notifications were lost: anything may have changed.
    Lost,
}

/// Chooses which sockets' changes a [`Listener`] receives, from any thread.
#[derive(Debug)]
pub struct ListenerFilter {
    socket: OwnedFd,
}

impl ListenerFilter {
    /// Has the kernel drop notifications of changes that these sockets make, in place of those named
    /// before: a large write of our own would otherwise fill the listener's buffer.
    pub fn ignore(&self, ports: &[u32]) -> Result<(), NetlinkError> {
        /// Offset of the writer's port ID in a netlink header.
        const WRITER: u32 = 12;
        const DROP: u32 = 0;
        const KEEP: u32 = u32::MAX;
        let instruction = |code: u32, jt, k| FilterInstruction {
            code: u16::try_from(code).unwrap_or(0),
            jt,
            jf: 0,
            k,
        };
        let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        let mut program = vec![instruction(load, 0, WRITER)];
        for (index, port) in ports.iter().enumerate() {
            // BPF loads words in network byte order; the header is in the host's.
            let number = u32::from_be_bytes(port.to_ne_bytes());
            let behind = ports.len() - index;
            let target = u8::try_from(behind).unwrap_or(0);
            let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
            program.push(instruction(equal, target, number));
        }
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, KEEP));
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, DROP));
        attach_filter(&self.socket, &mut program).map_err(|source| NetlinkError {
            operation: "filter nftables notifications",
            source,
        })
    }
}

/// A socket that receives a notification of every change to nf_tables of its network namespace.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
}

impl Listener {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        let socket = Socket::subscribed(Protocol::Netfilter, GROUP)?;
        // Only a larger buffer: without the right to it more may be lost, which is noticed.
        let descriptor = socket.descriptor();
        let _ = set_option(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            RECEIVE_BUFFER,
        );
        Ok(Self { socket })
    }

    /// A handle that chooses which sockets' changes the kernel does not report.
    pub fn filter(&self) -> Result<ListenerFilter, NetlinkError> {
        let socket = self.socket.descriptor().try_clone();
        let socket = socket.map_err(|source| NetlinkError {
            operation: "copy a descriptor",
            source,
        })?;
        Ok(ListenerFilter { socket })
    }

    /// Waits until something changes, for at most this long, and passes on the changes by sockets
    /// whose port ID is not an `own` one. Returns whether anything was received at all.
    pub fn wait(
        &mut self,
        patience: Duration,
        own: &dyn Fn(u32) -> bool,
        each: &mut dyn FnMut(Notice),
    ) -> Result<bool, NetlinkError> {
        let failed = |error: Errno| NetlinkError {
            operation: "receive nftables notifications",
            source: error.into(),
        };
        set_socket_timeout(self.socket.descriptor(), Timeout::Recv, Some(patience))
            .map_err(failed)?;
        let received = self.socket.next(&mut |message| {
            let [subsystem, kind] = message.kind.to_be_bytes();
            let is_news = subsystem == Subsystem::Nftables as u8 && kind != NEW_GENERATION;
            if !is_news || own(message.sender) {
                return;
            }
            let number = message.payload.first().copied().unwrap_or(0);
            let mut families = IpFamily::ALL.into_iter();
            let family = families.find(|family| family_number(*family) == number);
            // In every kind of message the first attribute names the table.
            let table = Read(body(message.payload)).text(1);
            if let (Some(family), Some(table)) = (family, table) {
                let table = table.to_owned();
                each(Notice::Changed { family, table });
            }
        });
        match received {
            Ok(()) => Ok(true),
            Err(Errno::NOBUFS) => {
                each(Notice::Lost);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }
}
