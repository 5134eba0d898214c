//! Timeouts and connection limit of a listener.

use std::time::Duration;

/// Limits of the connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections, of all listeners that share a pool. A pool never takes more than
    /// [`Limits::descriptor_share`] of the process's file descriptors.
    pub connections: usize,
    /// The part of the process's file descriptors that connections may use at most: 8 means one
    /// eighth. The rest stays free for what the process has to do.
    pub descriptor_share: usize,
    /// From the connection to the end of the first request's header, TLS handshake included.
    pub header: Duration,
    /// Between two requests on one connection. Longer than clients keep theirs (90 s in Go and in
    /// hyper), so that none is closed just when a request is on its way.
    pub idle: Duration,
    /// Receiving the body of one request.
    pub body: Duration,
    /// Sending without any progress, because the client does not read.
    pub stall: Duration,
    /// After a stop, for the requests in progress.
    pub drain: Duration,
}

impl Limits {
    /// For pages that answer at once: health, metrics, diagnostics.
    pub const PAGES: Self = Self {
        connections: 256,
        descriptor_share: 8,
        header: Duration::from_secs(5),
        idle: Duration::from_secs(300),
        body: Duration::from_secs(10),
        stall: Duration::from_secs(30),
        drain: Duration::from_secs(10),
    };

    /// The same limits with another number of connections.
    #[must_use]
    pub const fn with_connections(self, connections: usize) -> Self {
        Self {
            connections,
            ..self
        }
    }

    /// Connections that fit into a process with this many file descriptors.
    pub(crate) fn capacity(&self, descriptors: u64) -> usize {
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
        let share = descriptors / self.descriptor_share.max(1);
        self.connections.min(share).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_takes_no_more_than_its_share_of_the_descriptors() {
        let limits = Limits::PAGES;
        assert_eq!(limits.capacity(1_048_576), 256);
        assert_eq!(limits.capacity(1024), 128);
        assert_eq!(limits.capacity(4), 1, "one client can always connect");
        assert_eq!(limits.capacity(u64::MAX), 256);
    }
}
