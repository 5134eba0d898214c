use std::{fs, io};

use thiserror::Error;
use weft_model::IpFamily;

use crate::raw;

/// The size of a legacy table: a different one means that somebody wrote.
///
/// The reverse is not true, since a rule can be replaced by another of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableFingerprint {
    /// Rules, with those that begin and end each chain.
    pub entries: u32,
    /// Bytes in the kernel.
    pub size: u32,
}

/// Why the size of a legacy table is not known.
#[derive(Debug, Error)]
#[error("cannot get the size of the legacy {family} table `{table}`")]
pub struct FingerprintError {
    family: IpFamily,
    table: String,
    source: io::Error,
}

/// The size of a legacy table; nothing if the table does not exist in this network namespace.
///
/// Costs a few system calls, whatever the size of the table.
pub fn legacy_fingerprint(
    family: IpFamily,
    table: &str,
) -> Result<Option<TableFingerprint>, FingerprintError> {
    // The question alone would create the table, and with it hooks in the way of every packet.
    if !legacy_table_exists(family, table) {
        return Ok(None);
    }
    match raw::table_info(family, table) {
        Ok((entries, size)) => Ok(Some(TableFingerprint { entries, size })),
        Err(source) => Err(FingerprintError {
            family,
            table: table.to_owned(),
            source,
        }),
    }
}

/// Whether somebody uses a legacy table already. Reading one with the programs would create it.
pub fn legacy_table_exists(family: IpFamily, table: &str) -> bool {
    // The thread's own network; `/proc/net` would be that of the main thread.
    let names = match family {
        IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    // Not there: the kernel has no legacy tables of this family.
    fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == table))
}
