//! Batches that were not committed.

use std::fmt;

use rustix::io::Errno;

use super::batch::Place;
use crate::NetlinkError;

/// One message that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The change, and of elements or expressions the one that was refused.
    pub place: Place,
    /// The kernel's error by what can be done about it.
    pub reason: Reason,
    /// The kernel's number for it.
    pub errno: Errno,
}

/// The reason of a refusal, by what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It exists already, with other data.
    Exists,
    /// It, or what it belongs to, does not exist.
    Missing,
    /// It is in use.
    Busy,
    /// The set is full.
    Full,
    /// It belongs to another process.
    Owned,
    /// The kernel does not know the message or expression.
    Unsupported,
    /// Memory or descriptors ran out.
    Resources,
    /// The kernel calls it invalid.
    Invalid,
}

impl std::error::Error for Refused {}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            Reason::Exists => "it exists with other content",
            Reason::Missing => "it does not exist",
            Reason::Busy => "it is in use",
            Reason::Full => "the set is full",
            Reason::Owned => "the table belongs to another process",
            Reason::Unsupported => "the kernel does not support it",
            Reason::Resources | Reason::Invalid => return self.errno.fmt(f),
        })
    }
}

impl Reason {
    fn of(errno: Errno) -> Self {
        match errno {
            Errno::EXIST => Self::Exists,
            Errno::NOENT => Self::Missing,
            Errno::BUSY => Self::Busy,
            Errno::NFILE | Errno::NOSPC => Self::Full,
            Errno::PERM => Self::Owned,
            Errno::OPNOTSUPP | Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT => Self::Unsupported,
            Errno::NOMEM | Errno::MFILE => Self::Resources,
            _ => Self::Invalid,
        }
    }
}

/// A batch that was not committed: nothing of it became true, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Messages were refused: all that the kernel named, in order.
    #[error("the kernel refused {} of the messages, the first with: {}", .0.len(), .0[0].errno)]
    Refused(Vec<Refused>),
    /// The batch is larger than the socket's send buffer.
    #[error("{0} bytes are more than the socket sends at once")]
    TooLarge(usize),
    /// Answers were lost: whether the batch was committed is not known.
    #[error("answers of the kernel were lost")]
    Unknown,
    /// The kernel could not be asked.
    #[error(transparent)]
    Socket(#[from] NetlinkError),
}

impl CommitError {
    /// From what the kernel said, message by message.
    pub(super) fn from_refusals(refusals: Vec<(Place, Errno)>) -> Self {
        let refused = refusals.into_iter().map(|(place, errno)| Refused {
            place,
            reason: Reason::of(errno),
            errno,
        });
        Self::Refused(refused.collect())
    }
}
