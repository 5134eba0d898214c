//! Legacy xtables: existence and size of a table.

use std::{fs, io};

use thiserror::Error;
use weft_model::IpFamily;

use crate::raw;

/// The size of a legacy table: a different size means that the table was written.
///
/// The reverse is not true, since a rule can be replaced by another of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableFingerprint {
    /// Rules, including those that begin and end each chain.
    pub entries: u32,
    /// Size in bytes in the kernel.
    pub size: u32,
}

/// Failure to read the size of a legacy table.
#[derive(Debug, Error)]
#[error("cannot read the size of the legacy {family} table `{table}`")]
pub struct FingerprintError {
    family: IpFamily,
    table: String,
    source: io::Error,
}

/// The size of a legacy table; `None` if the table does not exist in this network namespace.
///
/// Costs a few system calls, independent of the size of the table.
pub fn legacy_fingerprint(
    family: IpFamily,
    table: &str,
) -> Result<Option<TableFingerprint>, FingerprintError> {
    // The request alone would create the table, and with it hooks in the path of every packet.
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

/// Returns whether a legacy table exists. Reading one with the programs would create it.
pub fn legacy_table_exists(family: IpFamily, table: &str) -> bool {
    // The thread's own network namespace; `/proc/net` is that of the main thread.
    let names = match family {
        IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    // If the file is missing, the kernel has no legacy tables of this family.
    fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == table))
}
