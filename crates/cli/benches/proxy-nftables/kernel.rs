//! Listens to what the kernel reports about nftables, with the time of each report.

use std::{
    net::Ipv4Addr,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SocketFlags, SocketType, bind,
        netlink::{self, SocketAddrNetlink},
        recv, socket_with,
        sockopt::{Timeout, set_socket_recv_buffer_size_force, set_socket_timeout},
    },
};
use weft_testkit::lab::Namespace;

use crate::{objects::Mark, ping::prefer_this_thread, timeline::Timeline};

/// `NFNLGRP_NFTABLES`, as a bit.
const GROUP: u32 = 1 << (7 - 1);
const PATIENCE: Duration = Duration::from_secs(10);
const BUFFER: usize = 256 << 20;

/// The reports so far.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    messages: AtomicU64,
    /// Fronts to look for, and when each was first reported.
    fronts: Mutex<Vec<([u8; 12], Option<SystemTime>)>>,
}

impl Reports {
    /// Number of objects of our table that were changed.
    pub(crate) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Acquire)
    }

    /// Looks for the element of a front from now on.
    pub(crate) fn look_for(&self, (address, port): (Ipv4Addr, u16)) {
        const TCP: u8 = 6;
        let mut key = [0; 12];
        key[..4].copy_from_slice(&address.octets());
        key[4] = TCP;
        key[8..10].copy_from_slice(&port.to_be_bytes());
        self.fronts.lock().unwrap().push((key, None));
    }

    /// Time of the report of the last of all fronts. Waits: the listener may be behind.
    pub(crate) fn all_seen(&self) -> SystemTime {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(seen) = self.last_seen() {
                return seen;
            }
            assert!(Instant::now() < deadline, "a front was not reported");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn last_seen(&self) -> Option<SystemTime> {
        let fronts = self.fronts.lock().unwrap();
        let times: Option<Vec<SystemTime>> = fronts.iter().map(|(_, seen)| *seen).collect();
        times?.into_iter().max()
    }

    fn take(&self, bytes: &[u8], timeline: &Timeline) {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let marks: Vec<Mark> = bytes
            .windows(4)
            .filter_map(|window| Mark::read(window.try_into().ok()?))
            .collect();
        if !marks.is_empty() {
            timeline.committed(&marks, now);
        }
        let mut fronts = self.fronts.lock().unwrap();
        for (key, seen) in fronts.iter_mut().filter(|(_, seen)| seen.is_none()) {
            if bytes.windows(key.len()).any(|window| window == key) {
                *seen = Some(wall);
            }
        }
        self.messages.fetch_add(count(bytes), Ordering::AcqRel);
    }
}

/// Number of messages about our table. A start also creates and deletes another one, to see whether the
/// kernel can.
fn count(mut bytes: &[u8]) -> u64 {
    /// Headers of netlink, netfilter and of the first attribute, which names the table.
    const NAME: usize = 16 + 4 + 4;
    let mut count = 0;
    while let Some(length) = bytes.first_chunk() {
        let length = u32::from_ne_bytes(*length).next_multiple_of(4).max(16);
        let is_ours = bytes
            .get(NAME..)
            .is_some_and(|name| name.starts_with(b"weft\0"));
        count += u64::from(is_ours);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        bytes = bytes.get(length..).unwrap_or_default();
    }
    count
}

/// Listens in a namespace until the program ends.
pub(crate) fn listen(namespace: &Namespace, timeline: &Arc<Timeline>) -> Arc<Reports> {
    let socket = namespace.run(open);
    let reports = Arc::new(Reports::default());
    let (of_thread, timeline) = (reports.clone(), timeline.clone());
    thread::spawn(move || {
        // Times of reports are those of their arrival.
        prefer_this_thread();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => of_thread.take(&buffer[..length], &timeline),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => panic!("cannot receive nftables notifications: {error}"),
            }
        }
    });
    reports
}

fn open() -> OwnedFd {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::NETFILTER),
    )
    .unwrap();
    set_socket_recv_buffer_size_force(&socket, BUFFER).unwrap();
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(1))).unwrap();
    bind(&socket, &SocketAddrNetlink::new(0, GROUP)).unwrap();
    socket
}
