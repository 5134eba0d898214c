//! Classification of netlink errors.

use std::{error::Error as _, io};

use weft_host::{Errno, NetlinkError};
use weft_model::SharedStr;
use weft_routes::ProviderError;

/// An error for a node that cannot be routed to at the moment.
pub(super) fn not_ready(reason: &str) -> ProviderError {
    ProviderError::NotReady(SharedStr::new(reason))
}

/// Classifies the error of a write.
pub(super) fn writing(error: &NetlinkError) -> ProviderError {
    match error.errno() {
        // The gateway is not on the link, the link is down, or packets to it are prohibited.
        Some(
            Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::INVAL | Errno::NETDOWN | Errno::ACCESS,
        ) => not_ready(&said(error)),
        Some(Errno::EXIST) => ProviderError::Conflict,
        _ => common(error),
    }
}

/// Classifies the error of a delete.
pub(super) fn deleting(error: &NetlinkError) -> ProviderError {
    match error.errno() {
        Some(Errno::SRCH) => ProviderError::Gone,
        _ => common(error),
    }
}

/// Classifies the error of a list. It is never uncertain, because reading changes nothing.
pub(super) fn reading(error: &NetlinkError) -> ProviderError {
    match common(error) {
        ProviderError::Uncertain => ProviderError::Retry(SharedStr::new(&said(error))),
        other => other,
    }
}

fn common(error: &NetlinkError) -> ProviderError {
    match error.errno() {
        Some(Errno::PERM | Errno::ACCESS) => ProviderError::Forbidden,
        // An interface vanished meanwhile, or the kernel is short of a resource.
        Some(
            Errno::NODEV
            | Errno::NXIO
            | Errno::NOBUFS
            | Errno::NOMEM
            | Errno::AGAIN
            | Errno::BUSY
            | Errno::INTR,
        ) => ProviderError::Retry(SharedStr::new(&said(error))),
        Some(_) => ProviderError::Invalid(SharedStr::new(&said(error))),
        None if error.source.kind() == io::ErrorKind::InvalidData => {
            ProviderError::Garbage(SharedStr::new(&said(error)))
        }
        None => ProviderError::Uncertain,
    }
}

fn said(error: &NetlinkError) -> String {
    let cause = error.source().map(ToString::to_string);
    format!("{error}: {}", cause.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(errno: Errno) -> NetlinkError {
        NetlinkError {
            operation: "write a route",
            source: errno.into(),
        }
    }

    #[test]
    fn errors_are_classified_by_what_to_do_about_them() {
        let write = |errno| writing(&kernel(errno)).label();
        for errno in [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::INVAL] {
            assert_eq!(write(errno), "not_ready");
        }
        for errno in [Errno::NODEV, Errno::NOBUFS] {
            assert_eq!(write(errno), "retry");
        }
        assert_eq!(write(Errno::PERM), "forbidden");
        assert_eq!(write(Errno::EXIST), "conflict");
        assert_eq!(write(Errno::OPNOTSUPP), "invalid");
        assert_eq!(deleting(&kernel(Errno::SRCH)), ProviderError::Gone);
        assert_eq!(deleting(&kernel(Errno::PERM)).label(), "forbidden");
    }

    #[test]
    fn without_an_answer_a_write_is_uncertain_and_a_list_is_not() {
        let silent = NetlinkError {
            operation: "list routes",
            source: io::ErrorKind::TimedOut.into(),
        };
        assert_eq!(writing(&silent), ProviderError::Uncertain);
        assert_eq!(
            reading(&silent).to_string(),
            "temporary failure: netlink: cannot list routes: timed out"
        );
    }
}
