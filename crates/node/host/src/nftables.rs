//! nf_tables over netlink: batches of changes, what is there, and notifications of change.
//!
//! Start reading at [`Change`] for what can be written and [`Nftables`] for how. Everything is a
//! value that is encoded and decoded here; no program is run.

use std::io;

use weft_model::IpFamily;

mod attribute;
mod batch;
mod connection;
mod error;
mod expression;
mod listener;
mod object;
mod value;

pub use attribute::fitting_comment;
pub use batch::{Batch, Change, Place, TableChange};
pub use connection::Nftables;
pub use error::{CommitError, Reason, Refused};
pub use expression::{
    Expression, FibAddress, Header, MapChange, Meta, Register, Rejection, Verdict,
};
pub use listener::{Listener, ListenerFilter, Notice};
pub use object::{Chain, Datum, Element, Field, Hook, Kind, Ownership, Rule, Set, Table, Traits};
pub use value::Value;

/// Deletes a whole table. `false` if there was none.
pub fn delete_table(family: IpFamily, name: &str) -> io::Result<bool> {
    let mut nftables = Nftables::open().map_err(io::Error::other)?;
    if nftables
        .table(family, name)
        .map_err(io::Error::other)?
        .is_none()
    {
        return Ok(false);
    }
    let mut batch = Batch::new();
    batch.push(&Change::DeleteTable {
        family,
        table: name.to_owned(),
    });
    match nftables.commit(&batch) {
        Ok(()) => Ok(true),
        Err(CommitError::Refused(refused))
            if refused.iter().all(|one| one.reason == Reason::Missing) =>
        {
            Ok(false)
        }
        Err(error) => Err(io::Error::other(error)),
    }
}
