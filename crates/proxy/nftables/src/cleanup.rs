//! Takes our tables away.

use std::io;

use weft_host::nftables::delete_table;
use weft_model::IpFamily;

use crate::program::TABLE;

/// Deletes our table of a family with all Services in it. `false` if there was none.
pub fn cleanup(family: IpFamily) -> io::Result<bool> {
    delete_table(family, TABLE)
}
