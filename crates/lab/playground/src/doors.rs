//! Listeners of the host's network, handed to the world through a socket.
//!
//! They are opened where the user's kubectl and browser are, and served from inside, where nothing
//! else of the host's network can be reached. The socket stays open: its end is the word to stop.

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

/// Where the user comes in.
#[derive(Debug)]
pub(crate) struct Doors {
    /// For kubectl.
    pub(crate) api: TcpListener,
    /// For a browser.
    pub(crate) page: TcpListener,
}

impl Doors {
    /// Hands them over.
    pub(crate) fn send(&self, socket: &UnixStream) -> io::Result<()> {
        let listeners = [self.api.as_fd(), self.page.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !rights.push(SendAncillaryMessage::ScmRights(&listeners)) {
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

    /// Takes them.
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
    fn listeners_go_through_a_socket() {
        let (outside, inside) = UnixStream::pair().unwrap();
        let doors = Doors {
            api: TcpListener::bind("127.0.0.1:0").unwrap(),
            page: TcpListener::bind("127.0.0.1:0").unwrap(),
        };
        doors.send(&outside).unwrap();
        let received = Doors::receive(&inside).unwrap();
        assert_eq!(
            received.api.local_addr().unwrap(),
            doors.api.local_addr().unwrap()
        );
        assert_eq!(
            received.page.local_addr().unwrap(),
            doors.page.local_addr().unwrap()
        );
        drop(outside);
        assert!(Doors::receive(&inside).is_err(), "the end is no listener");
    }
}
