//! The kernel of this host, over netlink.

use weft_host::nftables::{Batch, Change, CommitError, Element, Nftables as Connection, Value};
use weft_model::IpFamily;

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
        let connection = if let Some(connection) = self.connection.take() {
            connection
        } else {
            let connection = Connection::open()?;
            self.watch.ignore(self.family, connection.port()?);
            connection
        };
        Ok(self.connection.insert(connection))
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
                let Some(cause) = first else {
                    return Err(KernelError::Commit(CommitError::Unknown));
                };
                let operation = describe(changes.get(cause.place.change));
                Err(KernelError::Refused { operation, cause })
            }
            Err(CommitError::TooLarge(bytes)) => {
                self.lowered = Some((bytes / 2).max(LEAST_BYTES));
                Err(KernelError::TooLarge(bytes))
            }
            Err(error) => {
                self.connection = None;
                Err(KernelError::Commit(error))
            }
        }
    }

    fn structure(&mut self) -> Result<Option<Structure>, KernelError> {
        let family = self.family;
        let connection = self.connection()?;
        let Some(table) = connection.table(family, TABLE)? else {
            return Ok(None);
        };
        Ok(Some(Structure {
            comment: table.comment,
            ownership: table.ownership,
            sets: connection.sets(family, TABLE)?,
            chains: connection.chains(family, TABLE)?,
            rules: connection.rules(family, TABLE)?,
        }))
    }

    fn elements(&mut self, set: &str) -> Result<Vec<Element>, KernelError> {
        let family = self.family;
        let connection = self.connection()?;
        Ok(connection.elements(family, TABLE, set)?)
    }

    fn get_elements(&mut self, set: &str, keys: &[Value]) -> Result<Vec<Element>, KernelError> {
        let family = self.family;
        let connection = self.connection()?;
        Ok(connection.get_elements(family, TABLE, set, keys)?)
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
