//! Removes our tables.
//!
//! A packet looks up its front and then an endpoint. If the table were deleted between the two, the
//! packet would find the front of a Service without endpoints and be refused. So the chains stop
//! looking first, and the table is deleted when no packet is in them any more.

use std::{io, thread, time::Duration};

use weft_host::nftables::{Batch, Change, Nftables, Table, TableChange, delete_table};
use weft_model::IpFamily;

use crate::program::{TABLE, TABLE_COMMENT};

/// Longest time for which a packet is between the rules of one commit and those of the next: the
/// processor that handles it may be taken from a virtual machine for that long.
pub const IN_FLIGHT: Duration = Duration::from_millis(200);

/// Deletes our table of a family with all Services in it. `false` if there was none. A table of the
/// same name that another program created stays.
pub fn cleanup(family: IpFamily) -> io::Result<bool> {
    let mut connection = Nftables::open().map_err(io::Error::other)?;
    let table = connection.table(family, TABLE).map_err(io::Error::other)?;
    match table {
        None => Ok(false),
        Some(table) if is_own(&table) => {
            stop_translating(&mut connection, family);
            thread::sleep(IN_FLIGHT);
            delete_table(family, TABLE)
        }
        Some(_) => {
            let problem = format!("another program created the table {TABLE} of {family}");
            Err(io::Error::other(problem))
        }
    }
}

/// Lets new packets pass by. A table of another version may have other chains: it is deleted anyway.
fn stop_translating(connection: &mut Nftables, family: IpFamily) {
    let mut batch = Batch::new();
    for chain in ["prerouting", "output"] {
        batch.push(&Change::Within {
            family,
            table: TABLE.to_owned(),
            change: TableChange::FlushChain(chain.to_owned()),
        });
    }
    if let Err(error) = connection.commit(&batch) {
        tracing::debug!(%family, %error, "cannot empty the chains of the table");
    }
}

/// True of a table that weft created, in this version or another.
pub fn is_own(table: &Table) -> bool {
    table.comment.as_deref() == Some(TABLE_COMMENT)
}
