//! Removes our tables.

use std::io;

use weft_host::nftables::{Nftables, delete_table};
use weft_model::IpFamily;

use crate::program::{TABLE, TABLE_COMMENT};

/// Deletes our table of a family with all Services in it. `false` if there was none. A table of the
/// same name that another program created stays.
pub fn cleanup(family: IpFamily) -> io::Result<bool> {
    let mut connection = Nftables::open().map_err(io::Error::other)?;
    let table = connection.table(family, TABLE).map_err(io::Error::other)?;
    match table {
        None => Ok(false),
        Some(table) if table.comment.as_deref() == Some(TABLE_COMMENT) => {
            delete_table(family, TABLE)
        }
        Some(_) => {
            let problem = format!("another program created the table {TABLE} of {family}");
            Err(io::Error::other(problem))
        }
    }
}
