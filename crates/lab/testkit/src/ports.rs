//! Free ports for programs that need a port number before they start.

use std::{
    net::{Ipv4Addr, TcpListener},
    process,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the kernel's ephemeral ports, which begin at 32768, and below the node ports.
const FIRST: u16 = 20_000;
/// Blocks of ports. Processes whose IDs differ by less than this start in different blocks.
const BLOCKS: u32 = 500;
/// Ports per block.
const SIZE: u16 = 20;

/// A loopback port on which no process listens and that the kernel does not assign to another
/// process. No two calls in one process return the same port.
///
/// # Panics
/// If a thousand ports are taken.
pub fn free_port() -> u16 {
    static RETURNED: AtomicU16 = AtomicU16::new(0);
    let block = u16::try_from(process::id() % BLOCKS).unwrap_or_default();
    for _ in 0..1_000 {
        let port = FIRST + block * SIZE + RETURNED.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("cannot find a free port: 1000 are taken");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_and_not_returned_twice() {
        let first = free_port();
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first + 1));
        let second = free_port();
        assert!(first < second && second < 30_000);
        // Another process may have had it already.
        assert!(taken.is_err() || second != first + 1);
        TcpListener::bind((Ipv4Addr::LOCALHOST, second)).unwrap();
    }
}
