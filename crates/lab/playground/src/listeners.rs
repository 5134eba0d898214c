//! Listeners of the host's network, passed to the world through a Unix socket.
//!
//! They are opened on the host, for the user's kubectl and browser, and served inside the world, which
//! cannot reach anything else of the host's network. The socket stays open: closing it stops the world.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The listeners for the user.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// Listener of the API server.
    pub(crate) api: TcpListener,
    /// Listener of the live page.
    pub(crate) page: TcpListener,
}

impl Listeners {
    /// Sends the listeners over a socket (`SCM_RIGHTS`).
    pub(crate) fn send(&self, socket: &UnixStream) -> io::Result<()> {
        let descriptors = [self.api.as_fd(), self.page.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !rights.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        sendmsg(
            socket,
            &[IoSlice::new(b"w")],
            &mut rights,
            SendFlags::empty(),
        )?;
        Ok(())
    }

    /// Receives the listeners.
    pub(crate) fn receive(socket: impl AsFd) -> io::Result<Self> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let mut word = [0];
        let mut words = [IoSliceMut::new(&mut word)];
        recvmsg(socket, &mut words, &mut rights, RecvFlags::CMSG_CLOEXEC)?;
        let mut listeners: Vec<OwnedFd> = Vec::new();
        for message in rights.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                listeners.extend(files);
            }
        }
        let mut listeners = listeners.into_iter().map(TcpListener::from);
        let missing = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let api = listeners.next().ok_or_else(missing)?;
        let page = listeners.next().ok_or_else(missing)?;
        Ok(Self { api, page })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_passed_through_a_socket() {
        let (outside, inside) = UnixStream::pair().unwrap();
        let listeners = Listeners {
            api: TcpListener::bind("127.0.0.1:0").unwrap(),
            page: TcpListener::bind("127.0.0.1:0").unwrap(),
        };
        listeners.send(&outside).unwrap();
        let received = Listeners::receive(&inside).unwrap();
        assert_eq!(
            received.api.local_addr().unwrap(),
            listeners.api.local_addr().unwrap()
        );
        assert_eq!(
            received.page.local_addr().unwrap(),
            listeners.page.local_addr().unwrap()
        );
        drop(outside);
        assert!(
            Listeners::receive(&inside).is_err(),
            "a closed socket has no listeners"
        );
    }
}
