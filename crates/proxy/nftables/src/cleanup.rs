//! Removes our tables.

use std::io;

use weft_host::nftables::{Nftables, Table, delete_table};
use weft_model::IpFamily;

use crate::program::{TABLE, TABLE_COMMENT};

/// Deletes our table of a family with all Services in it. `false` if there was none. A table of the
/// same name that another program created stays.
pub fn cleanup(family: IpFamily) -> io::Result<bool> {
    let mut connection = Nftables::open().map_err(io::Error::other)?;
    let table = connection.table(family, TABLE).map_err(io::Error::other)?;
    match table {
        None => Ok(false),
        Some(table) if is_own(&table) => delete_table(family, TABLE),
        Some(_) => {
            let problem = format!("another program created the table {TABLE} of {family}");
            Err(io::Error::other(problem))
        }
    }
}

/// True of a table that weft created, in this version or another.
pub fn is_own(table: &Table) -> bool {
    table.comment.as_deref() == Some(TABLE_COMMENT)
}
