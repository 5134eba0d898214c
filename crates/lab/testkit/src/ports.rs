//! Ports for programs that have to be told one.

use std::{
    net::{Ipv4Addr, TcpListener},
    process,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below those that the kernel gives to whoever connects or does not care, which begin at 32768, and
/// below the node ports.
const FIRST: u16 = 20_000;
/// Processes whose numbers differ by less than this look in different places.
const PLACES: u32 = 500;
/// Ports of a place.
const SIZE: u16 = 20;

/// A port of loopback that nobody listens on, and that nobody gets by chance before it is used. No
/// two calls of a process return the same.
///
/// # Panics
/// When a thousand of them are taken.
pub fn free_port() -> u16 {
    static RETURNED: AtomicU16 = AtomicU16::new(0);
    let place = u16::try_from(process::id() % PLACES).unwrap_or_default();
    for _ in 0..1_000 {
        let port = FIRST + place * SIZE + RETURNED.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port of a thousand is free");
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
        // Somebody else may have had it already.
        assert!(taken.is_err() || second != first + 1);
        TcpListener::bind((Ipv4Addr::LOCALHOST, second)).unwrap();
    }
}
