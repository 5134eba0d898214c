//! The kernel of this host, over netlink.

use weft_host::nftables::{
    Batch, Change, CommitError, Element, Nftables as Connection, Reason, Value,
};
use weft_model::{IpFamily, error_text};

use crate::{
    kernel::{Kernel, KernelError, Structure},
    program::TABLE,
    watch::Watch,
};

/// The limit is not lowered further: a socket that sends less at once cannot create the table.
const LEAST_BYTES: usize = 16_384;

/// Reads and writes the table of one family over a socket of its own.
#[derive(Debug)]
pub struct HostKernel {
    family: IpFamily,
    /// `None` after an error: the next use opens another.
    connection: Option<Connection>,
    /// Bytes that were not too many yet, where the socket's limit was.
    lowered: Option<usize>,
    watch: Watch,
}

impl HostKernel {
    /// In the calling thread's network namespace, as everything that uses it later has to be.
    pub fn new(family: IpFamily, watch: Watch) -> Self {
        Self {
            family,
            connection: None,
            lowered: None,
            watch,
        }
    }

    fn connection(&mut self) -> Result<&mut Connection, KernelError> {
        if self.connection.is_none() {
            let connection = Connection::open().map_err(failed)?;
            let port = connection.port().map_err(failed)?;
            self.watch.ignore(self.family, port);
            self.connection = Some(connection);
        }
        self.connection
            .as_mut()
            .ok_or_else(|| KernelError::Failed("no connection".to_owned()))
    }
}

impl Kernel for HostKernel {
    fn commit(&mut self, changes: &[Change]) -> Result<usize, KernelError> {
        let mut batch = Batch::new();
        for change in changes {
            batch.push(change);
        }
        let connection = self.connection()?;
        match connection.commit(&batch) {
            Ok(()) => Ok(batch.len()),
            Err(CommitError::Refused(refused)) => {
                let first = refused.into_iter().next();
                let Some(first) = first else {
                    return Err(KernelError::Failed("refused".to_owned()));
                };
                let what = changes.get(first.place.change);
                let reason = first.reason;
                Err(KernelError::Refused {
                    change: first.place.change,
                    element: first.place.element,
                    reason,
                    message: format!("cannot {}: {}", describe(what), explain(reason, &first)),
                })
            }
            Err(CommitError::TooLarge(bytes)) => {
                self.lowered = Some((bytes / 2).max(LEAST_BYTES));
                Err(KernelError::TooLarge(bytes))
            }
            Err(error) => {
                self.connection = None;
                Err(KernelError::Failed(format!(
                    "cannot commit to nftables: {}",
                    error_text(&error)
                )))
            }
        }
    }

    fn structure(&mut self) -> Result<Option<Structure>, KernelError> {
        let family = self.family;
        let connection = self.connection()?;
        let Some(table) = connection.table(family, TABLE).map_err(failed)? else {
            return Ok(None);
        };
        Ok(Some(Structure {
            comment: table.comment,
            ownership: table.ownership,
            sets: connection.sets(family, TABLE).map_err(failed)?,
            chains: connection.chains(family, TABLE).map_err(failed)?,
            rules: connection.rules(family, TABLE).map_err(failed)?,
        }))
    }

    fn elements(&mut self, set: &str) -> Result<Vec<Element>, KernelError> {
        let family = self.family;
        let connection = self.connection()?;
        connection.elements(family, TABLE, set).map_err(failed)
    }

    fn get_elements(&mut self, set: &str, keys: &[Value]) -> Result<Vec<Element>, KernelError> {
        let family = self.family;
        let connection = self.connection()?;
        let found = connection.get_elements(family, TABLE, set, keys);
        found.map_err(failed)
    }

    fn byte_limit(&self) -> usize {
        let socket = self.connection.as_ref().map(Connection::batch_limit);
        // Before the first use any socket's.
        let limit = socket.unwrap_or(LEAST_BYTES);
        self.lowered.map_or(limit, |lowered| lowered.min(limit))
    }

    fn foreign_changes(&mut self) -> Option<u64> {
        // The number of our socket has to be known before it writes.
        self.connection().ok()?;
        self.watch.foreign_changes(self.family)
    }
}

fn describe(change: Option<&Change>) -> String {
    match change {
        Some(Change::AddTable(table)) => format!("add table {}", table.name),
        Some(Change::DeleteTable { table, .. }) => format!("delete table {table}"),
        Some(Change::Within { change, .. }) => crate::kernel::describe(change),
        None => "commit".to_owned(),
    }
}

fn explain(reason: Reason, refused: &weft_host::nftables::Refused) -> String {
    let errno = refused.errno;
    match reason {
        Reason::Exists => "it exists with other content".to_owned(),
        Reason::Missing => "it does not exist".to_owned(),
        Reason::Busy => "it is in use".to_owned(),
        Reason::Full => "the set is full".to_owned(),
        Reason::Owned => "the table belongs to another process".to_owned(),
        Reason::Unsupported | Reason::Resources | Reason::Invalid => errno.to_string(),
    }
}

fn failed(error: impl std::error::Error) -> KernelError {
    KernelError::Failed(error_text(&error))
}
